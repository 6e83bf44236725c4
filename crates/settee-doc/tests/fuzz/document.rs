//! Documents, revisions and positions in the changes, encoded and decoded.

use settee_sim::fuzz::{Target, check_json};
use settee_store::Seq;

use crate::attachments::{Content, Following, digest_text, parse_digest};
use crate::documents::{
    ATTACHMENTS_MAX, Document, Edit, Extras, Options, REVISION_ID_SIZE_MAX, Revision, RevisionId, parse_hash,
    parse_local_revision,
};
use crate::json::{NESTING_MAX, members};
use crate::sequence::Sequence;

pub(super) const DOCUMENT: Target = Target {
    name: "document",
    check: document,
    corpus: &[
        br#"{"_id":"a","value":1}"#,
        br#"{"_id":"x","_rev":"1-00ff102030405060708090a0b0c0d0e0","name":"Anna","tags":["a","b"],"n":{"x":1.5}}"#,
        br#"{ "_id" : "s p" , "a" : [ 1 , 2 , { "b" : null } ] , "c" : "\u00e9\n" }"#,
        br#"{"_id":"_design/d","language":"javascript","views":{"v":{"map":"function(d){emit(d._id,1)}"}}}"#,
        br#"{"_id":"_local/ckpt","_rev":"0-3","history":[{"seq":"5-abc"}],"session_id":"s"}"#,
        br#"{"_id":"gone","_rev":"2-00ff102030405060708090a0b0c0d0e0","_deleted":true}"#,
        br#"{"_id":"r","_revisions":{"start":3,"ids":["00ff102030405060708090a0b0c0d0e0","10ff102030405060708090a0b0c0d0e0"]},"v":1}"#,
        br#"{"_id":"f","_attachments":{"a.txt":{"content_type":"text/plain","data":"aGVsbG8="},"b":{"stub":true,"revpos":2},"c":{"follows":true,"length":5,"digest":"md5-XUFAKrxLKna5cZ2REBfFkg=="}}}"#,
        br#"{"_id":"g","_attachments":{"z":{"follows":true,"length":50,"encoding":"gzip","encoded_length":20}}}"#,
        br#"{"_replication_id":"x","_replication_state":"completed","a":{"a":{"a":[[[[]]]]}}}"#,
        br#"{"a":1e-400,"a":170141183460469231731687303715884105728,"b":-0.0,"":"","\u0061":"\ud83d\ude00"}"#,
        br#"{"_id":"q","_conflicts":["1-a"],"_deleted_conflicts":[],"_revs_info":[],"_local_seq":7,"x":true}"#,
    ],
    words: &[
        "_id", "_rev", "_deleted", "_revisions", "_attachments", "_conflicts", "_local_seq", "_revs_info",
        "_replication_id", "_x", "start", "ids", "stub", "follows", "data", "digest", "length", "revpos",
        "content_type", "encoding", "encoded_length", "gzip", "true", "false", "aGVsbG8=", "a", "name",
        "00ff102030405060708090a0b0c0d0e0", "1-00ff102030405060708090a0b0c0d0e0", "0-1", "\\u005fid", "é",
        "md5-XUFAKrxLKna5cZ2REBfFkg==", "{", "}", "[", "]", "\":", ",\"", "\\ud800", "_design/", "_local/",
    ],
    generate: |source| source.json_object().into_bytes(),
};

/// The edit's properties besides its body.
fn described(edit: &Edit) -> String {
    let Edit { id, revision, local_revision, history, deleted, attachments, .. } = edit;
    format!("{id:?} {revision:?} {local_revision:?} {history:?} {deleted} {attachments:?}")
}

