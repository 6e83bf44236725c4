//! Goal: the parts of a body are found for any content and any split into frames; malformed bodies are
//! refused, and memory use is bounded.
//! Method: generated bodies, split at random and at every byte; random bytes, and corrupted bodies.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const BOUNDARY: &str = "bOunD-ary";

/// The parts found in a body: each one's content type and content.
type Found = Vec<(Option<String>, Vec<u8>)>;

/// Splits frames into parts. Also fails if the splitter holds too many bytes.
fn split(frames: &[&[u8]]) -> Result<Found, String> {
    let mut splitter = Splitter::new(BOUNDARY);
    let mut found: Found = Vec::new();
    let mut is_open = false;
    let mut frames = frames.iter();
    loop {
        match splitter.next().map_err(|failure| failure.reason.into_owned())? {
            Some(Event::Head(head)) => {
                assert!(!is_open);
                is_open = true;
                found.push((head.get("content-type").map(str::to_owned), Vec::new()));
            }
            Some(Event::Piece(piece)) => {
                assert!(is_open && !piece.is_empty());
                found.last_mut().unwrap().1.extend_from_slice(&piece);
            }
            Some(Event::PartEnd) => {
                assert!(is_open);
                is_open = false;
            }
            Some(Event::End) => {
                assert!(!is_open);
                return Ok(found);
            }
            None => {
                assert!(splitter.buffer.len() <= HEAD_BYTES_MAX + 8, "{} held", splitter.buffer.len());
                splitter.push(frames.next().ok_or("expected more data")?);
            }
        }
    }
}

fn body(parts: &Found) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, content) in parts {
        body.extend_from_slice(format!("--{BOUNDARY}\r\n").as_bytes());
        if let Some(kind) = kind {
            body.extend_from_slice(format!("X-Other: a: b\r\ncontent-TYPE:  {kind} \r\n").as_bytes());
        }
        body.extend_from_slice(b"\r\n");
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--").as_bytes());
    body
}

/// Splits bytes into frames of these sizes, cyclically.
fn cut<'a>(mut bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut frames = Vec::new();
    for size in sizes.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (frame, rest) = bytes.split_at((*size).clamp(1, bytes.len()));
        frames.push(frame);
        bytes = rest;
    }
    frames
}

/// Content with many sequences that resemble a delimiter.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        vec(any::<u8>(), 0..20),
        Just(b"\r\n".to_vec()),
        Just(b"\r\n--".to_vec()),
        Just(b"\r\n--bOunD-ar".to_vec()),
        Just(b"--bOunD-ary".to_vec()),
        Just(b"\r\r\n-".to_vec()),
    ];
    let joined = vec(piece, 0..8).prop_map(|pieces| pieces.concat());
    joined.prop_filter("a delimiter", |content| {
        memmem::find(&[b"\r\n".as_slice(), content].concat(), b"\r\n--bOunD-ary").is_none()
            && memmem::find(&[content.as_slice(), b"\r\n--bOunD-ary"].concat(), b"\r\n--bOunD-ary")
                == Some(content.len())
    })
}

fn parts() -> impl Strategy<Value = Found> {
    let kind = prop_oneof![Just(None), Just(Some("text/plain; a=\"b\"".to_owned()))];
    vec((kind, content()), 1..5)
}

proptest! {
    #[test]
    fn parts_are_found_whatever_the_cuts(parts in parts(), sizes in vec(1..40_usize, 1..10)) {
        prop_assert_eq!(split(&cut(&body(&parts), &sizes)), Ok(parts));
    }

    #[test]
    fn bytes_before_and_after_the_parts_are_ignored(
        parts in parts(), before in "[a-z \r\n]{0,50}", behind in vec(any::<u8>(), 0..50), size in 1..40_usize,
    ) {
        let body = [before.as_bytes(), b"\r\n", &body(&parts), &behind].concat();
        prop_assert_eq!(split(&cut(&body, &[size])), Ok(parts));
    }

    #[test]
    fn random_bytes_never_panic_and_never_pass(bytes in vec(any::<u8>(), 0..300), size in 1..40_usize) {
        prop_assert!(split(&cut(&bytes, &[size])).is_err());
    }

    #[test]
    fn a_spoiled_body_gives_the_same_whatever_the_cuts(
        parts in parts(), at in any::<prop::sample::Index>(), byte in any::<u8>(), size in 1..40_usize,
    ) {
        let mut body = body(&parts);
        let at = at.index(body.len());
        body[at] = byte;
        prop_assert_eq!(split(&cut(&body, &[size])), split(&[&body]));
    }

    #[test]
    fn a_body_that_is_cut_off_is_refused(parts in parts(), at in any::<prop::sample::Index>()) {
        let body = body(&parts);
        let cut_off = &body[..at.index(body.len())];
        prop_assert_eq!(split(&[cut_off]), Err("expected more data".to_owned()));
    }

    #[test]
    fn parameters_and_accept_take_anything(text in "\\PC{0,60}", bytes in "[a-z=;\", \\\\/*]{0,40}") {
        parameters(&text);
        parameters(&bytes);
        accepts(Some(&text), "multipart/mixed");
        accepts(Some(&bytes), "multipart/mixed");
    }

    #[test]
    fn a_quoted_name_is_read_as_it_was(name in "[^\\x00-\\x1f\\x7f]{0,30}") {
        let header = format!("attachment; filename={}; x=1", quoted(&name));
        let expected = vec![("filename".to_owned(), name), ("x".to_owned(), "1".to_owned())];
        prop_assert_eq!(parameters(&header), ("attachment".to_owned(), expected));
    }
}

