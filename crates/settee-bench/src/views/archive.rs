//! The archive that the parts read: what its views must contain, and their functions.

use serde_json::json;
use settee_client::encode_segment;

use crate::api::bench::directory;
use crate::documents::Generator;
use crate::mail::{LIST_COUNT, Message, SENDER_COUNT, list, sender};

/// Number of messages of which one is edited.
pub(super) const EDITED_EACH: u64 = 100;

/// A view of a design document of the same name.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) name: String,
    pub(super) map: String,
    pub(super) reduce: Option<&'static str>,
}

impl View {
    /// The view of the test of 2011: keys of two strings, an integer and a float, and arrays of objects as values.
    pub(super) fn mail() -> View {
        View { reduce: Some("_count"), ..View::mail_with("mail", "") }
    }

    /// The same map function for an index of its own, since it has another text.
    pub(super) fn mail_beside(round: &str) -> View {
        View::mail_with(&format!("beside-{round}"), &format!(" /* {round} */"))
    }

    fn mail_with(name: &str, comment: &str) -> View {
        let map = format!(
            "function (doc) {{ emit([doc.list, doc.from, doc.date.day, doc.date.second], doc.parts);{comment} }}"
        );
        View { name: name.to_owned(), map, reduce: None }
    }

    /// Rows of about 50 bytes; a message's key is its serial.
    pub(super) fn small() -> View {
        let map = "function (doc) { emit(doc.serial, doc.lines); }".to_owned();
        View { name: "small".to_owned(), map, reduce: None }
    }

    /// The same rows by a function that needs a JavaScript engine.
    pub(super) fn engine() -> View {
        let map =
            "function (doc) { if (/^[a-z]+[.]/.test(doc.from)) { emit(doc.serial, doc.lines); } }".to_owned();
        View { name: "engine".to_owned(), map, reduce: None }
    }

    /// The design document, which isn't kept up in the background.
    pub(super) fn design(&self) -> String {
        let mut view = json!({ "map": self.map });
        if let Some(reduce) = self.reduce {
            view["reduce"] = reduce.into();
        }
        json!({ "language": "javascript", "autoupdate": false, "views": { &self.name: view } }).to_string()
    }
}

/// The database of an archive, and how many messages each list has of each sender.
#[derive(Debug, Clone)]
pub(super) struct Archive {
    /// The database's path.
    pub(super) path: String,
    /// Number of messages.
    pub(super) count: u64,
    /// Whether one message in [`EDITED_EACH`] has been edited.
    is_edited: bool,
    /// For each pair of list and sender, in the order of the view's rows, the number of rows up to its last.
    ends: Vec<u64>,
}

impl Archive {
    pub(super) fn new(database: &str, count: u64) -> Archive {
        let mut ends = vec![0; LIST_COUNT * SENDER_COUNT];
        for number in 0..count {
            ends[pair(&Message::new(number, count))] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        Archive { path: directory(database), count, is_edited: false, ends }
    }

    /// The archive after the edit of one message in [`EDITED_EACH`].
    pub(super) fn edited(&self) -> Archive {
        Archive { is_edited: true, ..self.clone() }
    }

    /// The message with a number, as it is now.
    pub(super) fn message(&self, number: u64) -> Message {
        let message = Message::new(number, self.count);
        if self.is_edited && number.is_multiple_of(EDITED_EACH) { message.edited() } else { message }
    }

    /// The path of a view.
    pub(super) fn view(&self, view: &View) -> String {
        format!("{}/_design/{name}/_view/{name}", self.path, name = encode_segment(&view.name))
    }

    /// A random message whose row is followed by at least `rows` rows of the view [`View::mail`].
    pub(super) fn message_before(&self, rows: u64, generator: &mut Generator) -> Message {
        assert!(
            self.ends[self.ends.len() / 2] + rows <= self.count,
            "many messages have enough rows after them"
        );
        loop {
            let message = self.message(generator.below(self.count));
            if self.ends[pair(&message)] + rows <= self.count {
                return message;
            }
        }
    }

    /// The query of a random range of whole pairs of list and sender, and its number of rows.
    pub(super) fn range(&self, generator: &mut Generator) -> (String, u64) {
        let mut pairs = [(); 2].map(|()| pair(&Message::new(generator.below(self.count), self.count)));
        pairs.sort_unstable();
        let [first, last] = pairs;
        let before = first.checked_sub(1).map_or(0, |index| self.ends[index]);
        let key = |pair: usize, rest: &str| {
            let (list, sender) = (list(pair / SENDER_COUNT), sender(pair % SENDER_COUNT));
            encode_segment(&format!("[\"{list}\",\"{sender}\"{rest}]"))
        };
        (format!("startkey={}&endkey={}", key(first, ""), key(last, ",{}")), self.ends[last] - before)
    }

    /// Number of groups at group level 1 or 2.
    pub(super) fn group_count(&self, level: u32) -> u64 {
        let width = if level == 1 { SENDER_COUNT } else { 1 };
        let mut before = 0;
        let is_new = |end: &&u64| std::mem::replace(&mut before, **end) < **end;
        self.ends.iter().skip(width - 1).step_by(width).filter(is_new).count() as u64
    }
}

/// Position of a message's list and sender in the order of the view's rows.
fn pair(message: &Message) -> usize {
    message.list * SENDER_COUNT + message.sender
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn groups_and_ranges_are_those_of_the_messages() {
        let archive = Archive::new("x", 5_000);
        let messages: Vec<Message> = (0..5_000).map(|number| archive.message(number)).collect();
        let lists: BTreeSet<usize> = messages.iter().map(|message| message.list).collect();
        let pairs: BTreeSet<usize> = messages.iter().map(pair).collect();
        assert_eq!(
            (archive.group_count(1), archive.group_count(2)),
            (lists.len() as u64, pairs.len() as u64)
        );
        let mut generator = Generator::new(1);
        for _ in 0..50 {
            let message = archive.message_before(100, &mut generator);
            let after = messages.iter().filter(|other| pair(other) > pair(&message)).count();
            assert!(after >= 100, "{after}");
            let (query, rows) = archive.range(&mut generator);
            assert!(query.starts_with("startkey=%5B%22") && (1..=5_000).contains(&rows), "{query}: {rows}");
        }
        assert_eq!(archive.ends.last(), Some(&5_000));
    }

    #[test]
    fn an_edit_moves_one_message_in_a_hundred_and_leaves_its_group() {
        let before = Archive::new("x", 1_000);
        let after = before.edited();
        let moved: Vec<u64> = (0..1_000)
            .filter(|&number| before.message(number).key() != after.message(number).key())
            .collect();
        assert!(moved.iter().copied().eq((0..1_000).step_by(EDITED_EACH as usize)));
        assert!(moved.iter().all(|&number| pair(&before.message(number)) == pair(&after.message(number))));
    }
}
