//! Verification: every node that a root reaches, read from the file and compared with all that is
//! said of it.

use std::fmt;
use std::sync::Arc;

use crate::error::TreeError;
use crate::format::Pointer;
use crate::node::{Child, Node};
use crate::reduction::Reduction;
use crate::root::{Root, top_pointer};

/// The most problems that are told; then the check ends.
pub const PROBLEM_COUNT_MAX: usize = 10_000;

/// How many children of a node are read at once.
const READ_COUNT_MAX: usize = 64;

/// What is wrong with a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the node begins in the file, in bytes.
    pub offset: u64,
    /// What is wrong with it.
    pub what: String,
    /// No key that it touches is below this one.
    pub start: Vec<u8>,
    /// All keys that it touches are below this one; `None`: up to the last.
    pub end: Option<Vec<u8>>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at offset {}: {}; keys from {:?}", self.offset, self.what, self.start.escape_ascii())?;
        match &self.end {
            Some(end) => write!(f, " up to {:?}", end.escape_ascii()),
            None => f.write_str(" up to the last"),
        }
    }
}

/// An inner node whose children are being checked.
struct Frame<S> {
    node: Arc<Node>,
    /// What is said of it.
    said: Child<S>,
    /// All its keys are below this one.
    end: Option<Vec<u8>>,
    next: usize,
    /// Children that were read, from `next` on, the last one first.
    read: Vec<Result<Arc<Node>, TreeError>>,
    found: Totals<S>,
}

/// What was found under a node.
struct Totals<S> {
    count: u64,
    live_bytes: u64,
    summary: S,
}

struct Check<'a, R: Reduction, E, P> {
    root: &'a Root<R>,
    entry: E,
    progress: P,
    problems: Vec<Problem>,
    last_key: Option<Vec<u8>>,
}

impl<R: Reduction> Root<R> {
    /// Reads every node of this root from the file, whatever is cached, and verifies checksums,
    /// order and bounds of keys, depths, counts, live bytes and summaries. `entry` is told every
    /// entry that can be read, in order, and `progress` the bytes of each node, which sum up to
    /// [`Root::live_bytes`] where all is well. Gives what is wrong, up to [`PROBLEM_COUNT_MAX`]
    /// problems; what lies under a node that can't be read is passed over, and its keys are named.
    ///
    /// # Errors
    /// [`TreeError::Io`] where the system failed to read; damage is a problem, no error.
    pub async fn check(
        &self,
        entry: impl FnMut(&[u8], &[u8]),
        progress: impl FnMut(u64),
    ) -> Result<Vec<Problem>, TreeError> {
        let mut check = Check { root: self, entry, progress, problems: Vec::new(), last_key: None };
        check.run().await?;
        if let Err(error) = self.attachment().await {
            check.report_unreadable(error, Vec::new(), None)?;
        }
        Ok(check.problems)
    }
}

