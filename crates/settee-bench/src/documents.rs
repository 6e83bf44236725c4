//! The documents that clients write: of exact sizes, with random text, the same for the same seed.
//!
//! Texts are slices of a pool of random characters, six bits of entropy each, from random offsets. They are
//! as incompressible as JSON text can be and cost one copy, so that generating documents takes little of the
//! measured time. All generators share the pool. The content of a numbered document
//! ([`Generator::numbered_document`]) and of an [`attachment`] derives from its number, so that a reader can
//! check it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;

use crate::random::{random_bytes, split_mix};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Size in bytes of the pool of random text.
const POOL_BYTES: usize = 1 << 20;

/// Size in bytes of the pool of random bytes, for attachments.
const BINARY_POOL_BYTES: usize = 4 << 20;

/// Seed of the pools.
const POOL_SEED: u64 = 0x5e77ee;

/// The member that holds a document's random text.
const TEXT_MEMBER: &str = "rest";

/// 64 characters that JSON doesn't escape.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Documents of the shape and the sizes that CouchDB's `fabric_bench` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DocumentSize {
    /// 333 bytes: a dozen short members
    Small,
    /// 14,553 bytes: prose, tags, and two arrays of a thousand numbers
    Medium,
    /// 145,871 bytes: a medium one and 32 texts of 4 KiB
    Large,
}

impl DocumentSize {
    /// Bytes of the JSON text, `_id` and braces included.
    pub const fn bytes(self) -> usize {
        match self {
            DocumentSize::Small => 333,
            DocumentSize::Medium => 14_553,
            DocumentSize::Large => 145_871,
        }
    }

    /// The name on the command line and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            DocumentSize::Small => "small",
            DocumentSize::Medium => "medium",
            DocumentSize::Large => "large",
        }
    }
}

/// A seeded generator of documents and random numbers.
#[derive(Debug)]
pub struct Generator {
    random: Xoshiro256PlusPlus,
    pool: &'static [u8],
    /// The two arrays, which are the same in every medium document.
    arrays: &'static str,
}

impl Generator {
    /// Returns a generator. Generators with the same seed produce the same documents.
    pub fn new(seed: u64) -> Generator {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        Generator { random, pool: text_pool(), arrays: arrays() }
    }

    /// Returns a random number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.random.random_range(0..end)
    }

    /// Returns a random id of 32 hexadecimal digits.
    pub fn random_id(&mut self) -> String {
        format!("{:032x}", self.random.random::<u128>())
    }

    /// Appends a document of the `fabric_bench` kind.
    pub fn fabric_document(&mut self, size: DocumentSize, id: &str, out: &mut Vec<u8>) {
        let end = out.len() + size.bytes();
        self.begin(id, out);
        match size {
            DocumentSize::Small => self.small(out),
            DocumentSize::Medium | DocumentSize::Large => self.medium(out),
        }
        if size == DocumentSize::Large {
            for number in 1..=32 {
                self.text_member(&number.to_string(), 4096, out);
            }
        }
        self.finish(end, out);
    }

    /// Appends a document of exactly `bytes` with one random text.
    pub fn document(&mut self, id: &str, bytes: usize, out: &mut Vec<u8>) {
        let end = out.len() + bytes;
        self.begin(id, out);
        self.finish(end, out);
    }

    /// Appends a document of exactly `bytes` whose text derives from `number`; [`is_numbered_document`]
    /// checks it.
    pub fn numbered_document(id: &str, number: u64, bytes: usize, out: &mut Vec<u8>) {
        let length = bytes.checked_sub(frame_bytes(id.len())).expect("the document's size holds its members");
        out.extend_from_slice(b"{\"_id\":\"");
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(b"\",\"rest\":\"");
        out.extend_from_slice(numbered_text(number, length));
        out.extend_from_slice(b"\"}");
    }

    /// Appends a document whose content besides the id is an object of ten bytes.
    pub fn tiny_document(&mut self, id: &str, out: &mut Vec<u8>) {
        self.begin(id, out);
        let number = self.random.random_range(1000..10_000);
        write!(out, ",\"v\":{number}}}").expect("writing to memory");
    }

    fn begin(&mut self, id: &str, out: &mut Vec<u8>) {
        write!(out, "{{\"_id\":\"{id}\"").expect("writing to memory");
    }

    /// Ends a document with a random text that brings it to its size.
    fn finish(&mut self, end: usize, out: &mut Vec<u8>) {
        let frame = ",\"\":\"\"}".len() + TEXT_MEMBER.len();
        let length = end.checked_sub(out.len() + frame).expect("the document's size holds its members");
        self.text_member(TEXT_MEMBER, length, out);
        out.push(b'}');
    }

    fn text_member(&mut self, name: &str, length: usize, out: &mut Vec<u8>) {
        write!(out, ",\"{name}\":").expect("writing to memory");
        self.text(length, out);
    }

    fn text(&mut self, length: usize, out: &mut Vec<u8>) {
        assert!(length < POOL_BYTES, "a text is shorter than the pool");
        let start = self.random.random_range(0..POOL_BYTES - length);
        out.push(b'"');
        out.extend_from_slice(&self.pool[start..start + length]);
        out.push(b'"');
    }

    fn number(&mut self, out: &mut Vec<u8>) {
        let number = self.random.random_range(1_u64..1 << 50);
        write!(out, ",\"number\":{number}").expect("writing to memory");
    }

    fn small(&mut self, out: &mut Vec<u8>) {
        self.number(out);
        out.extend_from_slice(b",\"worker\":72");
        for (name, length) in [
            ("code", 19),
            ("key", 8),
            ("tag", 9),
            ("line", 46),
            ("from", 9),
            ("to", 14),
            ("note", 22),
            ("made", 13),
        ] {
            self.text_member(name, length, out);
        }
        out.extend_from_slice(b",\"done\":false");
    }

    fn medium(&mut self, out: &mut Vec<u8>) {
        self.number(out);
        out.extend_from_slice(
            b",\"index\":0,\"active\":true,\"latitude\":16.091562,\"longitude\":-83.309904",
        );
        for (name, length) in [
            ("blob", 1024),
            ("guid", 36),
            ("name", 11),
            ("firm", 13),
            ("about", 225),
            ("extra", 660),
            ("made", 26),
        ] {
            self.text_member(name, length, out);
        }
        out.extend_from_slice(b",\"tags\":[");
        for tag in 0..15 {
            if tag > 0 {
                out.push(b',');
            }
            self.text(95, out);
        }
        out.push(b']');
        out.extend_from_slice(self.arrays.as_bytes());
    }
}

