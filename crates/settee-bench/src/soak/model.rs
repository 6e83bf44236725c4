//! A writer's model of the content that the server has acknowledged.
//!
//! Contents are generated from seeds, so that a model stores only numbers and can reproduce each byte.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

/// A SplitMix64 generator. It is implemented here so that a seed always gives the same run.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`, which isn't 0.
    pub(super) fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// A size from 1 to `max`. Each power of two is equally probable.
    pub(super) fn size(&mut self, max: u64) -> usize {
        let bits = self.below(u64::from(max.ilog2()) + 1);
        (1 + self.below(1 << bits) + (1 << bits) - 1).min(max) as usize
    }
}

/// The content of a seed: text of letters and digits, which gzip can compress, or random bytes.
pub(super) fn content(seed: u64, size: usize, is_text: bool) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        let word = random.next().to_le_bytes();
        match is_text {
            true => bytes.extend(word.map(|byte| LETTERS[usize::from(byte & 63)])),
            false => bytes.extend_from_slice(&word),
        }
    }
    bytes.truncate(size);
    bytes
}

/// Maximum bytes of the text in a document.
const TEXT_BYTES_MAX: u64 = 8 << 10;

/// The members of the document of a seed.
pub(super) fn body(seed: u64) -> serde_json::Map<String, Value> {
    let mut random = Random::new(seed);
    let size = random.size(TEXT_BYTES_MAX);
    let text = String::from_utf8(content(random.next(), size, true)).expect("letters");
    let Value::Object(members) = json!({ "seed": seed.to_string(), "text": text, "list": [1, null, "é"] })
    else {
        unreachable!("an object")
    };
    members
}

/// The content of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File {
    pub(super) seed: u64,
    pub(super) size: usize,
    pub(super) is_text: bool,
}

impl File {
    pub(super) fn bytes(&self) -> Vec<u8> {
        content(self.seed, self.size, self.is_text)
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.is_text { "text/plain" } else { "application/octet-stream" }
    }
}

/// The state of a document, or the state after an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DocState {
    /// It was never stored, or it was purged.
    Absent,
    /// Deleted. The revision is unknown if the response was lost.
    Deleted(Option<String>),
    /// Live, with the seed of its body and its attachments. The revision is empty before the response.
    Live { rev: String, seed: u64, files: BTreeMap<String, File> },
}

impl DocState {
    pub(super) fn rev(&self) -> Option<&str> {
        match self {
            DocState::Live { rev, .. } => Some(rev),
            DocState::Deleted(rev) => rev.as_deref(),
            DocState::Absent => None,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self, DocState::Live { .. })
    }

    /// Whether a document read from the server is in this state. An empty revision matches any.
    fn matches(&self, found: &Value) -> bool {
        let DocState::Live { rev, seed, files } = self else { return false };
        let has_rev = rev.is_empty() || found["_rev"] == rev.as_str();
        has_rev && has_body(found, *seed) && has_files(found, files)
    }
}

/// A document of the model.
#[derive(Debug, Clone)]
pub(super) struct Doc {
    /// The acknowledged state.
    pub(super) state: DocState,
    /// The state after an edit without a response, with an empty revision.
    pub(super) pending: Option<DocState>,
}

/// A local document: its acknowledged seed and revision, and the seed of a write without a response.
pub(super) type Local = (Option<(u64, String)>, Option<u64>);

/// The states of one writer's documents that a backup may contain: the model at its beginning, and the edits
/// sent and acknowledged while it was made.
#[derive(Debug, Default)]
pub(super) struct BackupWindow {
    docs: HashMap<String, Doc>,
    since: HashMap<String, Vec<DocState>>,
    locals: HashMap<String, Local>,
    locals_since: HashMap<String, Vec<u64>>,
}

impl BackupWindow {
    /// The ids of all documents, deleted ones included.
    pub(super) fn ids(&self) -> impl Iterator<Item = &String> {
        self.docs.keys().chain(self.since.keys().filter(|id| !self.docs.contains_key(*id)))
    }

    /// Returns the state, of those that a document may have, that matches `found`.
    ///
    /// # Errors
    /// A description if none matches.
    pub(super) fn state_of(&self, id: &str, found: Option<&Value>) -> Result<&DocState, String> {
        let doc = self.docs.get(id);
        let before = doc.map_or(&DocState::Absent, |doc| &doc.state);
        let pending = doc.and_then(|doc| doc.pending.as_ref());
        let since = self.since.get(id).into_iter().flatten();
        let states = || [Some(before), pending].into_iter().flatten().chain(since.clone());
        let matches = |state: &&DocState| match found {
            Some(found) => state.matches(found),
            None => !state.is_live(),
        };
        // Prefers a state with a known revision.
        let known = states().filter(|state| state.rev().is_some_and(|rev| !rev.is_empty())).find(matches);
        known.or_else(|| states().find(matches)).ok_or_else(|| {
            let states: Vec<&DocState> = states().collect();
            format!("it is {}; expected: {states:?}", shown(found.unwrap_or(&Value::Null)))
        })
    }

