//! Goal: what a listing holds comes out document by document, and a listing that is cut or
//! holds less than it announced is never taken for a whole one.

use super::listing::Listing;
use super::remote::row_document;
use super::*;

const LISTING: &str = "{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n\
    {\"id\":\"a]\",\"key\":\"a]\",\"value\":{\"rev\":\"1-x\"},\"doc\":{\"_id\":\"a]\",\"_rev\":\"1-x\",\"v\":[1, {\"_rev\":2}]}},\r\n\
    {\"id\":\"b\",\"key\":\"b\",\"value\":{\"rev\":\"1-y\"},\"doc\":{\"_id\":\"b\",\"_rev\":\"1-y\"}}\r\n]}\n";

fn take_apart(text: &str, piece: usize, no_rev: bool) -> Result<(String, Option<u64>), Error> {
    let mut listing = Listing::of_rows();
    let mut sink = Sink::new(Vec::new(), no_rev);
    for chunk in text.as_bytes().chunks(piece) {
        listing.take(chunk, |row| sink.write(row_document(row)?.get().as_bytes()))?;
    }
    let total = listing.finish()?;
    Ok((String::from_utf8(sink.finish()?.0)?, total))
}

#[test]
fn a_listing_gives_its_documents_however_it_is_cut() {
    let expected =
        "{\"_id\":\"a]\",\"_rev\":\"1-x\",\"v\":[1,{\"_rev\":2}]}\n{\"_id\":\"b\",\"_rev\":\"1-y\"}\n";
    for piece in [1, 2, 7, 10_000] {
        assert_eq!(
            take_apart(LISTING, piece, false).unwrap(),
            (expected.to_owned(), Some(2)),
            "pieces of {piece}"
        );
    }
}

#[test]
fn without_revisions_nothing_else_is_left_out() {
    let (lines, _) = take_apart(LISTING, 9, true).unwrap();
    assert_eq!(lines, "{\"_id\":\"a]\",\"v\":[1,{\"_rev\":2}]}\n{\"_id\":\"b\"}\n");
}

#[test]
fn an_empty_listing_is_whole() {
    for piece in [1, 100] {
        let (lines, total) = take_apart("{\"total_rows\":0,\"offset\":0,\"rows\":[]}", piece, false).unwrap();
        assert_eq!((lines.as_str(), total), ("", Some(0)));
    }
}

#[test]
fn a_listing_cut_anywhere_is_an_error() {
    for end in 0..LISTING.trim_end().len() {
        assert!(take_apart(&LISTING[..end], 5, false).is_err(), "cut at {end}: {}", &LISTING[..end]);
    }
}

#[test]
fn a_row_without_a_document_is_an_error() {
    let text = "{\"total_rows\":1,\"rows\":[{\"id\":\"a\",\"value\":{},\"doc\":null}]}";
    assert_eq!(take_apart(text, 100, false).unwrap_err().to_string(), "a row holds no document");
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
    let temporary = Temporary::new(&path).unwrap();
    fs::write(&temporary.path, "half").unwrap();
    drop(temporary);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let temporary = Temporary::new(&path).unwrap();
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
