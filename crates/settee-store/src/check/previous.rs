//! The manifest of the version before, which only an upgrade reads: `settee store manifest 1`.
//!
//! Its lines were, in this order: the number of the manifest; the tree's incarnation; the log's first segment,
//! below which all segments are listed or were removed; the lines of the tree; and the segments. Its checksum
//! was that of the present manifest.

use std::path::Path;

use settee_io::{Damage, Env, File, OpenMode};
use settee_log::{MANIFEST_FILE, Manifest, SegmentName};

use crate::error::StoreError;
use crate::manifest::{StoreManifest, StoreSection};

const MAGIC: &str = "settee store manifest 1";

/// Longest manifest in bytes that the version before wrote.
const SIZE_MAX: u64 = 16 << 20;

/// Reads the manifest of a store; `None` if there is none.
///
/// # Errors
/// [`StoreError::Damaged`], or an I/O error.
pub(super) async fn read_manifest(env: &Env, directory: &Path) -> Result<Option<StoreManifest>, StoreError> {
    let path = directory.join(MANIFEST_FILE);
    let file = match File::open(&env.engine, &path, OpenMode::Read).await {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let length = file.length().await?;
    if length > SIZE_MAX {
        let what = "it is longer than any manifest";
        return Err(StoreError::Damaged(Damage { path, offset: SIZE_MAX, what }));
    }
    let bytes = file.read_exact_at(0, length as usize).await?;
    decode(&bytes).map(Some).map_err(|what| StoreError::Damaged(Damage { path, offset: 0, what }))
}

/// The error says what is wrong.
fn decode(text: &[u8]) -> Result<StoreManifest, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "it isn't text")?;
    let (body, checksum) = text.split_at(text.rfind("checksum ").ok_or("it has no checksum")?);
    let expected = format!("checksum {:016x}\n", twox_hash::XxHash3_64::oneshot(body.as_bytes()));
    if checksum != expected {
        return Err("its checksum doesn't match");
    }
    let lines = body.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix('\n'));
    let (mut log, mut of_store) = (Manifest::default(), String::new());
    for line in lines.ok_or("it has another format")?.lines() {
        take(line, &mut log, &mut of_store).ok_or("a line is invalid")?;
    }
    let section = StoreSection::decode(&of_store).ok_or("a line is invalid")?;
    let is_valid = log.segments.is_sorted_by(|a, b| a.last < b.first)
        && log.segments.iter().all(|segment| 0 < segment.first && segment.first <= segment.last)
        && log.segments.last().is_none_or(|last| last.last <= log.listed_to);
    is_valid.then_some(StoreManifest { log, section }).ok_or("its segments contradict each other")
}

fn take(line: &str, log: &mut Manifest, of_store: &mut String) -> Option<()> {
    let (name, rest) = line.split_once(' ')?;
    match name {
        "number" => log.number = rest.parse().ok()?,
        "first-log-segment" => log.listed_to = rest.parse::<u32>().ok()?.checked_sub(1)?,
        "segment" => {
            let numbers: Vec<u64> = rest.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
            let [first, last, generation, epoch, bytes, clean_to] = numbers[..] else { return None };
            let small = |number| u32::try_from(number).ok();
            log.segments.push(SegmentName {
                first: small(first)?,
                last: small(last)?,
                generation: small(generation)?,
                epoch: small(epoch)?,
                bytes,
                clean_to,
                ..SegmentName::default()
            });
        }
        // The lines of the tree have not changed.
        _ => {
            of_store.push_str(line);
            of_store.push('\n');
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_of_the_version_before_is_read_and_every_flipped_bit_is_found() {
        let body = "settee store manifest 1\nnumber 7\nincarnation 000102030405060708090a0b0c0d0e0f\n\
            first-log-segment 9\ncheckpoint 1200\nlast-listed 1100\ntree 3\nsegment 1 4 2 2 120000 900\n\
            segment 8 8 0 3 70000 0\n";
        let bytes = format!("{body}checksum {:016x}\n", twox_hash::XxHash3_64::oneshot(body.as_bytes()));
        let found = decode(bytes.as_bytes()).unwrap();
        assert_eq!((found.log.number, found.log.listed_to, found.log.segments.len()), (7, 8, 2));
        assert_eq!(found.log.segments[0].file_name(), "0000000001-0000000004-2.seg");
        assert_eq!((found.log.segments[1].bytes, found.log.segments[0].clean_to), (70_000, 900));
        let incarnation = std::array::from_fn(|index| index as u8);
        let section = StoreSection { incarnation, tree: Some(3), checkpoint: 1200, last_in_seq_index: 1100 };
        assert_eq!(found.section, section);
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone().into_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
        }
    }
}
