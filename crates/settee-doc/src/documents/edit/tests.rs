//! Goal: every valid document is accepted unchanged, and nothing else is accepted.
//! Method: texts with their expected results, and random JSON compared with `serde_json`.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::documents::{Document, Extras};

fn parse(text: &str) -> Result<Edit> {
    Edit::parse(text.as_bytes(), &Options::default())
}

fn body(text: &str) -> String {
    String::from_utf8(parse(text).unwrap().body().to_vec()).unwrap()
}

fn kind(text: &str) -> ErrorKind {
    parse(text).err().unwrap_or_else(|| panic!("taken: {text}")).kind()
}

const HASH: &str = "00112233445566778899aabbccddeeff";

#[test]
fn bodies_lose_only_white_space_and_reserved_members() {
    assert_eq!(body("{}"), "");
    assert_eq!(
        body(" { \"a\" : [ 1 , \"x y\\n\" ] ,\r\n\t\"_id\":\"d\", \"b\":{ } } "),
        r#""a":[1,"x y\n"],"b":{}"#
    );
    // Numbers stay as written, and repeated ordinary members stay repeated.
    assert_eq!(
        body(r#"{"n":1.50e+300,"m":-0,"n":123456789012345678901234567890}"#),
        r#""n":1.50e+300,"m":-0,"n":123456789012345678901234567890"#
    );
    assert_eq!(body(r#"{"a\"b\u0041":"\ud83d\ude00\\"}"#), r#""a\"bA":"\ud83d\ude00\\""#);
}

#[test]
fn numbers_within_a_doubles_range_are_kept_exactly_and_others_refused() {
    let long = "9".repeat(308);
    let fraction = format!("0.{}", "1".repeat(500));
    for good in ["1e308", "-1.7976931348623157e+308", "1e-400", "-0.0e-9", "0e999", &long, &fraction] {
        assert_eq!(
            body(&format!(r#"{{"a":[{good}],"b":{{"c":{good}}}}}"#)),
            format!(r#""a":[{good}],"b":{{"c":{good}}}"#)
        );
    }
    let longer = "1".repeat(400);
    for bad in ["1e400", "-1e999", "1E309", "179769313486231580793e289", &longer, &format!("-{longer}.5e-3")]
    {
        for text in [r#"{"a":N}"#, r#"{"a":[1,{"b":N}]}"#, r#"{"_conflicts":[N]}"#, r#"{"a":N ,"b":1}"#] {
            let text = text.replace('N', bad);
            assert_eq!(kind(&text), ErrorKind::BadRequest, "{text}");
        }
    }
    assert_eq!(body(r#"{"a":"1e400"}"#), r#""a":"1e400""#, "a string is no number");
}

#[test]
fn escaped_reserved_members_are_recognized() {
    let edit =
        parse(&format!(r#"{{"\u005fid":"x","_rev":"3-{HASH}","_d\u0065leted":true,"_attachments":{{}}}}"#))
            .unwrap();
    assert_eq!((edit.id.as_str(), edit.deleted), ("x", true));
    assert_eq!(edit.revision, Some(format!("3-{HASH}").parse().unwrap()));
    let edit =
        parse(&format!(r#"{{"_revisions":{{"start":7,"ids":["{HASH}","{HASH}"]}},"_rev":"1-{HASH}"}}"#))
            .unwrap();
    assert_eq!((edit.revision.unwrap().generation, edit.history.len()), (7, 2));
    let read = parse(r#"{"_conflicts":[],"_revs_info":[],"_local_seq":1,"_deleted_conflicts":[]}"#).unwrap();
    assert!(read.body().is_empty());
    assert_eq!(body(r#"{"_replication_state":"completed"}"#), r#""_replication_state":"completed""#);
    assert_eq!(parse(r#"{"_rev":"0-12"}"#).unwrap().local_revision, Some(12));
}

#[test]
fn revisions_have_any_text() {
    let revision = |text: &str| {
        let edit = parse(text).unwrap();
        let path = edit.history.iter().zip(0..).map(|(id, back)| {
            let generation = edit.revision.as_ref().unwrap().generation - back;
            Revision { generation, id: id.clone() }.to_string()
        });
        (edit.revision.as_ref().map(Revision::to_string), path.collect::<Vec<_>>())
    };
    assert_eq!(revision(r#"{"_rev":"1-abc"}"#), (Some("1-abc".into()), vec![]));
    assert_eq!(revision(r#"{"_rev":"1-\"\u00fc"}"#), (Some("1-\"ü".into()), vec![]));
    assert_eq!(revision(r#"{"_rev":"0-x"}"#), (Some("0-x".into()), vec![]));
    let (named, history) = (r#""_rev":"1-abc""#, r#""_revisions":{"start":2,"ids":["b","\u0061"]}"#);
    for text in [format!("{{{named},{history}}}"), format!("{{{history},{named}}}")] {
        assert_eq!(revision(&text), (Some("2-b".into()), vec!["2-b".into(), "1-a".into()]), "{text}");
    }
    let mixed = format!(r#"{{"_revisions":{{"start":7,"ids":["{}","","x"]}}}}"#, HASH.to_uppercase());
    let path = [format!("7-{HASH}"), "6-".to_owned(), "5-x".to_owned()];
    assert_eq!(revision(&mixed), (Some(path[0].clone()), path.to_vec()));
}

#[test]
fn a_longer_revision_is_refused_and_the_reason_names_the_limit() {
    let long = "x".repeat(crate::documents::REVISION_ID_SIZE_MAX);
    for text in [r#"{"_rev":"1-ID"}"#, r#"{"_revisions":{"start":2,"ids":["a","ID"]}}"#] {
        assert!(parse(&text.replace("ID", &long)).is_ok());
        let error = parse(&text.replace("ID", &(long.clone() + "x"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadRequest);
        assert!(error.to_string().contains("255 bytes"), "{error}");
    }
}

#[test]
fn ancestors_are_charged_for_before_they_are_kept() {
    let text = format!(r#"{{"_revisions":{{"start":9999,"ids":[{}"a"]}}}}"#, r#""a","#.repeat(9_998));
    let mut charged = 0;
    let edit = Edit::parse_within(text.as_bytes(), &Options::default(), &mut |bytes| {
        charged += bytes;
        Ok::<(), Error>(())
    });
    assert_eq!(edit.unwrap().history.len(), 9_999);
    assert!(charged >= 9_999 * size_of::<RevisionId>(), "{charged}");
    let mut left = 1_000;
    let refused = Edit::parse_within(text.as_bytes(), &Options::default(), &mut |bytes| {
        left = usize::checked_sub(left, bytes).ok_or_else(|| Error::new(ErrorKind::TooLarge, "memory"))?;
        Ok::<(), Error>(())
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TooLarge);
}

#[test]
fn invalid_documents_are_refused_with_their_kind() {
    for text in [
        "",
        "{",
        "[]",
        "1",
        "null",
        "\"x\"",
        "{\"a\":}",
        "{\"a\":1,}",
        "{} x",
        "{\"a\":01}",
        "{\"a\":\"\t\"}",
        r#"{"a":"\ud800"}"#,
        r#"{"a":"\udc00\ud800"}"#,
        r#"{"a":"\ud800\u0041"}"#,
        r#"{"_rev":"x"}"#,
        r#"{"_rev":1}"#,
    ] {
        assert_eq!(kind(text), ErrorKind::BadRequest, "{text}");
    }
    assert_eq!(
        Edit::parse(b"{\"a\":\"\xFF\"}", &Options::default()).unwrap_err().kind(),
        ErrorKind::BadRequest
    );
    for text in [
        r#"{"_x":1}"#,
        r#"{"_":1}"#,
        r#"{"_deleted":1}"#,
        r#"{"_deleted":true,"_deleted":false}"#,
        r#"{"_id":"a","\u005fid":"b"}"#,
        r#"{"_revisions":{}}"#,
    ] {
        assert_eq!(kind(text), ErrorKind::DocValidation, "{text}");
    }
    assert_eq!(
        kind(&format!(r#"{{"_revisions":{{"start":1,"ids":["{HASH}","{HASH}"]}}}}"#)),
        ErrorKind::DocValidation
    );
    for text in [r#"{"_id":""}"#, r#"{"_id":1}"#, r#"{"_id":"_x"}"#, r#"{"_id":"_design/"}"#] {
        assert_eq!(kind(text), ErrorKind::IllegalDocId, "{text}");
    }
    assert_eq!(kind(r#"{"_attachments":{"a":{"data":"*"}}}"#), ErrorKind::BadRequest);
}

#[test]
fn documents_beyond_limits_are_refused_and_those_at_the_limit_accepted() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(&nested(crate::NESTING_MAX - 1)).is_ok());
    assert_eq!(kind(&nested(crate::NESTING_MAX)), ErrorKind::BadRequest);
    assert_eq!(kind(&nested(1_000_000)), ErrorKind::BadRequest);
    let options = Options { document_bytes_max: 11, attachment_bytes_max: 5 };
    assert!(Edit::parse(br#"{"a":"12345"}  "#, &options).unwrap().body().len() == 11);
    assert_eq!(Edit::parse(br#"{"a":"123456"}"#, &options).unwrap_err().kind(), ErrorKind::TooLarge);
    let attached = |data: &str| {
        Edit::parse(format!(r#"{{"_attachments":{{"n":{{"data":"{data}"}}}}}}"#).as_bytes(), &options)
    };
    assert!(attached("MTIzNDU=").is_ok());
    assert!(attached("MTIz\\r\\n NDU=\\n").is_ok(), "lines as mail has them");
    let error = attached("MTIzNDU2").unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::AttachmentTooLarge, "n"));
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map("[^_]?[ -~]{0,5}", inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_document_is_read_as_it_was_written(members in prop::collection::hash_map("[a-z\"\\\\ é]{1,6}", json(), 0..8), pretty in any::<bool>()) {
        let given = Value::Object(members.into_iter().collect());
        let text = if pretty { serde_json::to_string_pretty(&given) } else { serde_json::to_string(&given) }.unwrap();
        let edit = parse(&text).unwrap();
        prop_assert!(!edit.body().iter().any(|byte| *byte < b' '));
        let revision: Revision = "1-00112233445566778899aabbccddeeff".parse().unwrap();
        let document = Document { id: "the \"id\"".into(), revision: revision.clone(), deleted: false, body: edit.body(), attachments: Vec::new(), large_body: None };
        let mut out = Vec::new();
        document.write_json(&Extras::default(), &mut out);
        let mut found: Value = serde_json::from_slice(&out).unwrap();
        let members = found.as_object_mut().unwrap();
        prop_assert_eq!(members.remove("_id"), Some("the \"id\"".into()));
        prop_assert_eq!(members.remove("_rev"), Some(revision.to_string().into()));
        prop_assert_eq!(found, given);
    }

    #[test]
    fn junk_is_refused_without_a_panic(text in "[\\[\\]{}\",:\\\\u0-9a-f_ ]{0,40}") {
        if let Ok(edit) = parse(&text) {
            let whole = [b"{", &edit.body()[..], b"}"].concat();
            prop_assert!(serde_json::from_slice::<Value>(&whole).is_ok(), "{}", text);
        }
    }
}