impl<R: Reduction, E: FnMut(&[u8], &[u8]), P: FnMut(u64)> Check<'_, R, E, P> {
    async fn run(&mut self) -> Result<(), TreeError> {
        let state = &self.root.state;
        let Some((pointer, top)) = top_pointer(state).zip(state.top.as_ref()) else { return Ok(()) };
        let said = Child {
            separator: Vec::new(),
            pointer,
            count: state.count,
            live_bytes: state.live_bytes,
            summary: state.summary.clone(),
        };
        let mut frames = Vec::new();
        let level = top.node.level();
        let read = self.root.shared.read_many(&[pointer], level).await.pop().expect("one for each pointer");
        let mut done = self.open(&mut frames, said, None, read)?;
        while self.problems.len() < PROBLEM_COUNT_MAX {
            if let Some(totals) = done.take() {
                let Some(frame) = frames.last_mut() else { return Ok(()) };
                frame.found.add(&self.root.shared.reduction, &totals);
            }
            let Some(frame) = frames.last_mut() else { return Ok(()) };
            if frame.next == frame.node.len() {
                let frame = frames.pop().expect("it was there");
                self.compare(&frame.said, &frame.end, &frame.found);
                done = Some(frame.found);
                continue;
            }
            let index = frame.next;
            frame.next += 1;
            let Some(child) = frame.node.child(&self.root.shared.reduction, index) else {
                let (said, end) = (frame.said.clone(), frame.end.clone());
                self.report(&said, &end, "an item makes no sense".to_owned());
                continue;
            };
            let end = if frame.next < frame.node.len() {
                Some(frame.node.key(frame.next))
            } else {
                frame.end.clone()
            };
            if frame.read.is_empty() {
                frame.read = read_children(self.root, &frame.node, index).await;
            }
            let read = frame.read.pop().expect("it was read with those before");
            done = self.open(&mut frames, child, end, read)?;
        }
        Ok(())
    }

    /// Begins with a node; gives what is under it where that is all.
    fn open(
        &mut self,
        frames: &mut Vec<Frame<R::Summary>>,
        said: Child<R::Summary>,
        end: Option<Vec<u8>>,
        read: Result<Arc<Node>, TreeError>,
    ) -> Result<Option<Totals<R::Summary>>, TreeError> {
        (self.progress)(said.pointer.aligned_length());
        let node = match read {
            Ok(node) => node,
            Err(error) => {
                self.report_unreadable(error, said.separator.clone(), end)?;
                // As if it were as its parent says, so that one problem isn't told many times.
                let Child { count, live_bytes, summary, .. } = said;
                return Ok(Some(Totals { count, live_bytes, summary }));
            }
        };
        self.check_order(&node, &said, &end);
        let live_bytes = said.pointer.aligned_length();
        let mut found = Totals { count: 0, live_bytes, summary: self.root.shared.reduction.zero() };
        if !node.is_leaf() {
            frames.push(Frame { node, said, end, next: 0, read: Vec::new(), found });
            return Ok(None);
        }
        let reduction = &self.root.shared.reduction;
        let mut key = Vec::new();
        for index in 0..node.len() {
            node.copy_key(index, &mut key);
            let value = node.payload(index);
            found.count += 1;
            found.summary = reduction.join(&found.summary, &reduction.of(&key, value));
            (self.entry)(&key, value);
        }
        self.compare(&said, &end, &found);
        Ok(Some(found))
    }

    /// Whether a node's keys ascend and lie where its parent says.
    fn check_order(&mut self, node: &Node, said: &Child<R::Summary>, end: &Option<Vec<u8>>) {
        let ascends = (1..node.len()).all(|index| node.key_rest(index - 1) < node.key_rest(index));
        if !ascends {
            self.report(said, end, "its keys don't ascend".to_owned());
        }
        let (first, last) = (node.key(0), node.key(node.len() - 1));
        let is_after = !node.is_leaf() || self.last_key.as_ref().is_none_or(|key| *key < first);
        if first < said.separator || !is_after || end.as_ref().is_some_and(|end| last >= *end) {
            self.report(said, end, "it has keys of its neighbours'".to_owned());
        }
        if node.is_leaf() {
            self.last_key = Some(last);
        }
    }

    /// Whether what was found under a node is what its parent says.
    fn compare(&mut self, said: &Child<R::Summary>, end: &Option<Vec<u8>>, found: &Totals<R::Summary>) {
        if found.count != said.count {
            self.report(said, end, format!("it has {} entries, not {}", found.count, said.count));
        }
        if found.live_bytes != said.live_bytes {
            self.report(said, end, format!("it has {} bytes, not {}", found.live_bytes, said.live_bytes));
        }
        if found.summary != said.summary {
            self.report(said, end, format!("its summary is {:?}, not {:?}", found.summary, said.summary));
        }
    }

    fn report(&mut self, said: &Child<R::Summary>, end: &Option<Vec<u8>>, what: String) {
        let start = said.separator.clone();
        self.problems.push(Problem { offset: said.pointer.offset, what, start, end: end.clone() });
    }

    /// A problem of what is damaged; what the system says goes on as an error.
    fn report_unreadable(
        &mut self,
        error: TreeError,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
    ) -> Result<(), TreeError> {
        let TreeError::Damaged { offset, what, .. } = error else { return Err(error) };
        self.problems.push(Problem { offset, what: what.to_owned(), start, end });
        Ok(())
    }
}

impl<S> Totals<S> {
    fn add<R: Reduction<Summary = S>>(&mut self, reduction: &R, below: &Totals<S>) {
        self.count = self.count.saturating_add(below.count);
        self.live_bytes = self.live_bytes.saturating_add(below.live_bytes);
        self.summary = reduction.join(&self.summary, &below.summary);
    }
}

/// The children from this one on, as many as are read at once, the last one first. Those whose
/// item makes no sense end the list, unless it begins with one: that can't be.
async fn read_children<R: Reduction>(
    root: &Root<R>,
    node: &Node,
    first: usize,
) -> Vec<Result<Arc<Node>, TreeError>> {
    let reduction = &root.shared.reduction;
    let pointers: Vec<Pointer> = (first..node.len().min(first + READ_COUNT_MAX))
        .map_while(|index| node.child_record(reduction, index).map(|record| record.pointer))
        .collect();
    let mut nodes = root.shared.read_many(&pointers, node.level() - 1).await;
    nodes.reverse();
    nodes
}