/// The characters that texts are slices of.
fn text_pool() -> &'static [u8] {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut pool = random_bytes(POOL_SEED, POOL_BYTES);
        for byte in &mut pool {
            *byte = ALPHABET[usize::from(*byte & 63)];
        }
        pool
    })
}

/// Random bytes that attachments, and the responses of the bare server, are slices of.
pub fn binary_pool() -> &'static [u8] {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    POOL.get_or_init(|| random_bytes(POOL_SEED + 1, BINARY_POOL_BYTES))
}

/// Returns the attachment with this number, `bytes` random bytes.
///
/// # Panics
/// If `bytes` isn't less than the pool's size.
pub fn attachment(number: u64, bytes: usize) -> &'static [u8] {
    let start = pool_offset(number, BINARY_POOL_BYTES - bytes);
    &binary_pool()[start..start + bytes]
}

/// Whether `body` is the numbered document as a server returns it: its id and a revision, then the text of
/// its number.
pub fn is_numbered_document(body: &[u8], id: &str, number: u64, bytes: usize) -> bool {
    let rest = body.strip_prefix(b"{\"_id\":\"").and_then(|rest| rest.strip_prefix(id.as_bytes()));
    let Some(rest) = rest.and_then(|rest| rest.strip_prefix(b"\",\"_rev\":\"")) else {
        return false;
    };
    let Some(revision_end) = memchr::memchr(b'"', rest) else {
        return false;
    };
    let frame = frame_bytes(id.len());
    let text = &rest[revision_end + 1..];
    let text = text.strip_prefix(b",\"rest\":\"").map(<[u8]>::trim_ascii_end);
    bytes >= frame
        && text.and_then(|text| text.strip_suffix(b"\"}")) == Some(numbered_text(number, bytes - frame))
}

/// Bytes of a document without its text: its id, members and braces.
fn frame_bytes(id_bytes: usize) -> usize {
    "{\"_id\":\"\",\"\":\"\"}".len() + id_bytes + TEXT_MEMBER.len()
}

/// The text of `length` characters that derives from a number.
fn numbered_text(number: u64, length: usize) -> &'static [u8] {
    let start = pool_offset(number, POOL_BYTES - length);
    &text_pool()[start..start + length]
}

/// Maps a number to a pseudo-random offset below `end`.
fn pool_offset(number: u64, end: usize) -> usize {
    (split_mix(number, POOL_SEED) % end as u64) as usize
}