/// A document is accepted or refused by its JSON and its reserved members only; its stored form is the same
/// document, without white space and no longer than the input; its written form parses to the same document.
fn document(input: &[u8]) -> bool {
    let facts = check_json(input).filter(|facts| facts.first == b'{');
    let mut has_reserved = false;
    let found = members(input, |name, _| {
        has_reserved |= name.starts_with('_');
        Ok::<(), crate::Error>(())
    });
    let is_plain = found.is_ok() && !has_reserved;
    let parsed = Edit::parse(input, &Options::default());
    let Some(facts) = facts else {
        assert!(found.is_err() && parsed.is_err(), "what is no object was accepted");
        return false;
    };
    if is_plain {
        let is_good = !facts.has_half_pairs && !facts.has_infinite && facts.depth <= NESTING_MAX;
        assert_eq!(parsed.is_ok(), is_good, "{facts:?}: {parsed:?}");
    }
    let Ok(edit) = parsed else { return false };
    let depth = facts.depth;
    let stored = edit.body();
    assert!(stored.len() <= input.len(), "the body grew");
    let body = [b"{", &stored[..], b"}"].concat();
    let facts = check_json(&body).expect("a body is JSON");
    assert!(!facts.has_space && !facts.has_half_pairs && facts.depth <= NESTING_MAX, "{facts:?}");
    assert!(!facts.has_infinite, "a number that no other parser takes was accepted");
    let again = Edit::parse(&body, &Options::default()).expect("a body can be stored");
    assert_eq!((again.body(), again.digest()), (stored, edit.digest()));
    if depth < STRICT_DEPTH_MAX {
        same_values(input, &body);
    }
    written_and_read(&edit);
    attached_and_read(&edit);
    true
}

/// Nesting depth from which on the strict parser refuses a text.
const STRICT_DEPTH_MAX: usize = 127;

/// A second parser, which refuses numbers beyond a double, accepts the accepted input, and finds the same
/// values in the stored form, except reserved members.
fn same_values(input: &[u8], body: &[u8]) {
    use serde_json::{Map, Value};
    let whole: Result<Map<String, Value>, _> = serde_json::from_slice(input);
    let mut whole = whole.expect("a strict parser reads what was accepted");
    let stored: Map<String, Value> = serde_json::from_slice(body).expect("the other parser reads it too");
    whole.retain(|name, _| !name.starts_with('_') || stored.contains_key(name));
    assert_eq!(whole, stored);
}

fn written_and_read(edit: &Edit) {
    let id = if edit.id.is_empty() { "x".to_owned() } else { edit.id.clone() };
    let revision = edit.revision.clone().filter(|revision| revision.generation > 0);
    let revision = revision.unwrap_or(Revision { generation: 1, id: [7; 16].into() });
    let history = if edit.history.is_empty() { vec![revision.id.clone()] } else { edit.history.clone() };
    let document = Document {
        id,
        revision: revision.clone(),
        deleted: edit.deleted,
        body: edit.body(),
        attachments: Vec::new(),
        large_body: None,
    };
    let extras = Extras {
        revisions: Some(history.clone()),
        conflicts: vec![revision.clone()],
        revs_info: vec![(revision.clone(), "available")],
        local_seq: Some(7),
        ..Extras::default()
    };
    let mut text = Vec::new();
    document.write_json(&extras, &mut text);
    assert!(check_json(&text).is_some(), "what is sent is no JSON");
    let read = Edit::parse(&text, &Options::default()).expect("what is sent can be stored");
    assert_eq!((&read.id, &read.revision, read.deleted), (&document.id, &Some(revision), edit.deleted));
    assert_eq!((read.body(), read.history), (edit.body(), history));
    let copy = Edit::again(&document);
    assert_eq!((copy.body(), copy.digest()), (edit.body(), edit.digest()));
}

