//! Goal: revisions are read, written and ordered as CouchDB does.
//! Method: texts with their expected results, and random texts compared with a model of CouchDB's rules.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Revision {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn a_revision_round_trips_and_junk_is_refused() {
    let hex = "00ff102030405060708090a0b0c0d0e0";
    let long = "é".repeat(127) + "e";
    for text in
        [&format!("12-{hex}"), "1-abc", "2-a-b", "1-", "3-ü", "0-x", "4294967295-\"", &format!("1-{long}")]
    {
        assert_eq!(parse(text).to_string(), *text);
    }
    for (text, written) in [
        (format!("+12-{}", hex.to_uppercase()), format!("12-{hex}")),
        ("007-x".to_owned(), "7-x".to_owned()),
        ("1-0123456789abcdef".to_owned(), "1-30313233343536373839616263646566".to_owned()),
        (format!("1-{hex}0"), format!("1-{hex}0")),
    ] {
        assert_eq!(parse(&text).to_string(), written);
    }
    let no_hex = format!("1-zz{}", &hex[2..]);
    let huge = "4294967296-x";
    for junk in ["", "1", "-", "-1-a", "+-a", "++1-a", "x-00ff", "1 -a", " 1-a", &no_hex, huge] {
        let error = junk.parse::<Revision>().expect_err(junk);
        assert_eq!(error.kind(), crate::ErrorKind::BadRequest, "{junk}");
        assert!(error.to_string().starts_with("Invalid rev format"), "{error}");
    }
    let error = format!("1-{long}x").parse::<Revision>().unwrap_err();
    assert!(error.to_string().contains("more than 255 bytes"), "{error}");
}

#[test]
fn a_hash_takes_no_memory_of_its_own() {
    assert_eq!(parse("1-00ff102030405060708090a0b0c0d0e0").id.heap_bytes(), 0);
    assert_eq!(parse("1-0123456789abcdef").id.heap_bytes(), 0);
    assert_eq!(parse("1-x").id.heap_bytes(), 1);
    assert!(size_of::<RevisionId>() <= 24);
}

#[test]
fn the_same_edit_makes_the_same_revision_and_another_edit_another() {
    let body = [7; 32];
    let first = Revision::next(None, false, &body).unwrap();
    assert_eq!(first, Revision::next(None, false, &body).unwrap());
    let others = [
        Revision::next(None, true, &body),
        Revision::next(None, false, &[8; 32]),
        Revision::next(Some(&first), false, &body),
        Revision::next(Some(&parse("1-x")), false, &body),
        Revision::next(Some(&parse("1-y")), false, &body),
        Revision::next(Some(&parse("1-")), false, &body),
    ];
    for (index, other) in others.iter().enumerate() {
        let other = other.as_ref().unwrap();
        assert_ne!(other.id, first.id);
        assert!(others[..index].iter().flatten().all(|earlier| earlier.id != other.id));
        assert_eq!(other.id.to_owned().heap_bytes(), 0, "a new revision's id is a hash");
    }
    assert_eq!(others[3].as_ref().unwrap().generation, 2);
    let last = Revision { generation: u32::MAX, id: [0; 16].into() };
    assert_eq!(Revision::next(Some(&last), false, &body), None);
}

/// Texts of revisions, valid and not: hex digits, short and long texts.
fn texts() -> impl Strategy<Value = String> {
    let id = prop_oneof![
        3 => "[0-9a-f]{32}",
        1 => "[0-9A-Fg]{32}",
        2 => "[a-c]{0,3}",
        2 => "[ -~é]{0,20}",
        1 => ".{14,18}",
        1 => "[a-é]{120,270}",
    ];
    prop_oneof![
        8 => (0..4_u32, id).prop_map(|(generation, id)| format!("{generation}-{id}")),
        1 => any::<String>(),
        1 => "[-+0-9a]{0,12}",
    ]
}

/// A model of `couch_doc:parse_rev`: the position, and the bytes of the binary.
fn model(text: &str) -> Option<(u64, Vec<u8>)> {
    let (position, id) = text.split_at_checked(text.find('-')?)?;
    let id = &id[1..];
    let position = position.strip_prefix('+').unwrap_or(position);
    let position =
        position.parse::<u64>().ok().filter(|_| position.starts_with(|first: char| first != '+'))?;
    if id.len() != 32 {
        return Some((position, id.as_bytes().to_vec()));
    }
    let digits = id.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<u32>>>()?;
    Some((position, digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn every_text_is_refused_or_read_again_from_what_is_written(text in texts()) {
        let expected = model(&text).filter(|(position, id)| *position <= u64::from(u32::MAX) && id.len() <= 255);
        let parsed = text.parse::<Revision>().ok();
        let found = parsed.as_ref().map(|revision| (revision.generation.into(), revision.id.as_bytes().to_vec()));
        prop_assert_eq!(found, expected);
        if let Some(revision) = parsed {
            prop_assert_eq!(parse(&revision.to_string()), revision.clone());
            prop_assert_eq!(RevisionId::from_bytes(revision.id.as_bytes()), Some(revision.id.clone()));
            let mut json = Vec::new();
            revision.write_json(&mut json);
            prop_assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), revision.to_string());
            json.clear();
            revision.id.write_json(&mut json);
            let id: String = serde_json::from_slice(&json).unwrap();
            prop_assert_eq!(RevisionId::parse(&id).unwrap(), revision.id);
        }
    }

    #[test]
    fn revisions_are_ordered_by_position_and_bytes(first in texts(), second in texts()) {
        if let (Ok(a), Ok(b)) = (first.parse::<Revision>(), second.parse::<Revision>()) {
            prop_assert_eq!(a.cmp(&b), model(&first).cmp(&model(&second)));
            prop_assert_eq!(a == b, a.cmp(&b).is_eq());
        }
    }

    #[test]
    fn bytes_that_no_text_has_are_no_id(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Some(id) = RevisionId::from_bytes(&bytes) {
            prop_assert_eq!(id.as_bytes(), &bytes);
            let mut text = Vec::new();
            id.write(&mut text);
            prop_assert_eq!(RevisionId::parse(std::str::from_utf8(&text).unwrap()).unwrap(), id);
        } else {
            let is_utf8 = std::str::from_utf8(&bytes).is_ok();
            prop_assert!(!is_utf8 || bytes.len() == 32 || bytes.len() > 255);
        }
    }
}
