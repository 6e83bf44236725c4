//! Fuzz targets for request heads: paths, query strings, headers.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use settee_sim::fuzz::{Target, check_json};

use crate::body::multipart::{Splitter, accepts, check_type, parameters, quoted};
use crate::document::attachment::parse_ranges;
use crate::query::{Key, Query, Segments, boolean, check_encoding, decode, json_value, positive};

pub(super) const URI: Target = Target {
    name: "uri",
    check: uri,
    corpus: &[
        b"/db/doc?rev=1-00ff102030405060708090a0b0c0d0e0&conflicts=true",
        b"/db/_design%2Fx/_view/v?key=%22a%2Bb%22&limit=10",
        b"/db/a+b/c%20d/e//f/?open_revs=%5B%221-a%22%5D&latest=true&latest=false",
        b"/_all_dbs?start_key=\"a\"&descending=true&skip=-1",
        b"//db///_local/x?&&=&a=b=c&%3D=%26&flag",
        "/db/é%C3%A9?key=%ed%a0%80".as_bytes(),
        b"/",
    ],
    words: &[
        "/",
        "%2F",
        "%25",
        "%00",
        "%C3%A9",
        "%ff",
        "+",
        "?",
        "&",
        "=",
        "_design",
        "_local",
        "_all_docs",
        "..",
        "key",
        "limit",
        "true",
        "false",
        "18446744073709551616",
        "-1",
        "%22a%22",
        "null",
        "[1,2]",
        "%",
        "%2",
    ],
    generate: |source| {
        let mut text = String::new();
        for _ in 0..source.below(6) {
            text.push('/');
            text.push_str(source.word());
        }
        for index in 0..source.below(5) {
            text.push(if index == 0 { '?' } else { '&' });
            let (name, value) = (source.word(), source.json());
            text.push_str(&format!("{name}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
        }
        text.into_bytes()
    },
};

/// Decodes `%XX` and `+` byte by byte.
fn plainly_decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let digit = |at: usize| behind.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        rest = behind;
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &behind[2..];
            }
            (b'+', ..) => bytes.push(b' '),
            (byte, ..) => bytes.push(*byte),
        }
    }
    bytes
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Path segments and query pairs decode correctly, and survive encoding and decoding again.
fn uri(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    if check_encoding(text).is_err() {
        let is_broken = |at: usize| {
            !text.as_bytes()[at + 1..].iter().take(2).filter(|d| d.is_ascii_hexdigit()).count().eq(&2)
        };
        assert!(text.bytes().enumerate().any(|(at, byte)| byte == b'%' && is_broken(at)));
        return false;
    }
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let plain: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let mut segments = Segments::new(path, true);
    let mut found = Vec::new();
    for raw in &plain {
        assert!(!segments.at_end());
        match segments.next() {
            Ok(segment) => {
                let segment = segment.expect("as many as there are");
                assert_eq!(segment.as_bytes(), plainly_decoded(raw));
                assert_eq!(decode(&encoded(&segment)).as_deref(), Some(&*segment));
                found.push(segment.into_owned());
            }
            Err(failure) => {
                assert_eq!(failure.status.as_u16(), 400);
                assert!(std::str::from_utf8(&plainly_decoded(raw)).is_err());
            }
        }
    }
    assert!(segments.at_end() && segments.next().is_ok_and(|none| none.is_none()));
    let rest = Segments::new(path, true).rest();
    let whole = plainly_decoded(path.trim_start_matches('/'));
    match rest {
        Ok(rest) => assert_eq!(rest.unwrap_or_default().as_bytes(), whole),
        Err(_) => assert!(std::str::from_utf8(&whole).is_err()),
    }
    pairs(query);
    found.len() == plain.len()
}

fn pairs(query: &str) {
    let pairs: Vec<(String, String)> =
        Query(query).pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let plain: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    assert_eq!(pairs.len(), plain.len());
    for ((name, value), raw) in pairs.iter().zip(plain) {
        let (raw_name, raw_value) = raw.split_once('=').unwrap_or((raw, ""));
        assert_eq!(*name, String::from_utf8_lossy(&plainly_decoded(raw_name)));
        assert_eq!(*value, String::from_utf8_lossy(&plainly_decoded(raw_value)));
        let first = pairs.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        assert_eq!(Query(query).get(name).as_deref(), first);
        assert_eq!(Query(query).is_true(name), first == Some("true"));
        option(value);
    }
    let again: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    let again = again.join("&");
    let read = Query(&again).pairs().map(|(name, value)| (name.into_owned(), value.into_owned()));
    assert!(read.eq(pairs.into_iter()));
}