    /// The local documents, each with whether it may be missing and with the seeds that it may have.
    pub(super) fn locals(&self) -> impl Iterator<Item = (&String, (bool, Vec<u64>))> {
        let names = self.locals_since.keys().filter(|name| !self.locals.contains_key(*name));
        self.locals.keys().chain(names).map(|name| {
            let (known, pending) = self.locals.get(name).cloned().unwrap_or_default();
            let since = self.locals_since.get(name).into_iter().flatten().copied();
            let seeds = known.iter().map(|(seed, _)| *seed).chain(pending).chain(since).collect();
            (name, (known.is_none(), seeds))
        })
    }
}

/// The model of one writer. No other client writes its documents.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) docs: HashMap<String, Doc>,
    /// Live and deleted ids, to choose from.
    pub(super) ids: Vec<String>,
    pub(super) next_id: u64,
    pub(super) purged: HashSet<String>,
    /// Local documents by name.
    pub(super) locals: HashMap<String, Local>,
    /// Ids and seeds of documents written with response 202.
    pub(super) accepted: Vec<(String, u64)>,
    pub(super) counts: Counts,
    /// Set while a backup is made.
    pub(super) window: Option<BackupWindow>,
}

/// Counters of a writer.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    /// Requests with a response.
    pub(super) requests: u64,
    /// Writes of documents with response 200 or 201.
    pub(super) acknowledged: u64,
    /// Writes with response 202.
    pub(super) accepted: u64,
    /// Writes with response 202 that a verification found.
    pub(super) accepted_found: u64,
    /// Writes with response 202 that a verification didn't find.
    pub(super) accepted_lost: u64,
    /// Writes without a response that the server executed.
    pub(super) unanswered_done: u64,
    /// Writes without a response that the server didn't execute.
    pub(super) unanswered_undone: u64,
    /// Documents whose content was compared at verifications.
    pub(super) verified: u64,
    /// Attachments whose content was compared at verifications.
    pub(super) verified_files: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.acknowledged += other.acknowledged;
        self.accepted += other.accepted;
        self.accepted_found += other.accepted_found;
        self.accepted_lost += other.accepted_lost;
        self.unanswered_done += other.unanswered_done;
        self.unanswered_undone += other.unanswered_undone;
        self.verified += other.verified;
        self.verified_files += other.verified_files;
    }
}

impl Model {
    /// Begins to record the states that a backup may contain.
    pub(super) fn begin_window(&mut self) {
        let (docs, locals) = (self.docs.clone(), self.locals.clone());
        self.window = Some(BackupWindow { docs, locals, ..BackupWindow::default() });
    }

    fn record_in_window(&mut self, id: &str, state: &DocState) {
        if let Some(window) = &mut self.window {
            window.since.entry(id.to_owned()).or_default().push(state.clone());
        }
    }

    /// Records a write of a local document before it is sent.
    pub(super) fn send_local(&mut self, name: &str, local: Local) {
        if let (Some(window), Some(seed)) = (&mut self.window, local.1) {
            window.locals_since.entry(name.to_owned()).or_default().push(seed);
        }
        self.locals.insert(name.to_owned(), local);
    }

    /// Records the acknowledged state of a document.
    pub(super) fn set(&mut self, id: &str, state: DocState) {
        self.counts.acknowledged += 1;
        self.record_in_window(id, &state);
        match self.docs.get_mut(id) {
            Some(doc) => *doc = Doc { state, pending: None },
            None => {
                self.docs.insert(id.to_owned(), Doc { state, pending: None });
                self.ids.push(id.to_owned());
            }
        }
    }

    /// Records an edit before it is sent.
    pub(super) fn send(&mut self, id: &str, pending: DocState) {
        self.record_in_window(id, &pending);
        let doc = self.docs.entry(id.to_owned()).or_insert_with(|| {
            self.ids.push(id.to_owned());
            Doc { state: DocState::Absent, pending: None }
        });
        doc.pending = Some(pending);
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.record_in_window(id, &DocState::Absent);
        self.docs.remove(id);
        self.ids.retain(|other| other != id);
    }

    /// Returns a random document in a wanted state without a pending edit, if a few draws find one.
    pub(super) fn draw(&self, random: &mut Random, wanted: impl Fn(&DocState) -> bool) -> Option<String> {
        let count = self.ids.len() as u64;
        (0..8).filter(|_| count > 0).find_map(|_| {
            let id = &self.ids[random.below(count) as usize];
            let doc = &self.docs[id];
            (doc.pending.is_none() && wanted(&doc.state)).then(|| id.clone())
        })
    }
}

