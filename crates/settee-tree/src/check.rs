//! Verification: reads every node that a root reaches from the file, and compares it with its parent's
//! record.

use std::fmt;
use std::sync::Arc;

use crate::error::TreeError;
use crate::format::Pointer;
use crate::node::{Child, Node};
use crate::reduction::Reduction;
use crate::root::{Root, top_pointer};
use settee_io::Damage;

/// Largest number of problems reported; the check ends there.
pub const PROBLEM_COUNT_MAX: usize = 10_000;

/// Number of children read at once.
const READ_COUNT_MAX: usize = 64;

/// A problem found by a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the node begins in the file, in bytes.
    pub offset: u64,
    /// Description of the problem.
    pub what: String,
    /// Lower bound of the affected keys, inclusive.
    pub start: Vec<u8>,
    /// Upper bound of the affected keys, exclusive; `None`: up to the last key.
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
struct CheckFrame<S> {
    node: Arc<Node>,
    /// The parent's record of it.
    expected: Child<S>,
    /// Upper bound of its keys, exclusive.
    end: Option<Vec<u8>>,
    next: usize,
    /// Children read ahead, from `next` on, in reverse order.
    read: Vec<Result<Arc<Node>, TreeError>>,
    found: Totals<S>,
}

/// Totals of the nodes under a node.
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
    /// Reads every node of this root from the file, bypassing the cache, and verifies checksums, order and
    /// bounds of keys, depths, counts, live bytes and summaries. Calls `entry` with every readable entry, in
    /// order, and `progress` with the bytes of each node, which sum up to [`Root::live_bytes`] if the tree is
    /// sound. Returns up to [`PROBLEM_COUNT_MAX`] problems; nodes under an unreadable node are skipped, and
    /// the problem names their keys.
    ///
    /// # Errors
    /// [`TreeError::Io`] if the system failed to read; damage is a problem, not an error.
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
        let expected = Child {
            separator: Vec::new(),
            pointer,
            count: state.count,
            live_bytes: state.live_bytes,
            summary: state.summary.clone(),
        };
        let mut frames = Vec::new();
        let level = top.node.level();
        let read = self.root.shared.read_many(&[pointer], level).await.pop().expect("one for each pointer");
        let mut done = self.open(&mut frames, expected, None, read)?;
        while self.problems.len() < PROBLEM_COUNT_MAX {
            if let Some(totals) = done.take() {
                let Some(frame) = frames.last_mut() else { return Ok(()) };
                frame.found.add(&self.root.shared.reduction, &totals);
            }
            let Some(frame) = frames.last_mut() else { return Ok(()) };
            if frame.next == frame.node.len() {
                let mut frame = frames.pop().expect("it was there");
                frame.found.summary = self.root.shared.reduction.collapse(frame.found.summary);
                self.compare(&frame.expected, &frame.end, &frame.found);
                done = Some(frame.found);
                continue;
            }
            let index = frame.next;
            frame.next += 1;
            let Some(child) = frame.node.child(&self.root.shared.reduction, index) else {
                let (expected, end) = (frame.expected.clone(), frame.end.clone());
                self.report(&expected, &end, "an item is malformed".to_owned());
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

    /// Begins with a node; returns its totals if it is a leaf or unreadable.
    fn open(
        &mut self,
        frames: &mut Vec<CheckFrame<R::Summary>>,
        expected: Child<R::Summary>,
        end: Option<Vec<u8>>,
        read: Result<Arc<Node>, TreeError>,
    ) -> Result<Option<Totals<R::Summary>>, TreeError> {
        (self.progress)(expected.pointer.aligned_length());
        let node = match read {
            Ok(node) => node,
            Err(error) => {
                self.report_unreadable(error, expected.separator.clone(), end)?;
                // Assumes the parent's record, so that one problem isn't reported many times.
                let Child { count, live_bytes, summary, .. } = expected;
                return Ok(Some(Totals { count, live_bytes, summary }));
            }
        };
        self.check_order(&node, &expected, &end);
        let live_bytes = expected.pointer.aligned_length();
        let mut found = Totals { count: 0, live_bytes, summary: self.root.shared.reduction.zero() };
        if !node.is_leaf() {
            frames.push(CheckFrame { node, expected, end, next: 0, read: Vec::new(), found });
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
        found.summary = reduction.collapse(found.summary);
        self.compare(&expected, &end, &found);
        Ok(Some(found))
    }

    /// Verifies that a node's keys ascend and lie within the bounds that its parent sets.
    fn check_order(&mut self, node: &Node, expected: &Child<R::Summary>, end: &Option<Vec<u8>>) {
        let ascends = (1..node.len()).all(|index| node.key_rest(index - 1) < node.key_rest(index));
        if !ascends {
            self.report(expected, end, "its keys don't ascend".to_owned());
        }
        let (first, last) = (node.key(0), node.key(node.len() - 1));
        let is_after = !node.is_leaf() || self.last_key.as_ref().is_none_or(|key| *key < first);
        if first < expected.separator || !is_after || end.as_ref().is_some_and(|end| last >= *end) {
            self.report(expected, end, "it has keys of its neighbours".to_owned());
        }
        if node.is_leaf() {
            self.last_key = Some(last);
        }
    }

    /// Compares the totals under a node with its parent's record.
    fn compare(&mut self, expected: &Child<R::Summary>, end: &Option<Vec<u8>>, found: &Totals<R::Summary>) {
        if found.count != expected.count {
            self.report(expected, end, format!("it has {} entries, not {}", found.count, expected.count));
        }
        if found.live_bytes != expected.live_bytes {
            self.report(
                expected,
                end,
                format!("it has {} bytes, not {}", found.live_bytes, expected.live_bytes),
            );
        }
        if found.summary != expected.summary {
            self.report(
                expected,
                end,
                format!("its summary is {:?}, not {:?}", found.summary, expected.summary),
            );
        }
    }

    fn report(&mut self, expected: &Child<R::Summary>, end: &Option<Vec<u8>>, what: String) {
        let start = expected.separator.clone();
        self.problems.push(Problem { offset: expected.pointer.offset, what, start, end: end.clone() });
    }

    /// Reports damage as a problem; passes the system's error on.
    fn report_unreadable(
        &mut self,
        error: TreeError,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
    ) -> Result<(), TreeError> {
        let TreeError::Damaged(Damage { offset, what, .. }) = error else { return Err(error) };
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

/// The children from `first` on, up to [`READ_COUNT_MAX`], in reverse order. The list ends before an item
/// that can't be decoded; the caller has already decoded the first.
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