/// Attachments written as a client writes them are parsed to the same attachments.
fn attached_and_read(edit: &Edit) {
    use base64::Engine as _;
    if edit.attachments.is_empty() {
        return;
    }
    let mut attachments = serde_json::Map::new();
    for attachment in &edit.attachments {
        let mut member = serde_json::json!({ "content_type": attachment.content_type });
        if let Some(revpos) = attachment.revpos {
            member["revpos"] = revpos.into();
        }
        match &attachment.content {
            Content::Stub(digest) => {
                member["stub"] = true.into();
                if let Some(digest) = digest {
                    member["digest"] = digest_text(digest).into();
                }
            }
            Content::Inline(bytes) => {
                member["data"] = base64::engine::general_purpose::STANDARD.encode(bytes).into();
            }
            Content::Follows(Following { length, is_gzip, digest }) => {
                member["follows"] = true.into();
                member["length"] = (*length).into();
                if *is_gzip {
                    member["encoding"] = "gzip".into();
                }
                if let Some(digest) = digest {
                    member["digest"] = digest_text(digest).into();
                }
            }
            Content::Stored(_) => unreachable!("nothing is stored by reading"),
        }
        attachments.insert(attachment.name.clone(), member);
    }
    assert_eq!(attachments.len(), edit.attachments.len(), "two attachments of a name");
    let text = serde_json::json!({ "_attachments": attachments }).to_string();
    let read = Edit::parse(text.as_bytes(), &Options::default()).expect("it is right");
    let mut expected = Edit::empty("");
    expected.attachments = edit.attachments.clone();
    assert_eq!(described(&read), described(&expected));
}

pub(super) const REVISION: Target = Target {
    name: "revision",
    check: revision,
    corpus: &[
        b"1-00ff102030405060708090a0b0c0d0e0",
        b"4294967295-ffffffffffffffffffffffffffffffff",
        b"12-967a00dff5e02add41819138abb3284d",
        b"0-1",
        b"1-x",
        b"2-\xc3\xbc\"",
        b"3-0123456789abcdef",
        b"00ff102030405060708090a0b0c0d0e0",
        b"md5-XUFAKrxLKna5cZ2REBfFkg==",
        b"XUFAKrxLKna5cZ2REBfFkg==",
    ],
    words: &["-", "0", "1-", "0-", "md5-", "==", "a", "F", "+", "00ff102030405060708090a0b0c0d0e0"],
    generate: |source| {
        let mut text = format!("{}-", source.below(100_000));
        for _ in 0..30 + source.below(4) {
            text.push(*source.pick(&[&'0', &'9', &'a', &'f', &'c']));
        }
        text.into_bytes()
    },
};

/// A revision, a hash, a local document's revision or a digest equals its text, and no other text is
/// accepted.
fn revision(input: &[u8]) -> bool {
    if let Some((generation, rest)) = input.split_first_chunk::<4>()
        && let Some((hash, _)) = rest.split_first_chunk::<16>()
    {
        let revision = Revision { generation: u32::from_le_bytes(*generation), id: (*hash).into() };
        assert_eq!(revision.to_string().parse::<Revision>().ok(), Some(revision));
        assert_eq!(parse_digest(&digest_text(hash)).ok(), Some(*hash));
    }
    if let Some(id) = RevisionId::from_bytes(input) {
        assert_eq!(id.as_bytes(), input);
    }
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let is_hash =
        |text: &str| text.len() == 32 && text.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    assert_eq!(parse_hash(text).is_ok(), is_hash(text));
    let digest = parse_digest(text);
    if let Ok(digest) = &digest {
        assert_eq!(digest_text(digest).trim_start_matches("md5-"), text.trim_start_matches("md5-"));
    }
    let number = |digits: &str, most: u64| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|number| is_number && *number <= most)
    };
    let (front, back) = text.split_once('-').unwrap_or((text, ""));
    let local = parse_local_revision(text);
    assert_eq!(local, number(back, u64::MAX).filter(|_| text.starts_with("0-")));
    let parsed = text.parse::<Revision>();
    let generation = number(front.strip_prefix('+').unwrap_or(front), u32::MAX.into());
    let is_id = back.len() <= REVISION_ID_SIZE_MAX && (back.len() != 32 || is_hash(&back.to_lowercase()));
    assert_eq!(parsed.is_ok(), text.contains('-') && generation.is_some() && is_id, "{parsed:?}");
    if let (Ok(revision), Some(generation)) = (&parsed, generation) {
        let written = revision.to_string();
        assert_eq!(written.parse::<Revision>().ok().as_ref(), Some(revision));
        match back.len() {
            16 => assert_eq!(revision.id.as_bytes(), back.as_bytes()),
            32 => assert_eq!(written, format!("{generation}-{}", back.to_lowercase())),
            _ => assert_eq!(written, format!("{generation}-{back}")),
        }
        let mut json = Vec::new();
        revision.write_json(&mut json);
        assert_eq!(serde_json::from_slice::<String>(&json).ok(), Some(written));
    }
    parsed.is_ok() || local.is_some() || digest.is_ok() || is_hash(text)
}

