//! Paths into a value, all looked up in one walk.

use std::ops::Range;

use super::error::SelectorError;
use super::raw::{Raw, ValueKind};

/// The value at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Value(Raw<'a>),
    Missing,
    /// The path leads through a value without members.
    NoPath,
}

/// Sorted paths, each the member names and array indexes from the outside in.
#[derive(Debug, Clone)]
pub(super) struct Paths(Vec<Vec<String>>);

impl Paths {
    pub(super) fn new(mut paths: Vec<Vec<String>>) -> Paths {
        paths.sort_unstable();
        paths.dedup();
        Paths(paths)
    }

    /// A path's index in the results.
    pub(super) fn place(&self, path: &[String]) -> Option<usize> {
        self.0.binary_search_by(|one| one.as_slice().cmp(path)).ok()
    }

    /// The path of a result's index.
    pub(super) fn path(&self, place: usize) -> &[String] {
        &self.0[place]
    }

    /// The values at the paths, by index.
    pub(super) fn find<'a>(&self, value: Raw<'a>) -> Vec<Found<'a>> {
        let mut found = vec![Found::Missing; self.0.len()];
        find(&self.0, 0, value, &mut found);
        found
    }

    /// The values at the paths in an object with these members. The object itself is missing.
    pub(super) fn find_among<'a>(&self, members: impl Iterator<Item = (Raw<'a>, Raw<'a>)>) -> Vec<Found<'a>> {
        let mut found = vec![Found::Missing; self.0.len()];
        let own = usize::from(self.0.first().is_some_and(Vec::is_empty));
        find_members(&self.0[own..], 0, members, &mut found[own..]);
        found
    }
}

/// Looks up `paths`, which agree up to `depth`, in the value at that depth.
fn find<'a>(paths: &[Vec<String>], depth: usize, value: Raw<'a>, found: &mut [Found<'a>]) {
    let is_own = paths.first().is_some_and(|path| path.len() == depth);
    if is_own {
        found[0] = Found::Value(value);
    }
    let (paths, found) = (&paths[usize::from(is_own)..], &mut found[usize::from(is_own)..]);
    match value.kind() {
        _ if paths.is_empty() => {}
        ValueKind::Object => find_members(paths, depth, value.members(), found),
        ValueKind::Array => find_elements(paths, depth, value, found),
        _ => found.fill(Found::NoPath),
    }
}

fn find_members<'a>(
    paths: &[Vec<String>],
    depth: usize,
    members: impl Iterator<Item = (Raw<'a>, Raw<'a>)>,
    found: &mut [Found<'a>],
) {
    let mut groups: Vec<(&str, Range<usize>, Option<Raw<'_>>)> =
        groups(paths, depth).map(|range| (paths[range.start][depth].as_str(), range, None)).collect();
    for (name, value) in members {
        let Some(name) = name.text() else { continue };
        // Of repeated names the last counts.
        if let Ok(place) = groups.binary_search_by(|(wanted, ..)| (*wanted).cmp(&name)) {
            groups[place].2 = Some(value);
        }
    }
    for (_, range, value) in groups {
        match value {
            Some(value) => find(&paths[range.clone()], depth + 1, value, &mut found[range]),
            None => found[range].fill(Found::Missing),
        }
    }
}

fn find_elements<'a>(paths: &[Vec<String>], depth: usize, array: Raw<'a>, found: &mut [Found<'a>]) {
    found.fill(Found::NoPath);
    let place = |range: &Range<usize>| usize::try_from(paths[range.start][depth].parse::<i64>().ok()?).ok();
    let mut groups: Vec<(usize, Range<usize>)> =
        groups(paths, depth).filter_map(|range| Some((place(&range)?, range))).collect();
    // An index has several spellings: `1`, `01`.
    groups.sort_unstable_by_key(|(place, _)| *place);
    let mut groups = groups.into_iter().peekable();
    for (at, value) in array.elements().enumerate() {
        if groups.peek().is_none() {
            return;
        }
        while let Some((_, range)) = groups.next_if(|(place, _)| *place == at) {
            find(&paths[range.clone()], depth + 1, value, &mut found[range]);
        }
    }
}

/// Groups sorted paths that are longer than `depth` by their name there.
fn groups(paths: &[Vec<String>], depth: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    paths.chunk_by(move |one, other| one[depth] == other[depth]).map(move |group| {
        let range = start..start + group.len();
        start = range.end;
        range
    })
}

/// The value at the path `parts` in `value`.
pub(super) fn find_within<'a>(mut value: Raw<'a>, parts: &[String]) -> Found<'a> {
    for part in parts {
        let next = match value.kind() {
            ValueKind::Object => match value.member(part) {
                Some(next) => next,
                None => return Found::Missing,
            },
            ValueKind::Array => {
                let place = part.parse::<i64>().ok().and_then(|place| usize::try_from(place).ok());
                match place.and_then(|place| value.elements().nth(place)) {
                    Some(next) => next,
                    None => return Found::NoPath,
                }
            }
            _ => return Found::NoPath,
        };
        value = next;
    }
    Found::Value(value)
}

/// Splits a field's name at dots that don't follow a backslash.
///
/// # Errors
/// `invalid_field_name` if a part is empty.
pub(super) fn parse_path(field: &str) -> Result<Vec<String>, SelectorError> {
    if field.is_empty() {
        return Ok(Vec::new());
    }
    let mut parts = Vec::new();
    let (mut start, mut before) = (0, 0);
    for (at, byte) in field.bytes().enumerate() {
        if byte == b'.' && before != b'\\' {
            parts.push(&field[start..at]);
            start = at + 1;
        }
        before = byte;
    }
    parts.push(&field[start..]);
    if parts.iter().any(|part| part.is_empty()) {
        return Err(SelectorError::new("invalid_field_name", format!("Invalid field name: {field}")));
    }
    Ok(parts.into_iter().map(|part| part.replace('\\', "")).collect())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn path() -> impl Strategy<Value = Vec<String>> {
        vec(proptest::sample::select(&["a", "b", "0", "1", "01", "-0", "x y"]).prop_map(String::from), 0..4)
    }

    const VALUES: [&str; 7] = [
        "1",
        "{}",
        r#"{"a":1,"b":{"a":[1,{"b":2}],"0":3},"a":{"a":4,"x y":[[5]]}}"#,
        r#"[{"a":[0,1]},{"\u0061":{"b":[]}},[2]]"#,
        r#"{"0":[[1,2],[3]],"1":{"0":{"1":"x"}},"b":"\"a\""}"#,
        r#"[[[{"a":1}]],"b"]"#,
        r#"{"a":[{"a":{"a":{}}},null],"b":false}"#,
    ];

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn joint_lookup_equals_single_lookups(paths in vec(path(), 0..12)) {
            let together = Paths::new(paths.clone());
            for value in VALUES.map(Raw::new) {
                let found = together.find(value);
                for path in &paths {
                    let place = together.place(path).unwrap();
                    prop_assert_eq!(together.path(place), path.as_slice());
                    prop_assert_eq!(found[place], find_within(value, path), "{:?} of {}", path, value.0);
                }
            }
        }
    }

    #[test]
    fn members_are_found_without_their_object() {
        let paths = Paths::new(vec![vec![], vec!["a".into(), "0".into()], vec!["b".into()]]);
        let found = paths.find_among(Raw::new(r#"{"a":[7],"c":1}"#).members());
        assert_eq!(found, [Found::Missing, Found::Value(Raw("7")), Found::Missing]);
    }
}
