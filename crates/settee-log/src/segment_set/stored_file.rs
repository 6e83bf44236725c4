//! A file of the log's directory by its name: opened when it is needed, and unlinked with its last user.
//!
//! Invariants:
//! 1. A removed file keeps its name until its last user is gone: so `du` shows what readers pin, and a user
//!    that has not opened it yet can.
//! 2. Its name is never given to another file, so that a late unlinking hits no other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use settee_io::{Env, File, OpenMode, directory};
use tokio::sync::{OnceCell, oneshot};

/// A file by its name. Dropping the last user of a removed file unlinks it in a task of its own.
pub struct StoredFile {
    path: PathBuf,
    env: Env,
    direct: AtomicBool,
    file: OnceCell<Arc<File>>,
    is_removed: AtomicBool,
}

impl StoredFile {
    /// A file that is opened by its first use, in direct mode if `direct`.
    pub fn new(env: &Env, path: PathBuf, direct: bool) -> StoredFile {
        StoredFile::of(env, path, direct, OnceCell::new())
    }

    /// A file that is open already.
    pub fn opened(env: &Env, file: Arc<File>) -> StoredFile {
        let path = file.path().to_path_buf();
        StoredFile::of(env, path, false, OnceCell::new_with(Some(file)))
    }

    fn of(env: &Env, path: PathBuf, direct: bool, file: OnceCell<Arc<File>>) -> StoredFile {
        let (direct, is_removed) = (AtomicBool::new(direct), AtomicBool::new(false));
        StoredFile { path, env: env.clone(), direct, file, is_removed }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handle, if it is open.
    pub fn get(&self) -> Option<&Arc<File>> {
        self.file.get()
    }

    /// The handle, opened by the first call.
    ///
    /// # Errors
    /// An I/O error; the next call tries again.
    pub async fn file(self: &Arc<Self>) -> Result<&Arc<File>, settee_io::Error> {
        if self.file.get().is_none() {
            let stored = self.clone();
            self.in_task(async move { stored.open().await.map(drop) }).await?;
        }
        Ok(self.file.get().expect("the task opened it"))
    }

    async fn open(&self) -> Result<&Arc<File>, settee_io::Error> {
        let open = async || {
            let file = File::open(&self.env.engine, &self.path, OpenMode::Read).await?;
            if self.direct.load(Ordering::Relaxed) {
                file.set_direct(true).await?;
            }
            Ok(Arc::new(file))
        };
        self.file.get_or_try_init(open).await
    }

    /// Opens the file anew, for one use.
    ///
    /// # Errors
    /// An I/O error.
    pub async fn open_once(&self) -> Result<File, settee_io::Error> {
        File::open(&self.env.engine, &self.path, OpenMode::Read).await
    }

    /// Switches direct I/O on or off, now or when the file is opened.
    pub(crate) async fn set_direct(&self, direct: bool) -> Result<(), settee_io::Error> {
        self.direct.store(direct, Ordering::Relaxed);
        match self.file.get() {
            Some(file) => file.set_direct(direct).await.map(drop),
            None => Ok(()),
        }
    }

    /// Unlinks the file once its last user is gone. For a file that no durable manifest names.
    pub fn remove(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    /// The handle, if the caller is the file's only user. Otherwise the file is removed with its last user.
    pub(crate) fn take(self: Arc<Self>) -> Option<Arc<File>> {
        self.remove();
        let mut own = Arc::into_inner(self)?;
        let file = own.file.take()?;
        *own.is_removed.get_mut() = false;
        Some(file)
    }

    /// Runs what others may wait for too in a task of its own: the caller's future may be left unpolled for as
    /// long as a client takes to read a response.
    pub(super) async fn in_task<E: From<settee_io::Error> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Result<(), E> {
        let (sender, done) = oneshot::channel();
        self.env.spawn("log segment", async move { drop(sender.send(work.await)) });
        let panicked = || settee_io::Error::Panicked { path: self.path.as_path().into() };
        done.await.unwrap_or_else(|_| Err(panicked().into()))
    }
}

impl Drop for StoredFile {
    fn drop(&mut self) {
        if !*self.is_removed.get_mut() {
            return;
        }
        let (env, path) = (self.env.clone(), std::mem::take(&mut self.path));
        self.env.spawn("log unlink", async move {
            match directory::remove(&*env.engine, &path).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(%error, "an unneeded file could not be removed; the next opening removes it");
                }
                _ => {}
            }
        });
    }
}

impl std::fmt::Debug for StoredFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoredFile").field(&self.path).finish()
    }
}
