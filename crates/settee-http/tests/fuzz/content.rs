//! Fuzz targets for request bodies: multipart, compressed content, JSON.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use settee_sim::fuzz::{INPUT_BYTES_MAX, Target, check_json};

use crate::body::BodyBudget;
use crate::body::encoding::{GzipDecoder, PART_BYTES};
use crate::body::multipart::{Event, Splitter};
use crate::document::bulk::{Bulk, parse_bulk};
use crate::error::ApiError;
use crate::json;

const BOUNDARY: &str = "bnd";

pub(super) const MULTIPART: Target = Target {
    name: "multipart",
    check: multipart,
    corpus: &[
        b"\x10\x03--bnd\r\nContent-Type: application/json\r\n\r\n{\"a\":1}\r\n--bnd\r\n\r\nhello\r\n--bnd--",
        b"\x01\x01--bnd\r\nContent-Disposition: attachment; filename=\"x\"\r\nContent-Type: text/plain\r\n\r\n\r\n--bnd--",
        b"\x05\x40preamble\r\n--bnd \t\r\nA: b\r\n\tc\r\n\r\n--bn\r\n--bnx\r\n--\r\r\n--bnd--\r\nepilogue",
        b"\xff\xff--bnd--",
        b"\x07\x02\r\n--bnd\r\n\r\n\r\n--bnd\r\n\r\n\r\n--bnd\r\n\r\n\r\n--bnd--",
    ],
    words: &[
        "--bnd", "\r\n--bnd\r\n", "\r\n--bnd--", "\r\n", "\r\n\r\n", "\n", "--", "-", "Content-Type: a/b", ":",
        " ", "\r", "--bn", "Content-Length: 5\r\n",
    ],
    generate: |source| {
        let mut body = source.bytes(2);
        body.resize(2, 7);
        for _ in 0..source.below(4) {
            body.extend_from_slice(if body.len() == 2 { b"--bnd\r\n" } else { b"\r\n--bnd\r\n" });
            for _ in 0..source.below(3) {
                body.extend_from_slice(b"Name: value\r\n");
            }
            body.extend_from_slice(b"\r\n");
            body.extend_from_slice(&source.bytes(40));
        }
        body.extend_from_slice(if body.len() == 2 { b"--bnd--" } else { b"\r\n--bnd--" });
        body
    },
};

/// The parts of a body: each head in its debug form, and the content.
type Found = Vec<(String, Vec<u8>)>;

/// Bytes that a splitter may hold besides a frame: a part's head, a delimiter, and text around it.
const BUFFERED_BYTES_MAX: usize = 40 << 10;

/// Splits frames into parts; None if they are refused or end early.
fn split<'a>(frames: impl Iterator<Item = &'a [u8]>) -> Option<Found> {
    let mut splitter = Splitter::new(BOUNDARY);
    let mut found = Found::new();
    let (mut is_open, mut came, mut gone) = (false, 0_usize, 0_usize);
    for frame in frames {
        splitter.push(frame);
        came += frame.len();
        while let Some(event) = splitter.next().ok()? {
            match event {
                Event::Head(head) => {
                    assert!(!std::mem::replace(&mut is_open, true), "a head within a part");
                    found.push((format!("{head:?}"), Vec::new()));
                    gone = came;
                }
                Event::Piece(piece) => {
                    assert!(is_open && !piece.is_empty());
                    found.last_mut().expect("a part").1.extend_from_slice(&piece);
                    gone = came;
                }
                Event::PartEnd => {
                    assert!(std::mem::replace(&mut is_open, false), "an end without a part");
                    gone = came;
                }
                Event::End => {
                    assert!(!is_open, "the end within a part");
                    return Some(found);
                }
            }
        }
        // Bytes before the first part are dropped on arrival; after it few bytes are held.
        assert!(found.is_empty() || came - gone <= frame.len() + BUFFERED_BYTES_MAX, "more is held");
    }
    None
}

