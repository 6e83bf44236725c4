//! The messages of a mailing list archive: documents of exactly 1 KiB whose members a view can sort and group by.
//!
//! A message derives from its number, so that a reader knows the rows that a view must have. Its text consists of
//! lines from a pool of random words.
//!
//! ```json
//! {"_id":"0000000000000042","list":"storage","from":"ida.olsen@example.org","to":"storage@lists.example.org",
//!  "date":{"day":20030412,"second":51234.25},"subject":"…","serial":8447,"lines":31,
//!  "parts":[{"type":"text/plain","bytes":823},{"type":"text/html","bytes":1423}],"body":"…"}
//! ```

use std::io::Write as _;
use std::sync::OnceLock;

use crate::random::split_mix;

/// Size in bytes of a message's JSON text, without a revision.
pub(crate) const MESSAGE_BYTES: usize = 1024;

/// Largest number of messages of an archive: below [`SERIAL_STEP`], which must have no factor in common with it.
pub(crate) const MESSAGE_COUNT_MAX: u64 = (1 << 31) - 2;

/// Difference of the serials of two successive messages: a prime.
const SERIAL_STEP: u64 = (1 << 31) - 1;

/// Difference of the days of a message before and after its edit.
const EDITED_DAYS: u64 = 100_000;

/// Size in bytes of the pool of text, and of a line of a body.
const POOL_BYTES: usize = 256 << 10;
const LINE_BYTES: usize = 68;

/// Number of characters of a subject.
const SUBJECT_BYTES: usize = 40;

/// Seeds of a message's members and of its text.
const MEMBER_SEED: u64 = 0x6d61_696c;
const TEXT_SEED: u64 = 0x7465_7874;

/// The lists, in the order of collation.
const LISTS: [&str; 16] = [
    "archive",
    "build",
    "compiler",
    "database",
    "drivers",
    "editors",
    "embedded",
    "filesystems",
    "graphics",
    "kernel",
    "network",
    "packages",
    "release",
    "security",
    "storage",
    "users",
];

/// The senders' names, each in the order of collation, none the beginning of another.
const FIRST_NAMES: [&str; 12] =
    ["bea", "carl", "dora", "emil", "flora", "greta", "hugo", "ida", "jonas", "karin", "lena", "max"];
const SURNAMES: [&str; 12] = [
    "abel", "berg", "conti", "dietz", "ekman", "fontaine", "gruber", "hansen", "ivanov", "jensen", "keller",
    "olsen",
];

/// Words of the text.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "with", "as", "was", "on", "be", "by",
    "this", "are", "or", "from", "patch", "server", "index", "release", "commit", "driver", "memory",
    "table", "thread", "kernel", "version", "module", "buffer", "network", "packet", "request", "signal",
    "failure", "branch", "build", "machine", "system", "library", "function", "pointer", "question",
    "answer", "problem", "reason", "change", "review", "option", "default", "number", "always", "never",
    "before", "after", "however", "maybe", "please", "thanks", "regards", "today",
];

/// Number of lists.
pub(crate) const LIST_COUNT: usize = LISTS.len();

/// Number of senders.
pub(crate) const SENDER_COUNT: usize = FIRST_NAMES.len() * SURNAMES.len();

/// The list with an index; indexes are in the order of collation.
pub(crate) fn list(index: usize) -> &'static str {
    LISTS[index]
}

/// The address of the sender with an index; indexes are in the order of collation.
pub(crate) fn sender(index: usize) -> String {
    format!("{}.{}@example.org", FIRST_NAMES[index / SURNAMES.len()], SURNAMES[index % SURNAMES.len()])
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) number: u64,
    /// Index of its list.
    pub(crate) list: usize,
    /// Index of its sender.
    pub(crate) sender: usize,
    /// The date as a number: 20030412.
    pub(crate) day: u64,
    /// The time of day in quarters of a second; odd, so that it is no integer.
    quarters: u64,
    /// A number below the archive's count that no other message of it has, in another order than the numbers.
    pub(crate) serial: u64,
    lines: u64,
}

impl Message {
    /// The message with a number in an archive of `count` messages.
    pub(crate) fn new(number: u64, count: u64) -> Message {
        assert!(count <= MESSAGE_COUNT_MAX, "serials are unique");
        assert!(number < count, "the archive has the message");
        let random = |member: u64| split_mix(number * 8 + member, MEMBER_SEED);
        // Of two random senders the first, so that some write more than others.
        let sender = |member| (random(member) % SENDER_COUNT as u64) as usize;
        let (year, month, day) =
            (random(3) % 13 + 1998, (random(3) >> 16) % 12 + 1, (random(3) >> 32) % 28 + 1);
        Message {
            number,
            list: (random(0) % LIST_COUNT as u64) as usize,
            sender: sender(1).min(sender(2)),
            day: year * 10_000 + month * 100 + day,
            quarters: (random(4) % (86_400 * 4)) | 1,
            serial: number * SERIAL_STEP % count,
            lines: random(5) % 200 + 5,
        }
    }

    /// The message after its edit: its date is another one.
    pub(crate) fn edited(self) -> Message {
        Message { day: self.day + EDITED_DAYS, ..self }
    }

    /// The document's id.
    pub(crate) fn id(&self) -> String {
        format!("{:016}", self.number)
    }

