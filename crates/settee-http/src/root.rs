//! What the server tells of itself: `/`, `_up`, `_all_dbs`, `_uuids`.

use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use settee_doc::NameRange;

use crate::error::Failure;
use crate::query::{self, Key};
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::{COUCHDB_VERSION, json};

/// The answer to `GET /`. `git_sha` names Settee's version, since there is no CouchDB here.
pub(crate) fn welcome_text(uuid: &str) -> Bytes {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = Vec::new();
    json::object(&mut text, |text| {
        let head = format!(
            "\"couchdb\":\"Welcome\",\"version\":\"{COUCHDB_VERSION}\",\"git_sha\":\"settee-{version}\",\"uuid\":"
        );
        text.extend_from_slice(head.as_bytes());
        settee_doc::write_json_string(uuid, text);
        let vendor = format!(",\"features\":[],\"vendor\":{{\"name\":\"Settee\",\"version\":\"{version}\"}}");
        text.extend_from_slice(vendor.as_bytes());
    });
    text.push(b'\n');
    text.into()
}

pub(crate) fn welcome(call: &Call<'_>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET,HEAD"));
    }
    Ok(reply::json(StatusCode::OK, call.server.welcome.clone()))
}

/// 200 while writes are taken, 503 with the reason once a log has stopped.
pub(crate) fn up(call: &Call<'_>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET,HEAD"));
    }
    match call.server.databases.health() {
        Ok(()) => Ok(reply::json(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\",\"seeds\":{}}\n"))),
        Err(error) => {
            let mut text = Vec::new();
            json::object(&mut text, |text| {
                text.extend_from_slice(b"\"status\":\"stopped\",\"reason\":");
                settee_doc::write_json_string(&error.to_string(), text);
            });
            text.push(b'\n');
            Ok(reply::json(StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}

/// The databases' names, in a range of them.
pub(crate) fn all_dbs(call: &Call<'_>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET,HEAD"));
    }
    let (mut start, mut end) = (None, None);
    let (mut inclusive_end, mut descending) = (true, false);
    let (mut limit, mut skip) = (u64::MAX, 0);
    for (name, value) in call.query().pairs() {
        match name.as_ref() {
            "startkey" | "start_key" => start = Some(Key::parse(&value)?),
            "endkey" | "end_key" => end = Some(Key::parse(&value)?),
            "key" => (start, end) = (Some(Key::parse(&value)?), Some(Key::parse(&value)?)),
            "inclusive_end" => inclusive_end = query::boolean(&value)?,
            "descending" => descending = query::boolean(&value)?,
            "limit" => limit = query::positive(&value)?,
            "skip" => skip = query::positive(&value)?,
            _ => {}
        }
    }
    let bound = |key: Option<Key>, inclusive: bool| match key {
        None => Bound::Unbounded,
        Some(Key::Text(name)) if inclusive => Bound::Included(name),
        Some(Key::Text(name)) => Bound::Excluded(name),
        // No name sorts before the empty one.
        Some(Key::BeforeAll) => Bound::Excluded(String::new()),
    };
    let (start, end) = (bound(start, true), bound(end, inclusive_end));
    let (start, end) = if descending { (end, start) } else { (start, end) };
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut text = vec![b'['];
    call.server.databases.visit_names(NameRange { start, end, descending, skip, limit }, |name| {
        write_item(name, &mut text);
    });
    text.extend_from_slice(b"]\n");
    Ok(reply::json(StatusCode::OK, text))
}

/// Adds a string to an array that has been begun.
fn write_item(item: &str, text: &mut Vec<u8>) {
    if text.last() != Some(&b'[') {
        text.push(b',');
    }
    settee_doc::write_json_string(item, text);
}

/// Fresh identifiers, which no cache may keep.
pub(crate) fn uuids(call: &Call<'_>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET"));
    }
    let not_positive = || Failure::bad_request("count must be a positive integer");
    let count = match call.query().get("count") {
        None => 1,
        Some(text) => text.parse::<i64>().map_err(|_| not_positive())?,
    };
    let count = u64::try_from(count).map_err(|_| not_positive())?;
    if count > call.server.limits.max_uuids {
        return Err(Failure::bad_request("count parameter too large"));
    }
    let mut text = b"{\"uuids\":[".to_vec();
    (0..count).for_each(|_| write_item(&call.server.uuids.next(), &mut text));
    text.extend_from_slice(b"]}\n");
    let mut response = reply::json(StatusCode::OK, text);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    headers.insert(header::EXPIRES, HeaderValue::from_static("Mon, 01 Jan 1990 00:00:00 GMT"));
    Ok(response)
}

/// Makes identifiers like CouchDB's: a random prefix and a number that grows by random steps,
/// so that documents made one after the other lie side by side.
pub(crate) struct Uuids(Mutex<Sequence>);

struct Sequence {
    prefix: [u8; 13],
    number: u32,
    /// State of the generator that draws the steps; they are no secret.
    steps: u64,
}

/// Past this a new prefix is drawn: three bytes less one step.
const NUMBER_MAX: u32 = 0xfff000;

impl Uuids {
    pub(crate) fn new() -> Uuids {
        Uuids(Mutex::new(Sequence::draw()))
    }

    /// 32 hex digits.
    pub(crate) fn next(&self) -> String {
        let mut sequence = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sequence.number > NUMBER_MAX {
            *sequence = Sequence::draw();
        }
        let mut bytes = [0; 16];
        bytes[..13].copy_from_slice(&sequence.prefix);
        bytes[13..].copy_from_slice(&sequence.number.to_be_bytes()[1..]);
        let mut digits = Vec::with_capacity(32);
        settee_doc::write_hash(&bytes, &mut digits);
        sequence.advance();
        String::from_utf8(digits).expect("hex digits are ASCII")
    }
}

impl Sequence {
    fn draw() -> Sequence {
        let (mut prefix, mut seed) = ([0; 13], [0; 8]);
        getrandom::fill(&mut prefix).expect("the system gives randomness");
        getrandom::fill(&mut seed).expect("the system gives randomness");
        let mut sequence = Sequence { prefix, number: 0, steps: u64::from_ne_bytes(seed) | 1 };
        sequence.advance();
        sequence
    }

    /// Adds 1 to 4094 (xorshift64).
    fn advance(&mut self) {
        self.steps ^= self.steps << 13;
        self.steps ^= self.steps >> 7;
        self.steps ^= self.steps << 17;
        self.number += 1 + (self.steps % 0xffe) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_distinct_and_mostly_in_order() {
        let uuids = Uuids::new();
        let drawn: Vec<String> = (0..20_000).map(|_| uuids.next()).collect();
        assert!(drawn.iter().all(|uuid| uuid.len() == 32 && uuid.bytes().all(|b| b.is_ascii_hexdigit())));
        let descents = drawn.windows(2).filter(|pair| pair[0] >= pair[1]).count();
        // A prefix lasts for about 8,000: a new one may begin lower.
        assert!(descents <= 6, "{descents} descents");
        let distinct: std::collections::HashSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), drawn.len());
    }

    #[test]
    fn the_welcome_names_the_version_spoken_and_the_vendor() {
        let welcome: serde_json::Value = serde_json::from_slice(&welcome_text("ab")).unwrap();
        assert_eq!(welcome["version"], "3.5.0");
        assert_eq!(welcome["vendor"]["name"], "Settee");
        assert_eq!(welcome["uuid"], "ab");
    }
}