/// The parts of a body don't depend on its frames, and parsing them again after writing gives the same.
fn multipart(input: &[u8]) -> bool {
    let (sizes, body) = input.split_at(input.len().min(2));
    let whole = split(std::iter::once(body));
    let size = sizes.first().map_or(1, |size| usize::from(*size).max(1));
    // In frames, then split in two at any position.
    let at = sizes.get(1).map_or(0, |at| usize::from(*at) * body.len() / 255);
    let first = split(body.chunks(size));
    let (front, back) = body.split_at(at.min(body.len()));
    let second = split([front, back].into_iter());
    for cut in [&first, &second] {
        assert_eq!(cut, &whole, "frames of {size}, or cut at {at}");
    }
    let Some(found) = whole else { return false };
    let mut again = Vec::new();
    for (index, (_, content)) in found.iter().enumerate() {
        again.extend_from_slice(if index == 0 { b"--bnd\r\n\r\n" } else { b"\r\n--bnd\r\n\r\n" });
        again.extend_from_slice(content);
    }
    again.extend_from_slice(if found.is_empty() { b"--bnd--" } else { b"\r\n--bnd--" });
    let read = split(std::iter::once(&again[..])).expect("what was written");
    assert!(read.iter().map(|(_, content)| content).eq(found.iter().map(|(_, content)| content)));
    true
}

pub(super) const GZIP: Target = Target {
    name: "gzip",
    check: gzip,
    corpus: &[
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01\x05\x00\xfa\xff\x68\x65\x6c\x6c\x6f\x86\xa6\x10\x36\x05\x00\x00\x00",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xcb\x48\xcd\xc9\xc9\x07\x00\x86\xa6\x10\x36\x05\x00\x00\x00",
    ],
    words: &["\x1f", "\x08", "hello", "\0\0\0\0", "\x01", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"],
    generate: |source| {
        let mut text = source.bytes(300);
        let times = 1 + source.below(200);
        text = text.repeat(times);
        zipped(&text)
    },
};

/// Upper bound of decompressed bytes per compressed byte (RFC 1951: a code of one bit gives 258 bytes).
const DECOMPRESSED_PER_BYTE_MAX: usize = 1_032 * 2;

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(1));
    encoder.write_all(bytes).expect("writing to a Vec succeeds");
    encoder.finish().expect("writing to a Vec succeeds")
}

fn decompress(parts: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut decoder = GzipDecoder::new();
    let mut decompressed = Vec::new();
    for part in parts.chunks(size) {
        let more = decoder.push(part).ok()?;
        assert!(more.len() <= PART_BYTES * DECOMPRESSED_PER_BYTE_MAX + (64 << 10), "too much at once");
        decompressed.extend_from_slice(&more);
    }
    decompressed.extend_from_slice(&decoder.finish().ok()?);
    Some(decompressed)
}

/// Gzip decompresses to the same result for any split, in bounded steps, and compressed content to its
/// original.
fn gzip(input: &[u8]) -> bool {
    let own = zipped(input);
    assert_eq!(decompress(&own, PART_BYTES).as_deref(), Some(input));
    let size = 1 + input.len() % 97;
    let decompressed = decompress(input, PART_BYTES);
    assert_eq!(decompress(input, size), decompressed, "parts of {size}");
    decompressed.is_some_and(|decompressed| decompressed.len() < INPUT_BYTES_MAX * DECOMPRESSED_PER_BYTE_MAX)
}

