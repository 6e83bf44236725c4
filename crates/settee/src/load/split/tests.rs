//! Goal: the splitter finds the same documents as a parser of the whole input, for every layout and chunk
//! size; malformed input is an error with its line. Method: random JSON written as lines and as arrays, read
//! in random chunks.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Reader that returns `text` in chunks of the given sizes, repeated cyclically.
struct ChunkReader<'a> {
    text: &'a [u8],
    sizes: Vec<usize>,
    read_count: usize,
}

impl Read for ChunkReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let size = self.sizes[self.read_count % self.sizes.len()].min(into.len()).min(self.text.len());
        self.read_count += 1;
        into[..size].copy_from_slice(&self.text[..size]);
        self.text = &self.text[size..];
        Ok(size)
    }
}

/// Returns the results of the splitter: documents with their lines, or error messages.
fn split(text: &[u8], sizes: &[usize], size_max: usize) -> Vec<Result<(u64, Vec<u8>), String>> {
    let reader = ChunkReader { text, sizes: sizes.to_vec(), read_count: 0 };
    let mut splitter = Splitter::new(reader, size_max).unwrap();
    let (mut found, mut document) = (Vec::new(), Vec::new());
    loop {
        match splitter.next(&mut document) {
            Ok(None) => {
                assert_eq!(splitter.bytes_read(), text.len() as u64, "all input is consumed");
                return found;
            }
            Ok(Some(line)) => found.push(Ok((line, document.clone()))),
            Err(error @ (SplitError::TooLarge { .. } | SplitError::NoDocument { .. })) => {
                found.push(Err(error.to_string()))
            }
            Err(error) => {
                found.push(Err(error.to_string()));
                return found;
            }
        }
    }
}

fn whole(text: &[u8]) -> Vec<Result<(u64, Vec<u8>), String>> {
    split(text, &[4096], 1 << 20)
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[\\[\\]{},:\"\\\\\\n\\r\té x]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-c\"\\\\{\\]]{1,4}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::vec(("[a-d\"\\\\}\\[]{1,4}", json()), 0..4)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

fn parsed(found: &[Result<(u64, Vec<u8>), String>]) -> Vec<Value> {
    found.iter().map(|found| serde_json::from_slice(&found.as_ref().unwrap().1).unwrap()).collect()
}

proptest! {
    #[test]
    fn documents_written_as_lines_are_returned_unchanged(
        documents in prop::collection::vec(object(), 0..8),
        crlf in any::<bool>(),
        mark in any::<bool>(),
        last_end in any::<bool>(),
        sizes in prop::collection::vec(1_usize..40, 1..4),
    ) {
        let end = if crlf { "\r\n" } else { "\n" };
        let lines: Vec<String> = documents.iter().map(Value::to_string).collect();
        let mut text = if mark { BYTE_ORDER_MARK.to_vec() } else { Vec::new() };
        text.extend_from_slice(lines.join(end).as_bytes());
        text.extend_from_slice(if last_end { end.as_bytes() } else { b"" });
        let found = split(&text, &sizes, 1 << 20);
        prop_assert_eq!(parsed(&found), documents);
        let numbers: Vec<u64> = found.iter().map(|found| found.as_ref().unwrap().0).collect();
        prop_assert_eq!(numbers, (1..=lines.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn elements_of_an_array_equal_those_of_a_parser(
        elements in prop::collection::vec(json(), 0..8),
        pretty in any::<bool>(),
        mark in any::<bool>(),
        sizes in prop::collection::vec(1_usize..40, 1..4),
    ) {
        let mut text = if mark { BYTE_ORDER_MARK.to_vec() } else { b" \r\n\t".to_vec() };
        let array = Value::from(elements.clone());
        text.extend_from_slice(&if pretty { serde_json::to_vec_pretty(&array) } else { serde_json::to_vec(&array) }.unwrap());
        text.extend_from_slice(b" \n");
        let found = split(&text, &sizes, 1 << 20);
        prop_assert_eq!(parsed(&found), elements);
        if pretty {
            for found in &found {
                let (line, element) = found.as_ref().unwrap();
                let at_line = text.split(|&byte| byte == b'\n').nth(*line as usize - 1).unwrap();
                let first = element.split(|&byte| byte == b'\n').next().unwrap();
                prop_assert!(memchr::memmem::find(at_line, first).is_some(), "line {line}");
            }
        }
    }

    #[test]
    fn a_truncated_array_is_an_error_that_names_a_line(
        elements in prop::collection::vec(object(), 1..6),
        cut in any::<prop::sample::Index>(),
        sizes in prop::collection::vec(1_usize..40, 1..4),
    ) {
        let text = serde_json::to_vec_pretty(&Value::from(elements.clone())).unwrap();
        let cut = 1 + cut.index(text.len() - 1);
        let found = split(&text[..cut], &sizes, 1 << 20);
        let (last, whole) = found.split_last().unwrap();
        let message = last.as_ref().unwrap_err();
        prop_assert!(message.starts_with("line ") && message.ends_with("the input ends inside the array"), "{message}");
        prop_assert_eq!(parsed(whole), elements[..whole.len()].to_vec());
    }
}

#[test]
fn empty_input_contains_no_document() {
    for text in ["", "\u{feff}", " \r\n\n", "[]", " [ \n ] ", "\n\n"] {
        assert_eq!(whole(text.as_bytes()), [], "{text:?}");
    }
}

#[test]
fn a_document_over_the_limit_is_skipped_and_reported_with_its_line() {
    let too_large = |line| Err(format!("line {line}: the document exceeds 9 bytes"));
    let cases = [
        ("{\"a\":123}\r\n{\"a\":1234}\n\n{\"b\":1}", 2, 4),
        ("[{\"a\":123},\n{\"a\":1234},\n\n{\"b\":1}]", 2, 4),
    ];
    for (text, large_line, last_line) in cases {
        for size in [1, 3, 100] {
            let expected = [
                Ok((1, b"{\"a\":123}".to_vec())),
                too_large(large_line),
                Ok((last_line, b"{\"b\":1}".to_vec())),
            ];
            assert_eq!(split(text.as_bytes(), &[size], 9), expected, "{text:?} in chunks of {size}");
        }
    }
}

#[test]
fn a_truncated_element_is_reported_with_its_first_line() {
    let found = whole(b"[\n {\"a\":1},\n {\"b\":\n \"]");
    assert_eq!(found[1], Err("line 3: the input ends inside the array".to_owned()));
}

#[test]
fn a_malformed_array_is_an_error_with_its_line() {
    let cases = [
        ("[{},\n]", "line 2: an element of the array is missing"),
        ("[\n\n,{}]", "line 3: an element of the array is missing"),
        ("[{}]\n{}", "line 2: unexpected text after the array"),
        ("[\n}]", "line 2: a closing bracket has no opening bracket"),
    ];
    for (text, message) in cases {
        assert_eq!(whole(text.as_bytes()).pop().unwrap(), Err(message.to_owned()), "{text:?}");
    }
}

#[test]
fn an_invalid_line_does_not_affect_other_lines() {
    let found = whole(b"{\"a\":1}\n{\"b\":\n\n{\"c\":1}\n");
    let expected: [Result<(u64, Vec<u8>), String>; 3] =
        [Ok((1, b"{\"a\":1}".to_vec())), Ok((2, b"{\"b\":".to_vec())), Ok((4, b"{\"c\":1}".to_vec()))];
    assert_eq!(found, expected);
}