    /// The time of day in seconds, as JSON.
    pub(crate) fn second(&self) -> String {
        format!("{}.{}", self.quarters / 4, if self.quarters % 4 == 1 { 25 } else { 75 })
    }

    /// The list, sender, day and time: a key of four parts, as JSON.
    pub(crate) fn key(&self) -> String {
        format!("[\"{}\",\"{}\",{},{}]", list(self.list), sender(self.sender), self.day, self.second())
    }

    /// Appends the document, with `revision` if there is one.
    pub(crate) fn write(&self, revision: Option<&str>, out: &mut Vec<u8>) {
        let start = out.len();
        let (list, sender, random) =
            (list(self.list), sender(self.sender), split_mix(self.number, TEXT_SEED));
        let (plain, html) = (random % 900 + 100, (random >> 16) % 9000 + 1000);
        write!(
            out,
            "{{\"_id\":\"{:016}\",\"list\":\"{list}\",\"from\":\"{sender}\",\"to\":\"{list}@lists.example.org\",\
             \"date\":{{\"day\":{},\"second\":{}}},\"subject\":\"Re: {}\",\"serial\":{},\"lines\":{},\
             \"parts\":[{{\"type\":\"text/plain\",\"bytes\":{plain}}},{{\"type\":\"text/html\",\"bytes\":{html}}}],\
             \"body\":\"",
            self.number,
            self.day,
            self.second(),
            words(random, SUBJECT_BYTES),
            self.serial,
            self.lines,
        )
        .expect("writing to memory");
        let end = start + MESSAGE_BYTES - "\"}".len();
        write_lines(random, end - out.len(), out);
        out.extend_from_slice(b"\"");
        if let Some(revision) = revision {
            write!(out, ",\"_rev\":\"{revision}\"").expect("writing to memory");
        }
        out.push(b'}');
    }
}

/// Appends lines of text, separated by escaped newlines, `length` bytes in all.
fn write_lines(seed: u64, length: usize, out: &mut Vec<u8>) {
    const NEWLINE: &[u8] = b"\\n";
    let end = out.len() + length;
    for line in 1.. {
        let left = end - out.len();
        if left <= LINE_BYTES + NEWLINE.len() {
            out.extend_from_slice(words(split_mix(line, seed), left).as_bytes());
            return;
        }
        out.extend_from_slice(words(split_mix(line, seed), LINE_BYTES).as_bytes());
        out.extend_from_slice(NEWLINE);
    }
}

/// A text of `length` bytes from the pool.
fn words(random: u64, length: usize) -> &'static str {
    let start = (random % (POOL_BYTES - length) as u64) as usize;
    &pool()[start..start + length]
}

/// Random words, in ASCII, without a character that JSON escapes.
fn pool() -> &'static str {
    static POOL: OnceLock<String> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut pool = String::with_capacity(POOL_BYTES + 16);
        for index in 0.. {
            let random = split_mix(index, TEXT_SEED);
            // Of two random words the first, so that some are more frequent.
            let word = (random % 64).min((random >> 8) % 64);
            pool.push_str(WORDS[word as usize]);
            pool.push_str(if (random >> 16).is_multiple_of(9) { ". " } else { " " });
            if pool.len() >= POOL_BYTES {
                break;
            }
        }
        pool
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_message_is_json_of_exactly_its_size_with_the_members_of_its_key() {
        for number in [0, 7, 99_999] {
            let message = Message::new(number, 100_000);
            for message in [message, message.edited()] {
                let mut text = Vec::new();
                message.write(None, &mut text);
                assert_eq!(text.len(), MESSAGE_BYTES, "{}", String::from_utf8_lossy(&text));
                let parsed: Value = serde_json::from_slice(&text).unwrap();
                let date = &parsed["date"];
                let key = [&parsed["list"], &parsed["from"], &date["day"], &date["second"]];
                assert_eq!(
                    serde_json::from_str::<Vec<Value>>(&message.key()).unwrap().iter().collect::<Vec<_>>(),
                    key
                );
                assert!(date["second"].is_f64() && date["day"].is_u64(), "{date}");
                assert_eq!(
                    (&parsed["_id"], &parsed["serial"]),
                    (&message.id().into(), &message.serial.into())
                );
                text.clear();
                message.write(Some("1-abc"), &mut text);
                assert_eq!(serde_json::from_slice::<Value>(&text).unwrap()["_rev"], "1-abc");
            }
            assert_ne!(message, message.edited());
        }
    }

    #[test]
    fn every_serial_below_the_count_occurs_once() {
        for count in [1, 2, 300, 1000, 110_240] {
            let mut serials: Vec<u64> = (0..count).map(|number| Message::new(number, count).serial).collect();
            serials.sort_unstable();
            assert!(serials.iter().copied().eq(0..count), "{count}");
        }
    }

    #[test]
    fn lists_and_senders_are_sorted_and_all_occur() {
        assert!(LISTS.is_sorted());
        let senders: Vec<String> = (0..SENDER_COUNT).map(sender).collect();
        assert!(senders.is_sorted());
        let mut found = vec![false; LIST_COUNT * SENDER_COUNT];
        for number in 0..1_000_000 {
            let message = Message::new(number, 1_000_000);
            found[message.list * SENDER_COUNT + message.sender] = true;
        }
        let missing = found.iter().filter(|found| !**found).count();
        assert!(missing < 20, "{missing} pairs of {}", found.len());
    }
}
