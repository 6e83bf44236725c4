//! The simulated file system: paths, directories and files, in memory.
//!
//! Combines names ([`crate::names`]) and contents ([`crate::content`]), and returns the errors of a real file
//! system. Absolute and relative paths start at the same root directory, which always exists.
//!
//! Invariant: `seq` grows with every change, so a sync can tell which changes came before it.

use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use settee_io::{Entry, FileIdentity, OpenMode};

use crate::content::{Content, Fate};
use crate::names::{Name, NameTable, Names, NodeId};
use crate::random::Generator;

const ROOT: NodeId = 0;

/// The object that a name refers to. A file without a name remains, as an open file does.
#[derive(Debug)]
enum Node {
    Directory,
    File(File),
}

#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) content: Content,
    /// Number of its failed syncs.
    pub(crate) failed_sync_count: u64,
    /// Number of the file on its disk; a power loss doesn't change it.
    inode: u64,
    /// Number of writes and changes of its length. Serves as the time of the last one.
    pub(crate) change_count: u64,
    /// Alive while the descriptor that holds the lock is open.
    lock: Weak<()>,
}

impl File {
    pub(crate) fn identity(&self) -> FileIdentity {
        FileIdentity { device: 1, inode: self.inode, modified_ns: i128::from(self.change_count) }
    }

    /// Locks the file for the descriptor that owns `token`, unless another holds the lock.
    pub(crate) fn lock(&mut self, token: &Arc<()>) -> io::Result<()> {
        if self.lock.strong_count() > 0 && !self.lock.ptr_eq(&Arc::downgrade(token)) {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.lock = Arc::downgrade(token);
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Files {
    nodes: Vec<Node>,
    names: Names,
    seq: u64,
    inode_count: u64,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { nodes: vec![Node::Directory], names: Names::default(), seq: 0, inode_count: 0 }
    }

    /// Returns the number of the last change.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the number of a new change.
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Returns the file of a descriptor.
    pub(crate) fn file(&mut self, node: NodeId) -> &mut File {
        match &mut self.nodes[node] {
            Node::File(file) => file,
            Node::Directory => unreachable!("descriptors are of files"),
        }
    }

    pub(crate) fn open(&mut self, path: &Path, mode: OpenMode) -> io::Result<NodeId> {
        let name = self.locate(path)?;
        match self.names.visible().get(&name) {
            Some(_) if mode == OpenMode::CreateNew => Err(ErrorKind::AlreadyExists.into()),
            Some(node) if self.is_directory(*node) => Err(ErrorKind::IsADirectory.into()),
            Some(node) => Ok(*node),
            None if matches!(mode, OpenMode::Read | OpenMode::Write) => Err(ErrorKind::NotFound.into()),
            None => {
                self.inode_count += 1;
                Ok(self.create(name, Node::File(File { inode: self.inode_count, ..File::default() })))
            }
        }
    }

    pub(crate) fn create_directory(&mut self, path: &Path) -> io::Result<()> {
        let name = match self.resolve(path) {
            Ok(_) => return Err(ErrorKind::AlreadyExists.into()),
            Err(_) => self.locate(path)?,
        };
        self.create(name, Node::Directory);
        Ok(())
    }

    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let entry =
            |(name, node): (&str, NodeId)| Entry { name: name.into(), is_directory: self.is_directory(node) };
        Ok(self.names.in_directory(self.resolve_directory(path)?).map(entry).collect())
    }

    pub(crate) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let node = self.resolve(path)?;
        if self.is_directory(node) {
            return Err(ErrorKind::IsADirectory.into());
        }
        let name = self.locate(path)?;
        self.rename_node(node, Some(name), None);
        Ok(())
    }

    pub(crate) fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        let node = self.resolve_directory(path)?;
        if self.names.in_directory(node).next().is_some() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let name = self.locate(path)?;
        self.rename_node(node, Some(name), None);
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.resolve(from)?;
        let (from_name, to_name) = (self.locate(from)?, self.locate(to)?);
        if from_name == to_name {
            return Ok(());
        }
        if self.is_directory(node) && self.is_within(to_name.0, node) {
            return Err(ErrorKind::InvalidInput.into());
        }
        match self.names.visible().get(&to_name).map(|target| (*target, self.is_directory(*target))) {
            Some((_, true)) if !self.is_directory(node) => return Err(ErrorKind::IsADirectory.into()),
            Some((_, false)) if self.is_directory(node) => return Err(ErrorKind::NotADirectory.into()),
            Some((target, true)) if self.names.in_directory(target).next().is_some() => {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            _ => {}
        }
        self.rename_node(node, Some(from_name), Some(to_name));
        Ok(())
    }

    pub(crate) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.resolve(from)?;
        let to_name = self.locate(to)?;
        if self.is_directory(node) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        if self.names.visible().contains_key(&to_name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.rename_node(node, None, Some(to_name));
        Ok(())
    }

    /// Returns the number of a file's names.
    pub(crate) fn link_count(&self, node: NodeId) -> u64 {
        self.names.visible().values().filter(|named| **named == node).count() as u64
    }

    pub(crate) fn sync_directory(&mut self, path: &Path, covered: u64) -> io::Result<()> {
        let directory = self.resolve_directory(path)?;
        self.names.sync(directory, covered);
        Ok(())
    }

    pub(crate) fn fail_sync_directory(&mut self, path: &Path, covered: u64, random: &mut Generator) {
        if let Ok(directory) = self.resolve_directory(path) {
            self.names.fail_sync(directory, covered, random);
        }
    }