#[test]
fn a_body_is_split_at_every_byte() {
    let parts: Found = vec![
        (Some("application/json".into()), b"{}".to_vec()),
        (None, Vec::new()),
        (None, b"\r\n--bOunD-arx\r\n--".to_vec()),
    ];
    let body = body(&parts);
    for at in 0..=body.len() {
        let (first, second) = body.split_at(at);
        assert_eq!(split(&[first, second]).as_ref(), Ok(&parts), "cut at {at}");
    }
    assert_eq!(split(&cut(&body, &[1])), Ok(parts));
}

#[test]
fn malformed_or_unbounded_bodies_are_refused() {
    let long = "x".repeat(HEAD_BYTES_MAX + 100);
    let cases = [
        ("--bOunD-ary\r\nno colon\r\n\r\n\r\n--bOunD-ary--".to_owned(), "bad part header"),
        ("--bOunD-ary\r\n folded: first\r\n\r\n\r\n--bOunD-ary--".to_owned(), "bad part header"),
        ("--bOunD-aryx\r\n\r\n\r\n--bOunD-ary--".to_owned(), "a boundary isn't followed by a line's end"),
        ("--bOunD-ary\n\r\n\r\n--bOunD-ary--".to_owned(), "a boundary isn't followed by a line's end"),
        (format!("--bOunD-ary{}", " ".repeat(2000)), "a boundary isn't followed by a line's end"),
        (format!("--bOunD-ary\r\na: {long}"), "the header of a part is too large"),
        (format!("--bOunD-ary\r\na: {long}\r\n\r\n\r\n--bOunD-ary--"), "the header of a part is too large"),
        ("x".repeat(PREAMBLE_BYTES_MAX + 100), "the body doesn't begin with its boundary"),
        ("--bOunD-ary--".to_owned(), ""),
    ];
    for (body, reason) in cases {
        for size in [1, 7, 1000, usize::MAX] {
            let expected = if reason.is_empty() { Ok(Vec::new()) } else { Err(reason.to_owned()) };
            assert_eq!(split(&cut(body.as_bytes(), &[size])), expected, "frames of {size}");
        }
    }
}

#[test]
fn a_folded_header_is_one_and_padding_does_not_count() {
    let body = b"--bOunD-ary \t\r\nContent-Type: text/plain;\r\n\tcharset=utf-8\r\n\r\nx\r\n--bOunD-ary--";
    let found = vec![(Some("text/plain; charset=utf-8".to_owned()), b"x".to_vec())];
    assert_eq!(split(&[body]), Ok(found));
}

#[test]
fn a_boundary_is_read_with_and_without_quotes() {
    let of =
        |text| parameters(text).1.into_iter().find(|(name, _)| name == "boundary").map(|(_, value)| value);
    for text in [
        "multipart/related; boundary=a-b",
        "Multipart/Related;boundary=\"a-b\"",
        "multipart/related; type=\"x;boundary=no\"; BOUNDARY = a-b ; c",
    ] {
        assert_eq!(of(text).as_deref(), Some("a-b"), "{text}");
        assert_eq!(parameters(text).0, "multipart/related");
        assert!(Splitter::of(text).is_ok());
    }
    let long = format!("multipart/related; boundary={}", "x".repeat(BOUNDARY_SIZE_MAX + 1));
    for bad in
        ["multipart/related", "multipart/related; boundary=", "multipart/related; boundary=\"\"", &long]
    {
        assert_eq!(Splitter::of(bad).err().map(|failure| failure.status.as_u16()), Some(400), "{bad}");
    }
}

#[test]
fn accepting_everything_accepts_multipart() {
    for accept in
        [None, Some("*/*"), Some("application/json, */*;q=0.1"), Some("multipart/*"), Some("multipart/mixed")]
    {
        assert!(accepts(accept, "multipart/mixed"), "{accept:?}");
    }
    for accept in [
        "application/json",
        "multipart/related",
        "*/*;q=0",
        "*/*, multipart/mixed;q=0",
        "*/*, multipart/*;q=0.0",
        "",
        "*/*;q=x",
    ] {
        assert!(!accepts(Some(accept), "multipart/mixed"), "{accept}");
    }
}