/// A query option parses as a number, a boolean or JSON exactly if it is one.
fn option(value: &str) {
    assert_eq!(
        boolean(value).ok(),
        ["true", "false"].iter().position(|one| value.eq_ignore_ascii_case(one)).map(|at| at == 0)
    );
    let digits = value.strip_prefix('+').unwrap_or(value);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match positive(value) {
        Ok(number) => {
            // Numbers saturate at the largest one; `-0` is a number, too.
            assert!(is_number || value.trim_start_matches(['-', '0']).is_empty(), "{value}");
            assert!(number == u64::MAX || digits.parse() == Ok(number) || number == 0, "{value}");
        }
        Err(_) => assert!(!is_number || digits.trim_start_matches('0').len() > 38, "{value}"),
    }
    let facts = check_json(value.as_bytes());
    let is_json = facts.is_some_and(|facts| !facts.has_half_pairs && !facts.has_infinite);
    assert_eq!(json_value(value).is_ok(), is_json, "{value}");
    match Key::parse(value) {
        Ok(Key::Text(text)) => assert_eq!(serde_json::from_str::<String>(value).ok(), Some(text)),
        Ok(Key::BeforeAll) => assert!(serde_json::from_str::<String>(value).is_err() && is_json),
        Err(_) => assert!(!is_json),
    }
}

pub(super) const HEADER: Target = Target {
    name: "header",
    check: header,
    corpus: &[
        b"multipart/related; boundary=\"abc\"",
        b"Multipart/Mixed;boundary=a-b; charset=utf-8",
        b"multipart/related; type=\"application/json\"; boundary = \"x\\\"y\\\\z\" ; c",
        b"application/json, */*;q=0.1",
        b"text/html,application/xhtml+xml;q=0.9,multipart/*;q=0",
        b"attachment; filename=\"a;b.txt\"; x=1",
        b"*/*",
    ],
    words: &[
        ";",
        "=",
        "\"",
        "\\",
        ",",
        "boundary",
        "q",
        "q=0",
        "q=1.0",
        "*/*",
        "multipart/mixed",
        "multipart/*",
        "application/json",
        " ",
        "\t",
        "filename",
        "nan",
        "inf",
        "-1",
    ],
    generate: |source| {
        let mut text = source.word().to_owned();
        for _ in 0..source.below(5) {
            text.push_str(&format!("; {}={}", source.word(), quoted(source.word())));
        }
        text.into_bytes()
    },
};

/// Header parameters survive writing and parsing again; the length of a boundary is bounded.
fn header(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let (value, found) = parameters(text);
    assert_eq!(value, text.split(';').next().unwrap_or("").trim().to_ascii_lowercase());
    let size: usize = found.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(size <= text.len());
    let is_name = |name: &str| !name.is_empty() && !name.contains(['"', ';']) && name.trim() == name;
    if found.iter().all(|(name, value)| is_name(name) && !value.chars().any(|one| one.is_ascii_control())) {
        let mut again = value.clone();
        found.iter().for_each(|(name, value)| again.push_str(&format!("; {name}={}", quoted(value))));
        assert_eq!(parameters(&again), (value.clone(), found.clone()));
    }
    assert_eq!(check_type(Some(text), "multipart/mixed").is_ok(), value == "multipart/mixed");
    // A refused type is never accepted; a type listed without conditions always is.
    for kind in ["multipart/mixed", "application/json"] {
        let taken = accepts(Some(text), kind);
        assert!(!accepts(Some(&format!("{text},{kind};q=0")), kind));
        assert!(!taken || accepts(Some(&format!("{text},{kind}")), kind));
    }
    let boundary = found.iter().find(|(name, _)| name == "boundary").map(|(_, value)| value);
    let is_usable = boundary.is_some_and(|boundary| (1..=256).contains(&boundary.len()));
    assert_eq!(Splitter::of(text).is_ok(), is_usable);
    is_usable || accepts(Some(text), "application/json")
}

pub(super) const RANGES: Target = Target {
    name: "ranges",
    check: ranges,
    corpus: &[
        b"1000 bytes=0-499",
        b"1000 bytes=500-",
        b"1000 bytes=-500",
        b"1000 bytes=0-0, 5-9 ,-1",
        b"10 bytes=0-18446744073709551615",
        b"0 bytes=0-",
        b"5 bytes=1-2,2-3,3-4,4-4,0-1,1-1,2-2,3-3,0-0,1-2,1-3",
    ],
    words: &["bytes=", "-", ",", "0", "5", "18446744073709551615", "99", " ", "1000 ", "+1"],
    generate: |source| {
        let mut text = format!("{} bytes=", source.below(100));
        for _ in 0..source.below(12) {
            match source.below(3) {
                0 => text.push_str(&format!("-{},", source.below(120))),
                1 => text.push_str(&format!("{}-,", source.below(120))),
                _ => text.push_str(&format!("{}-{},", source.below(100), source.below(120))),
            }
        }
        text.into_bytes()
    },
};

/// Each range lies within the content, and ranges survive writing and parsing again.
fn ranges(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Some((length, text)) = text.split_once(' ') else { return false };
    let Ok(length) = length.parse::<u64>() else { return false };
    let Ok(found) = parse_ranges(text, length) else { return false };
    assert!(found.len() < 10);
    assert!(found.iter().all(|range| range.start < range.end && range.end <= length), "{found:?}");
    let list: Vec<String> = found.iter().map(|range| format!("{}-{}", range.start, range.end - 1)).collect();
    let again = parse_ranges(&format!("bytes={}", list.join(",")), length);
    assert_eq!(again.ok(), Some(found.clone()));
    !found.is_empty()
}
