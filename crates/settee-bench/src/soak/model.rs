//! What a client knows that the server has acknowledged.
//!
//! Contents are made from seeds, so that a model holds numbers and can tell each byte.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

/// SplitMix64: the soak's own, so that a seed means the same for ever.
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

    /// From 1 to `most`, each order of magnitude as often as another.
    pub(super) fn size(&mut self, most: u64) -> usize {
        let bits = self.below(u64::from(most.ilog2()) + 1);
        (1 + self.below(1 << bits) + (1 << bits) - 1).min(most) as usize
    }
}

/// The bytes of a seed: text of letters and digits, which gzip makes smaller, or any bytes.
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

/// Bytes of the longest text in a document.
const TEXT_BYTES_MAX: u64 = 8 << 10;

/// The members of a document of that seed.
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

/// An attachment: what it holds.
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

/// A revision of a document, or what an edit makes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It never was, or was purged.
    Absent,
    /// The revision is unknown where the answer was lost.
    Deleted(Option<String>),
    /// The seed of its body, and its attachments.
    Live { rev: String, seed: u64, files: BTreeMap<String, File> },
}

impl State {
    pub(super) fn rev(&self) -> Option<&str> {
        match self {
            State::Live { rev, .. } => Some(rev),
            State::Deleted(rev) => rev.as_deref(),
            State::Absent => None,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self, State::Live { .. })
    }

    /// Whether a document is as this says; of one whose answer is to come the revision is unknown.
    fn is_shown_by(&self, found: &Value) -> bool {
        let State::Live { rev, seed, files } = self else { return false };
        let has_rev = rev.is_empty() || found["_rev"] == rev.as_str();
        has_rev && has_body(found, *seed) && has_files(found, files)
    }
}

/// A document: what was acknowledged, and what was sent since and never answered.
#[derive(Debug, Clone)]
pub(super) struct Doc {
    pub(super) state: State,
    /// Its revision isn't known yet: empty.
    pub(super) pending: Option<State>,
}

/// A local document: its seed and revision, and the seed of a write that was never answered.
pub(super) type Local = (Option<(u64, String)>, Option<u64>);

/// What a backup may hold of one client's documents: what was known when it began, and what was sent and
/// acknowledged while it was made.
#[derive(Debug, Default)]
pub(super) struct Window {
    docs: HashMap<String, Doc>,
    since: HashMap<String, Vec<State>>,
    locals: HashMap<String, Local>,
    locals_since: HashMap<String, Vec<u64>>,
}

impl Window {
    /// The documents that are known, deleted ones included.
    pub(super) fn ids(&self) -> impl Iterator<Item = &String> {
        self.docs.keys().chain(self.since.keys().filter(|id| !self.docs.contains_key(*id)))
    }

    /// Which of the states that a document may have `found` shows.
    ///
    /// # Errors
    /// None of them.
    pub(super) fn state_of(&self, id: &str, found: Option<&Value>) -> Result<&State, String> {
        let begun = self.docs.get(id);
        let before = begun.map_or(&State::Absent, |doc| &doc.state);
        let pending = begun.and_then(|doc| doc.pending.as_ref());
        let since = self.since.get(id).into_iter().flatten();
        let states = || [Some(before), pending].into_iter().flatten().chain(since.clone());
        let is_it = |state: &&State| match found {
            Some(found) => state.is_shown_by(found),
            None => !state.is_live(),
        };
        // One whose revision is known tells more.
        let known = states().filter(|state| state.rev().is_some_and(|rev| !rev.is_empty())).find(is_it);
        known.or_else(|| states().find(is_it)).ok_or_else(|| {
            let states: Vec<&State> = states().collect();
            format!("it is {}; known: {states:?}", shown(found.unwrap_or(&Value::Null)))
        })
    }

    /// The local documents: whether each may be missing, and the seeds that it may have.
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

/// What one client wrote. Nobody else writes its documents.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) docs: HashMap<String, Doc>,
    /// Live and deleted ids, to choose from.
    pub(super) ids: Vec<String>,
    pub(super) next_id: u64,
    pub(super) purged: HashSet<String>,
    /// Local documents by name.
    pub(super) locals: HashMap<String, Local>,
    /// Answered with 202: id and seed.
    pub(super) maybe: Vec<(String, u64)>,
    pub(super) counts: Counts,
    /// There while a backup is made.
    pub(super) window: Option<Window>,
}

