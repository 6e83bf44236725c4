//! Goal: every document of a response is returned once, however it is chunked; a truncated response, or one
//! with fewer documents than announced, is an error.

use super::document_writer::check_count;
use super::remote::row_document;
use super::row_parser::RowParser;
use super::*;

const RESPONSE: &str = "{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n\
    {\"id\":\"a]\",\"key\":\"a]\",\"value\":{\"rev\":\"1-x\"},\"doc\":{\"_id\":\"a]\",\"_rev\":\"1-x\",\"v\":[1, {\"_rev\":2}]}},\r\n\
    {\"id\":\"b\",\"key\":\"b\",\"value\":{\"rev\":\"1-y\"},\"doc\":{\"_id\":\"b\",\"_rev\":\"1-y\"}}\r\n]}\n";

/// Parses `text` in chunks of `chunk_size` bytes. Returns the lines written and the announced count.
fn parse(text: &str, chunk_size: usize, no_rev: bool) -> Result<(String, Option<u64>), Error> {
    let mut parser = RowParser::all_docs();
    let mut writer = DocumentWriter::new(Vec::new(), no_rev);
    for chunk in text.as_bytes().chunks(chunk_size) {
        parser.feed(chunk, |row| writer.write(row_document(row)?.get().as_bytes()))?;
    }
    let total = parser.finish()?;
    Ok((String::from_utf8(writer.finish()?.0)?, total))
}

#[test]
fn a_response_yields_its_documents_for_every_chunk_size() {
    let expected =
        "{\"_id\":\"a]\",\"_rev\":\"1-x\",\"v\":[1,{\"_rev\":2}]}\n{\"_id\":\"b\",\"_rev\":\"1-y\"}\n";
    for size in [1, 2, 7, 10_000] {
        assert_eq!(parse(RESPONSE, size, false).unwrap(), (expected.to_owned(), Some(2)), "chunks of {size}");
    }
}

#[test]
fn no_rev_removes_only_the_documents_own_rev() {
    let (lines, _) = parse(RESPONSE, 9, true).unwrap();
    assert_eq!(lines, "{\"_id\":\"a]\",\"v\":[1,{\"_rev\":2}]}\n{\"_id\":\"b\"}\n");
}

#[test]
fn a_response_without_rows_is_complete() {
    for size in [1, 100] {
        let (lines, total) = parse("{\"total_rows\":0,\"offset\":0,\"rows\":[]}", size, false).unwrap();
        assert_eq!((lines.as_str(), total), ("", Some(0)));
    }
}

#[test]
fn a_response_truncated_anywhere_is_an_error() {
    for end in 0..RESPONSE.trim_end().len() {
        assert!(parse(&RESPONSE[..end], 5, false).is_err(), "truncated at {end}: {}", &RESPONSE[..end]);
    }
}

#[test]
fn a_row_without_a_document_is_an_error() {
    let text = "{\"total_rows\":1,\"rows\":[{\"id\":\"a\",\"value\":{},\"doc\":null}]}";
    assert_eq!(parse(text, 100, false).unwrap_err().to_string(), "a row contains no document");
}

#[test]
fn fewer_documents_than_announced_are_an_error() {
    assert!(check_count(1, 2).is_err());
    assert!(check_count(2, 2).is_ok());
}

#[test]
fn a_dump_that_fails_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.jsonl");
    let temporary = TemporaryFile::new(&path).unwrap();
    fs::write(&temporary.path, "half").unwrap();
    drop(temporary);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let temporary = TemporaryFile::new(&path).unwrap();
    fs::write(&temporary.path, "whole").unwrap();
    temporary.rename(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn devices_and_directories_are_never_replaced() {
    let directory = tempfile::tempdir().unwrap();
    assert!(is_special(Path::new("/dev/null")));
    assert!(is_special(directory.path()));
    assert!(!is_special(&directory.path().join("new")));
    let file = directory.path().join("old");
    fs::write(&file, "x").unwrap();
    assert!(!is_special(&file));
}