/// Compares a document read from the server with the model. Returns its state.
///
/// # Errors
/// A description if it is in none of the expected states.
pub(super) fn judge(doc: &Doc, found: Option<&Value>) -> Result<DocState, String> {
    let candidates = [Some(&doc.state), doc.pending.as_ref()];
    let Some(found) = found else {
        let absent = candidates.into_iter().flatten().find(|state| !state.is_live());
        return absent.cloned().ok_or_else(|| format!("it is missing; expected: {:?}", doc.state));
    };
    match candidates.into_iter().flatten().find(|state| state.matches(found)) {
        Some(DocState::Live { seed, files, .. }) => {
            let rev = found["_rev"].as_str().unwrap_or_default().to_owned();
            Ok(DocState::Live { rev, seed: *seed, files: files.clone() })
        }
        _ => Err(format!("it is {}; expected: {:?}, pending: {:?}", shown(found), doc.state, doc.pending)),
    }
}

fn shown(found: &Value) -> String {
    let mut text = found.to_string();
    text.truncate(text.floor_char_boundary(300));
    text
}

fn has_body(found: &Value, seed: u64) -> bool {
    let Some(object) = found.as_object() else { return false };
    let expected = body(seed);
    let members = object.iter().filter(|(name, _)| !name.starts_with('_'));
    members.clone().count() == expected.len()
        && members.into_iter().all(|(name, value)| expected.get(name) == Some(value))
}

fn has_files(found: &Value, files: &BTreeMap<String, File>) -> bool {
    let stubs = found.get("_attachments").and_then(Value::as_object);
    let count = stubs.map_or(0, serde_json::Map::len);
    count == files.len()
        && files.iter().all(|(name, file)| {
            stubs.and_then(|stubs| stubs.get(name)).is_some_and(|stub| stub["length"] == file.size as u64)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(rev: &str, seed: u64) -> DocState {
        DocState::Live { rev: rev.to_owned(), seed, files: BTreeMap::new() }
    }

    fn document(rev: &str, seed: u64) -> Value {
        let mut members = body(seed);
        members.insert("_id".to_owned(), "x".into());
        members.insert("_rev".to_owned(), rev.into());
        Value::Object(members)
    }

    #[test]
    fn an_acknowledged_state_must_be_found_and_a_pending_one_may_be() {
        let doc = Doc { state: live("1-a", 5), pending: Some(live("", 6)) };
        assert_eq!(judge(&doc, Some(&document("1-a", 5))), Ok(live("1-a", 5)));
        assert_eq!(judge(&doc, Some(&document("2-b", 6))), Ok(live("2-b", 6)));
        assert!(judge(&doc, Some(&document("1-b", 5))).is_err(), "another revision");
        assert!(judge(&doc, Some(&document("2-b", 7))).is_err(), "other content");
        assert!(judge(&doc, None).is_err(), "lost");
        let deleting = Doc { state: live("1-a", 5), pending: Some(DocState::Deleted(None)) };
        assert_eq!(judge(&deleting, None), Ok(DocState::Deleted(None)));
    }

    #[test]
    fn a_backup_may_contain_the_states_from_its_beginning_to_its_end() {
        let mut model = Model::default();
        model.set("kept", live("1-a", 1));
        model.set("purged", DocState::Deleted(Some("2-b".to_owned())));
        model.begin_window();
        model.send("kept", live("", 2));
        model.set("kept", live("2-c", 2));
        model.send("new", live("", 3));
        model.remove("purged");
        let window = model.window.take().unwrap();
        assert_eq!(window.state_of("kept", Some(&document("1-a", 1))), Ok(&live("1-a", 1)));
        assert_eq!(window.state_of("kept", Some(&document("2-c", 2))), Ok(&live("2-c", 2)));
        assert!(window.state_of("kept", None).is_err(), "lost");
        assert!(window.state_of("kept", Some(&document("1-x", 1))).is_err(), "another revision");
        assert!(window.state_of("kept", Some(&document("3-d", 4))).is_err(), "other content");
        assert!(
            window.state_of("new", None).is_ok() && window.state_of("new", Some(&document("1-e", 3))).is_ok()
        );
        assert!(window.state_of("purged", None).is_ok());
        assert!(window.state_of("purged", Some(&document("2-b", 1))).is_err(), "it was deleted before");
        let mut ids: Vec<&String> = window.ids().collect();
        ids.sort();
        assert_eq!(ids, ["kept", "new", "purged"]);
    }

    #[test]
    fn a_seed_determines_the_content() {
        assert_eq!(content(1, 1_000, false), content(1, 1_000, false));
        assert_ne!(content(1, 1_000, true), content(2, 1_000, true));
        assert!(content(3, 999, true).is_ascii());
        let mut random = Random::new(1);
        assert!((0..1_000).all(|_| (1..=2 << 20).contains(&random.size(2 << 20))));
    }
}