/// What was done.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    /// Requests that were answered.
    pub(super) requests: u64,
    /// Writes of documents that were acknowledged by 200 or 201.
    pub(super) acknowledged: u64,
    /// By 202.
    pub(super) accepted: u64,
    /// Of these, found when they were looked for, and gone.
    pub(super) accepted_found: u64,
    pub(super) accepted_lost: u64,
    /// Sent and never answered: found done, and not done.
    pub(super) unanswered_done: u64,
    pub(super) unanswered_undone: u64,
    /// Documents, and attachments, whose content was compared at a verification.
    pub(super) verified: u64,
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
    /// From now on notes what a backup may hold.
    pub(super) fn begin_window(&mut self) {
        let (docs, locals) = (self.docs.clone(), self.locals.clone());
        self.window = Some(Window { docs, locals, ..Window::default() });
    }

    fn note(&mut self, id: &str, state: &State) {
        if let Some(window) = &mut self.window {
            window.since.entry(id.to_owned()).or_default().push(state.clone());
        }
    }

    /// Notes what is being sent of a local document.
    pub(super) fn send_local(&mut self, name: &str, local: Local) {
        if let (Some(window), Some(seed)) = (&mut self.window, local.1) {
            window.locals_since.entry(name.to_owned()).or_default().push(seed);
        }
        self.locals.insert(name.to_owned(), local);
    }

    /// Takes in what an answer said of a document.
    pub(super) fn set(&mut self, id: &str, state: State) {
        self.counts.acknowledged += 1;
        self.note(id, &state);
        match self.docs.get_mut(id) {
            Some(doc) => *doc = Doc { state, pending: None },
            None => {
                self.docs.insert(id.to_owned(), Doc { state, pending: None });
                self.ids.push(id.to_owned());
            }
        }
    }

    /// Notes what is being sent.
    pub(super) fn send(&mut self, id: &str, pending: State) {
        self.note(id, &pending);
        let doc = self.docs.entry(id.to_owned()).or_insert_with(|| {
            self.ids.push(id.to_owned());
            Doc { state: State::Absent, pending: None }
        });
        doc.pending = Some(pending);
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.note(id, &State::Absent);
        self.docs.remove(id);
        self.ids.retain(|other| other != id);
    }

    /// A document for which nothing is pending; None where the one that was drawn isn't such.
    pub(super) fn draw(&self, random: &mut Random, wanted: impl Fn(&State) -> bool) -> Option<String> {
        let count = self.ids.len() as u64;
        // A few draws find one where there are many.
        (0..8).filter(|_| count > 0).find_map(|_| {
            let id = &self.ids[random.below(count) as usize];
            let doc = &self.docs[id];
            (doc.pending.is_none() && wanted(&doc.state)).then(|| id.clone())
        })
    }
}

/// What the server says of a document, judged by what the model knows: the state that it is in.
///
/// # Errors
/// How it contradicts everything that it may be.
pub(super) fn judge(doc: &Doc, found: Option<&Value>) -> Result<State, String> {
    let candidates = [Some(&doc.state), doc.pending.as_ref()];
    let Some(found) = found else {
        let gone = candidates.into_iter().flatten().find(|state| !state.is_live());
        return gone.cloned().ok_or_else(|| format!("it is gone; known: {:?}", doc.state));
    };
    match candidates.into_iter().flatten().find(|state| state.is_shown_by(found)) {
        Some(State::Live { seed, files, .. }) => {
            let rev = found["_rev"].as_str().unwrap_or_default().to_owned();
            Ok(State::Live { rev, seed: *seed, files: files.clone() })
        }
        _ => Err(format!("it is {}; known: {:?}, pending: {:?}", shown(found), doc.state, doc.pending)),
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

    fn live(rev: &str, seed: u64) -> State {
        State::Live { rev: rev.to_owned(), seed, files: BTreeMap::new() }
    }

    fn answer(rev: &str, seed: u64) -> Value {
        let mut members = body(seed);
        members.insert("_id".to_owned(), "x".into());
        members.insert("_rev".to_owned(), rev.into());
        Value::Object(members)
    }

    #[test]
    fn what_was_acknowledged_must_be_there_and_what_was_not_may_be() {
        let doc = Doc { state: live("1-a", 5), pending: Some(live("", 6)) };
        assert_eq!(judge(&doc, Some(&answer("1-a", 5))), Ok(live("1-a", 5)));
        assert_eq!(judge(&doc, Some(&answer("2-b", 6))), Ok(live("2-b", 6)));
        assert!(judge(&doc, Some(&answer("1-b", 5))).is_err(), "another revision");
        assert!(judge(&doc, Some(&answer("2-b", 7))).is_err(), "other content");
        assert!(judge(&doc, None).is_err(), "lost");
        let deleting = Doc { state: live("1-a", 5), pending: Some(State::Deleted(None)) };
        assert_eq!(judge(&deleting, None), Ok(State::Deleted(None)));
    }

    #[test]
    fn a_backup_may_hold_what_was_known_when_it_began_and_what_came_meanwhile() {
        let mut model = Model::default();
        model.set("kept", live("1-a", 1));
        model.set("purged", State::Deleted(Some("2-b".to_owned())));
        model.begin_window();
        model.send("kept", live("", 2));
        model.set("kept", live("2-c", 2));
        model.send("new", live("", 3));
        model.forget("purged");
        let window = model.window.take().unwrap();
        assert_eq!(window.state_of("kept", Some(&answer("1-a", 1))), Ok(&live("1-a", 1)));
        assert_eq!(window.state_of("kept", Some(&answer("2-c", 2))), Ok(&live("2-c", 2)));
        assert!(window.state_of("kept", None).is_err(), "lost");
        assert!(window.state_of("kept", Some(&answer("1-x", 1))).is_err(), "another revision");
        assert!(window.state_of("kept", Some(&answer("3-d", 4))).is_err(), "other content");
        assert!(
            window.state_of("new", None).is_ok() && window.state_of("new", Some(&answer("1-e", 3))).is_ok()
        );
        assert!(window.state_of("purged", None).is_ok());
        assert!(window.state_of("purged", Some(&answer("2-b", 1))).is_err(), "it was deleted before");
        let mut ids: Vec<&String> = window.ids().collect();
        ids.sort();
        assert_eq!(ids, ["kept", "new", "purged"]);
    }

    #[test]
    fn a_seed_gives_the_same_bytes_and_another_one_others() {
        assert_eq!(content(1, 1_000, false), content(1, 1_000, false));
        assert_ne!(content(1, 1_000, true), content(2, 1_000, true));
        assert!(content(3, 999, true).is_ascii());
        let mut random = Random::new(1);
        assert!((0..1_000).all(|_| (1..=2 << 20).contains(&random.size(2 << 20))));
    }
}