/// The database of the positions, and their suffix.
const INCARNATION: [u8; 16] = [7; 16];
const OURS: &str = "-BwcHBwcHBwcHBwcHBwcHBw";

pub(super) const SEQUENCE: Target = Target {
    name: "sequence",
    check: sequence,
    corpus: &[
        b"0",
        b"42-BwcHBwcHBwcHBwcHBwcHBw",
        b"18446744073709551615-BwcHBwcHBwcHBwcHBwcHBw",
        b"23-g1AAAACTeJzLYWBgYMpgTmHgz8tPSTV0MDQy1zMAQsMckEQiQ1L9____szKYExlzgQLsBgZGScYpRgyNGKQPGnVh4A",
        b"7",
        b"now",
    ],
    words: &["-", "0", "now", "\"", "=", ".", "_", OURS, "a", "+", " ", "18446744073709551616"],
    generate: |source| {
        let number = source.below(1 << 40);
        match source.below(3) {
            0 => format!("{number}"),
            1 => format!("{number}{OURS}"),
            _ => format!("{number}-{}", source.word()),
        }
        .into_bytes()
    },
};

/// A position of this database is its number, another database's is the start, and nothing else is a
/// position.
fn sequence(input: &[u8]) -> bool {
    let sequence = Sequence::new(&INCARNATION);
    if let Some((number, _)) = input.split_first_chunk::<8>() {
        let seq = Seq(u64::from_le_bytes(*number));
        let mut text = Vec::new();
        sequence.write(seq, &mut text);
        assert_eq!(sequence.text(seq).as_bytes(), text);
        assert_eq!(sequence.parse(&sequence.text(seq)).ok(), Some(seq));
    }
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let (digits, opaque) = match text.split_once('-') {
        Some((digits, opaque)) => (digits, Some(opaque)),
        None => (text, None),
    };
    let is_opaque = |text: &str| {
        !text.is_empty() && text.chars().all(|one| one.is_ascii_alphanumeric() || "-_=.".contains(one))
    };
    let is_number = digits.chars().all(|one| one.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|_| is_number && opaque.is_none_or(is_opaque));
    let expected = number.map(|number| Seq(if opaque == Some(&OURS[1..]) { number } else { 0 }));
    assert_eq!(sequence.parse(text).ok(), expected);
    expected.is_some()
}

#[test]
fn many_attachments_are_compared_quickly() {
    // Comparing each name with all others would take minutes.
    let mut names: Vec<String> =
        (0..ATTACHMENTS_MAX).map(|index| format!("\"{index:09}\":{{\"stub\":true}}")).collect();
    let parse = |names: &[String]| {
        let text = format!("{{\"_attachments\":{{{}}}}}", names.join(","));
        Edit::parse(text.as_bytes(), &Options::default())
    };
    assert_eq!(parse(&names).unwrap().attachments.len(), ATTACHMENTS_MAX);
    names.push("\"one more\":{\"stub\":true}".to_owned());
    assert_eq!(parse(&names).unwrap_err().kind(), crate::ErrorKind::TooLarge);
}