/// The two arrays of a medium document.
fn arrays() -> &'static str {
    static ARRAYS: OnceLock<String> = OnceLock::new();
    ARRAYS.get_or_init(make_arrays)
}

fn make_arrays() -> String {
    let (mut integers, mut floats) = (String::new(), String::new());
    for number in 1..=1000 {
        let comma = if number > 1 { "," } else { "" };
        write!(integers, "{comma}{number}").expect("writing to memory");
        write!(floats, "{comma}{number}.0").expect("writing to memory");
    }
    format!(",\"integers\":[{integers}],\"floats\":[{floats}]")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const SIZES: [DocumentSize; 3] = [DocumentSize::Small, DocumentSize::Medium, DocumentSize::Large];

    fn make(seed: u64, size: DocumentSize, id: &str) -> Vec<u8> {
        let mut out = Vec::new();
        Generator::new(seed).fabric_document(size, id, &mut out);
        out
    }

    #[test]
    fn documents_are_json_of_exactly_their_size() {
        for size in SIZES {
            for id in ["1", "100000", "340282366920938463463374607431768211455"] {
                let text = make(7, size, id);
                assert_eq!(text.len(), size.bytes(), "{size:?} {id}");
                let document: Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(document["_id"], id);
            }
        }
        for bytes in [64, 1024, 2560] {
            let mut text = Vec::new();
            Generator::new(1).document("0123456789", bytes, &mut text);
            assert_eq!(text.len(), bytes);
            assert!(serde_json::from_slice::<Value>(&text).unwrap()["rest"].is_string());
        }
    }

    #[test]
    fn a_numbered_document_matches_only_its_own_id_number_and_size() {
        let (id, bytes) = ("0000000000000007", 1024);
        let mut text = Vec::new();
        Generator::numbered_document(id, 7, bytes, &mut text);
        assert_eq!(text.len(), bytes);
        let parsed: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(parsed["_id"], id);
        let shown = String::from_utf8(text).unwrap();
        let shown = shown.replace("\",\"rest\"", "\",\"_rev\":\"1-abc\",\"rest\"") + "\n";
        assert!(is_numbered_document(shown.as_bytes(), id, 7, bytes));
        assert!(!is_numbered_document(shown.as_bytes(), id, 8, bytes), "another's text");
        assert!(!is_numbered_document(shown.as_bytes(), "0000000000000008", 7, bytes), "another's id");
        assert!(!is_numbered_document(shown.as_bytes(), id, 7, bytes + 1), "another size");
        assert!(!is_numbered_document(&shown.as_bytes()[..900], id, 7, bytes), "cut");
        assert!(!is_numbered_document(b"{\"error\":\"not_found\"}", id, 7, bytes));
    }

    #[test]
    fn attachments_are_random_and_differ_by_number() {
        assert_eq!(attachment(3, 1 << 20), attachment(3, 1 << 20));
        assert_ne!(attachment(3, 1 << 20), attachment(4, 1 << 20));
        let zeros = attachment(5, 1 << 20).iter().filter(|&&byte| byte == 0).count();
        assert!((2_000..8_000).contains(&zeros), "one in 256: {zeros} of 1,048,576");
    }

    #[test]
    fn a_tiny_document_has_ten_bytes_besides_its_id() {
        let mut text = Vec::new();
        Generator::new(1).tiny_document("x", &mut text);
        let mut document: Value = serde_json::from_slice(&text).unwrap();
        document.as_object_mut().unwrap().remove("_id");
        assert_eq!(document.to_string().len(), 10);
    }

    #[test]
    fn a_seed_determines_the_documents() {
        for size in SIZES {
            assert_eq!(make(3, size, "x"), make(3, size, "x"));
            assert_ne!(make(3, size, "x"), make(4, size, "x"));
        }
    }

    #[test]
    fn successive_documents_and_ids_differ() {
        let mut generator = Generator::new(1);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        generator.document("x", 1024, &mut first);
        generator.document("x", 1024, &mut second);
        assert_ne!(first, second);
        assert_ne!(generator.random_id(), generator.random_id());
    }

    #[test]
    fn text_has_nearly_six_bits_of_entropy_per_character() {
        let mut text = Vec::new();
        Generator::new(9).text(100_000, &mut text);
        let mut counts = [0_f64; 256];
        text[1..text.len() - 1].iter().for_each(|&byte| counts[usize::from(byte)] += 1.0);
        let entropy: f64 =
            counts.iter().filter(|&&n| n > 0.0).map(|n| n / 100_000.0).map(|p| -p * p.log2()).sum();
        assert!(entropy > 5.99, "{entropy} bits a character");
    }
}