pub(super) const BODY: Target = Target {
    name: "body",
    check: body,
    corpus: &[
        br#"{"docs":[{"_id":"a","v":1},{"_id":"b","_rev":"1-00ff102030405060708090a0b0c0d0e0"}],"new_edits":true}"#,
        br#"{"docs":[{"id":"a","rev":"1-00ff102030405060708090a0b0c0d0e0","atts_since":[]}]}"#,
        br#"{"keys":["a","b",1,null,{"x":[]}],"skip":1,"limit":"2","descending":false}"#,
        br#"{"queries":[{"keys":[]},{"start_key":"a"}]}"#,
        br#"{"doc_ids":["a","b"]}"#,
        br#"{"selector":{"a":{"$gt":1}},"fields":["a"]}"#,
        br#"{"a":["1-00ff102030405060708090a0b0c0d0e0"],"b":["2-x"]}"#,
        br#"{"a":["1-00ff102030405060708090a0b0c0d0e0","2-10ff102030405060708090a0b0c0d0e0"]}"#,
        b" { \"new_edits\" : false , \"docs\" : [ ] } ",
    ],
    words: &[
        "docs", "new_edits", "keys", "queries", "doc_ids", "selector", "fields", "_id", "_rev", "id", "rev",
        "atts_since", "skip", "limit", "start_key", "true", "false", "null", "a", "1-00ff102030405060708090a0b0c0d0e0",
        "{", "}", "[", "]", ",", "\":",
    ],
    generate: |source| source.json_object().into_bytes(),
};

/// Nesting from which on the strict parser refuses a text.
const STRICT_DEPTH_MAX: usize = 127;

/// A body's members are those that another parser finds, in order; likewise lists and strings.
fn body(input: &[u8]) -> bool {
    let facts = check_json(input);
    let mut members = Vec::new();
    let found = json::each_member(input, |name, value| {
        members.push((name, value));
        Ok(())
    });
    let Some(object) = facts.filter(|facts| facts.first == b'{') else {
        let failure = found.expect_err("what is no object is refused");
        let said = if facts.is_some() { "Request body must be a JSON object" } else { "invalid UTF-8 JSON" };
        assert_eq!(failure.reason, said);
        return false;
    };
    if found.is_err() {
        assert!(object.has_half_pairs || object.has_infinite, "an object was refused");
        return false;
    }
    assert!(!object.has_half_pairs && !object.has_infinite, "no other parser takes it");
    let parsed: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_slice(input).ok();
    assert!(parsed.is_some() || object.depth >= STRICT_DEPTH_MAX, "a strict parser refuses it");
    if let Some(parsed) = &parsed {
        assert!(members.iter().all(|(name, _)| parsed.contains_key(&**name)));
        assert!(parsed.keys().all(|name| members.iter().any(|(found, _)| found == name)));
    }
    for (name, raw) in &members {
        let first = check_json(raw.as_bytes()).expect("a member is JSON").first;
        let inner = elements(raw);
        assert_eq!(inner.is_some(), first == b'[');
        assert_eq!(json::string(raw).map(Into::into), serde_json::from_str::<String>(raw).ok());
        assert!(inner.into_iter().flatten().all(|item| check_json(item.as_bytes()).is_some()));
        if let Some((last, parsed)) = members.iter().rfind(|(other, _)| other == name).zip(parsed.as_ref()) {
            let value: Option<serde_json::Value> = serde_json::from_str(last.1).ok();
            assert_eq!(value.as_ref(), parsed.get(&**name), "the other parser has the last of a name");
        }
    }
    requests(input);
    true
}

/// The elements of an array.
fn elements(raw: &str) -> Option<Vec<&str>> {
    let mut found = Vec::new();
    let read = json::each_element(raw, ApiError::bad_json, |element| {
        found.push(element);
        Ok(())
    });
    read.ok().map(|()| found)
}

/// Request bodies: the parsed members are those present.
fn requests(input: &[u8]) {
    let options = settee_doc::Options::default();
    let Ok(Bulk { edits, new_edits, .. }) = parse_bulk(input, &options, &mut BodyBudget::unlimited()) else {
        return;
    };
    let [docs, said] = json::pick(input, ["docs", "new_edits"]).expect("it was read");
    assert_eq!(new_edits, said.is_none_or(|value| value != "false"));
    let docs = docs.and_then(elements).expect("it was read");
    assert_eq!(docs.len(), edits.len());
    for (doc, edit) in docs.into_iter().zip(edits) {
        let alone = settee_doc::Edit::parse(doc.as_bytes(), &options).expect("it was read");
        assert_eq!((alone.body(), alone.id, alone.revision), (edit.body(), edit.id, edit.revision));
    }
}