    /// Returns the total length of the named files, counting a file once for each name.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.names.visible().values().map(|node| self.content(*node).map_or(0, Content::length)).sum()
    }

    /// Returns the paths of all files, sorted.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        self.collect_paths(ROOT, Path::new(""), &mut paths);
        paths.sort();
        paths
    }

    /// Returns a file's contents as the program sees them.
    pub(crate) fn read(&self, path: &Path) -> Option<&[u8]> {
        self.content(self.resolve(path).ok()?).map(Content::bytes)
    }

    /// Replaces a file, or creates it and its missing parent directories, and makes all names durable.
    pub(crate) fn replace(&mut self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        for directory in path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            if self.resolve(directory).is_err() {
                self.create_directory(directory)?;
            }
        }
        let node = self.open(path, OpenMode::Create)?;
        let file = self.file(node);
        file.content = Content::durable(bytes);
        file.change_count += 1;
        self.names.sync_all();
        Ok(())
    }

    /// Returns the file system on the medium if the power is lost now.
    pub(crate) fn survive(&self, random: &mut Generator, powersafe: bool) -> Files {
        let everywhere = Some(Fate::draw(random)).filter(|_| random.coin());
        let fate = |random: &mut Generator| everywhere.unwrap_or_else(|| Fate::draw(random));
        let names_fate = fate(random);
        let table = self.names.survive(names_fate, random);
        let mut survivors = Files::new();
        let mut renumbered = NameTable::new();
        let mut directories = vec![(ROOT, ROOT)];
        while let Some((old_directory, new_directory)) = directories.pop() {
            for ((_, name), old) in
                table.range((old_directory, String::new())..(old_directory + 1, String::new()))
            {
                let new = survivors.nodes.len();
                renumbered.insert((new_directory, name.clone()), new);
                survivors.nodes.push(match &self.nodes[*old] {
                    Node::Directory => {
                        directories.push((*old, new));
                        Node::Directory
                    }
                    Node::File(file) => {
                        let file_fate = fate(random);
                        let content = Content::durable(file.content.survive(file_fate, random, powersafe));
                        Node::File(File { content, failed_sync_count: 0, lock: Weak::new(), ..*file })
                    }
                });
            }
        }
        survivors.inode_count = self.inode_count;
        survivors.names = Names::durable(renumbered);
        survivors
    }

    fn create(&mut self, name: Name, node: Node) -> NodeId {
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        self.rename_node(node, None, Some(name));
        node
    }

    fn rename_node(&mut self, node: NodeId, from: Option<Name>, to: Option<Name>) {
        let seq = self.next_seq();
        self.names.change(seq, node, from, to, self.is_directory(node));
    }

    fn content(&self, node: NodeId) -> Option<&Content> {
        match &self.nodes[node] {
            Node::File(file) => Some(&file.content),
            Node::Directory => None,
        }
    }

    fn is_directory(&self, node: NodeId) -> bool {
        matches!(self.nodes[node], Node::Directory)
    }

    /// Whether `node` is `directory` or lies within it.
    fn is_within(&self, node: NodeId, directory: NodeId) -> bool {
        let mut at = Some(node);
        while let Some(node) = at {
            if node == directory {
                return true;
            }
            at = self
                .names
                .visible()
                .iter()
                .find(|(_, named)| **named == node)
                .map(|((parent, _), _)| *parent);
        }
        false
    }

    fn resolve(&self, path: &Path) -> io::Result<NodeId> {
        parts(path)?.into_iter().try_fold(ROOT, |node, part| {
            if !self.is_directory(node) {
                return Err(ErrorKind::NotADirectory.into());
            }
            self.names.visible().get(&(node, part)).copied().ok_or(ErrorKind::NotFound.into())
        })
    }

    fn resolve_directory(&self, path: &Path) -> io::Result<NodeId> {
        let node = self.resolve(path)?;
        if self.is_directory(node) { Ok(node) } else { Err(ErrorKind::NotADirectory.into()) }
    }

    /// Returns the last name of the path and its directory, which must exist.
    fn locate(&self, path: &Path) -> io::Result<Name> {
        let name = parts(path)?.pop().ok_or(ErrorKind::InvalidInput)?;
        let directory = self.resolve_directory(path.parent().unwrap_or(Path::new("")))?;
        Ok((directory, name))
    }

    fn collect_paths(&self, directory: NodeId, path: &Path, paths: &mut Vec<PathBuf>) {
        for (name, node) in self.names.in_directory(directory) {
            match self.is_directory(node) {
                true => self.collect_paths(node, &path.join(name), paths),
                false => paths.push(path.join(name)),
            }
        }
    }
}

fn parts(path: &Path) -> io::Result<Vec<String>> {
    let parts = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    parts
        .map(|part| match part {
            Component::Normal(name) => name.to_str().map(String::from).ok_or(ErrorKind::InvalidInput.into()),
            _ => Err(ErrorKind::InvalidInput.into()),
        })
        .collect()
}

/// Writes the bytes that fit if the file may grow by `free_bytes`; returns their number.
pub(crate) fn write_within(
    content: &mut Content,
    seq: u64,
    offset: u64,
    mut bytes: Bytes,
    free_bytes: u64,
) -> io::Result<u64> {
    let length_max = content.length().saturating_add(free_bytes);
    bytes.truncate(length_max.saturating_sub(offset).min(bytes.len() as u64) as usize);
    if bytes.is_empty() {
        return Err(ErrorKind::StorageFull.into());
    }
    let count = bytes.len() as u64;
    content.write(seq, offset, bytes);
    Ok(count)
}
