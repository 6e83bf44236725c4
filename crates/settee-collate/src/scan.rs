//! Reads the structure of sort keys.

use crate::order::{Collation, END};

/// The part of an array's sort key that its tag and its first `count` elements make up: arrays that agree in
/// these elements, and in nothing else, share it. Of an array with fewer elements it is the whole sort key, which no
/// other array shares. `None` for other values, and if `key` is a sort key that was cut before the end of that part.
pub fn array_prefix(key: &[u8], count: usize, collation: Collation) -> Option<&[u8]> {
    if *key.first()? != collation.tags().array {
        return None;
    }
    let mut end = 1;
    for _ in 0..count {
        if *key.get(end)? == END {
            return key.get(..=end);
        }
        end = value_end(key, end, collation)?;
    }
    key.get(..end)
}

/// The end of the value whose sort key begins at `at`; `None` if it was cut.
fn value_end(key: &[u8], mut at: usize, collation: Collation) -> Option<usize> {
    let tags = collation.tags();
    let mut depth = 0_usize;
    loop {
        let tag = *key.get(at)?;
        at += 1;
        if tag == tags.number {
            at += 8;
        } else if tag == tags.string {
            at = text_end(key, at, collation)?;
        } else if tag == tags.array || tag == tags.object {
            depth += 1;
        } else if tag == END {
            depth = depth.checked_sub(1)?;
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

fn text_end(key: &[u8], mut at: usize, collation: Collation) -> Option<usize> {
    loop {
        let zero = at + memchr::memchr(0, key.get(at..)?)?;
        match collation {
            Collation::Unicode => return Some(zero + 1),
            Collation::Raw if *key.get(zero + 1)? == 0 => return Some(zero + 2),
            Collation::Raw => at = zero + 2,
        }
    }
}

/// Turns the beginning of some byte strings into the least bound above all of them: the last byte that isn't 255
/// is raised, and what follows it is cut. The result is empty if there is no such byte.
pub fn raise(prefix: &mut Vec<u8>) {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return;
        }
    }
}
