//! A file of the log's directory by its name: opened when it is needed, and unlinked with its last user.
//!
//! Invariants:
//! 1. A removed file keeps its name until its last user is gone: so `du` shows what readers pin, and a user
//!    that has not opened it yet can.
//! 2. Its name is never given to another file, so that a late unlinking hits no other.
//! 3. A handle that is closed because it is idle is that of a file which nothing writes to any more.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use settee_io::{Env, File, IdleHandle, OpenMode, directory};
use tokio::sync::{Mutex, oneshot};

/// A file by its name. Dropping the last user of a removed file unlinks it in a task of its own.
pub struct StoredFile {
    path: PathBuf,
    env: Env,
    direct: AtomicBool,
    file: ArcSwapOption<File>,
    /// Held while the file is opened.
    opening: Mutex<()>,
    /// Whether the handle is one that was opened for reading.
    is_read_only: AtomicBool,
    /// Whether the handle was used since this was last asked.
    is_used: AtomicBool,
    is_removed: AtomicBool,
}

impl StoredFile {
    /// A file that is opened by its first use, in direct mode if `direct`. It may be closed while it is idle
    /// ([`Env::idle_handles`]).
    pub fn new(env: &Env, path: PathBuf, direct: bool) -> StoredFile {
        StoredFile::of(env, path, direct, None)
    }

    /// A file that is open already, and stays open until it is listed.
    pub fn opened(env: &Env, file: Arc<File>) -> StoredFile {
        let (path, direct) = (file.path().to_path_buf(), file.direct().is_some());
        StoredFile::of(env, path, direct, Some(file))
    }

    fn of(env: &Env, path: PathBuf, direct: bool, file: Option<Arc<File>>) -> StoredFile {
        StoredFile {
            path,
            env: env.clone(),
            direct: AtomicBool::new(direct),
            file: ArcSwapOption::new(file),
            opening: Mutex::default(),
            is_read_only: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handle, if it is open.
    pub fn get(&self) -> Option<Arc<File>> {
        let file = self.file.load_full()?;
        // Seldom written: several readers share this.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        Some(file)
    }

    /// The handle, opened if it isn't open. It stays open as long as the caller keeps it.
    ///
    /// # Errors
    /// An I/O error; the next call tries again.
    pub async fn file(self: &Arc<Self>) -> Result<Arc<File>, settee_io::Error> {
        match self.get() {
            Some(file) => Ok(file),
            None => {
                let stored = self.clone();
                self.in_task(async move { stored.open().await }).await
            }
        }
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<File>, settee_io::Error> {
        let opening = self.opening.lock().await;
        if let Some(file) = self.get() {
            return Ok(file);
        }
        let file = File::open(&self.env.engine, &self.path, OpenMode::Read).await?;
        if self.direct.load(Ordering::Relaxed) {
            file.set_direct(true).await?;
        }
        let file = Arc::new(file);
        self.is_read_only.store(true, Ordering::Relaxed);
        self.file.store(Some(file.clone()));
        drop(opening);
        self.close_when_idle();
        Ok(file)
    }

    /// Allows the handle to be closed while it is idle. For a file that nothing writes to any more.
    pub(crate) fn close_when_idle(self: &Arc<Self>) {
        self.env.idle_handles.add(Arc::downgrade(self) as Weak<dyn IdleHandle>);
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
        // A handle that is being opened may have seen the earlier mode.
        let _opening = self.opening.lock().await;
        match self.file.load_full() {
            Some(file) => file.set_direct(direct).await.map(drop),
            None => Ok(()),
        }
    }

    /// Unlinks the file once its last user is gone. For a file that no durable manifest names.
    pub fn remove(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    /// The handle, if the caller is the file's only user and may write to it. Otherwise the file is removed with its
    /// last user.
    pub(crate) fn take(self: Arc<Self>) -> Option<Arc<File>> {
        self.remove();
        let mut own = Arc::into_inner(self)?;
        let file = own.file.swap(None).filter(|_| !*own.is_read_only.get_mut())?;
        *own.is_removed.get_mut() = false;
        Some(file)
    }

    /// Runs what others may wait for too in a task of its own: the caller's future may be left unpolled for as
    /// long as a client takes to read a response.
    pub(super) async fn in_task<T: Send + 'static, E: From<settee_io::Error> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let (sender, done) = oneshot::channel();
        self.env.spawn("log segment", async move { drop(sender.send(work.await)) });
        let panicked = || settee_io::Error::Panicked { path: self.path.as_path().into() };
        done.await.unwrap_or_else(|_| Err(panicked().into()))
    }
}

impl IdleHandle for StoredFile {
    fn take_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }

    fn close(&self) {
        // The next opening of the log may unlink a removed file although it is in use.
        if !self.is_removed.load(Ordering::Acquire) {
            self.file.store(None);
        }
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
