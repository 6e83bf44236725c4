//! Goal: a plan reads the values' bytes and no others, within the maximum, with the fewest device reads.
//! Method: random values against a map of their bytes; the least number of device reads from trying every way
//! to cover the values, independently of the sweep.

use proptest::prelude::*;

use super::*;
use crate::ALIGNMENT_MAX;

/// Offset after the last byte of the values, rounded out by the largest alignment.
const END: usize = 4_096 + 64;

fn values(count_max: usize) -> impl Strategy<Value = Vec<ReadAt>> {
    let scattered = (0..3_000u64, 0..700usize).prop_map(|(offset, length)| ReadAt::new(offset, length));
    let dense = prop::collection::vec((prop_oneof![3 => Just(0), 1 => 0..90u64], 0..200usize), 0..count_max)
        .prop_map(|steps| {
            let mut at = 0;
            let mut values = Vec::new();
            for (gap, length) in steps {
                values.push(ReadAt::new(at + gap, length));
                at = (at + gap + length as u64).min(3_000);
            }
            values
        });
    prop_oneof![prop::collection::vec(scattered, 0..count_max), dense.prop_shuffle()]
}

fn policy() -> impl Strategy<Value = ReadPolicy> {
    let merge = prop_oneof![
        Just(Merge::AdjacentOnly),
        (0..7u32).prop_map(|shift| Merge::Chunked(Alignment::new(1 << shift).unwrap())),
    ];
    let size_max = prop_oneof![0..700usize, Just(128), Just(usize::MAX)];
    (merge, size_max).prop_map(|(merge, read_size_max)| ReadPolicy { merge, read_size_max })
}

/// The alignment (1 if there is none) and the maximum in effect.
fn limits(policy: ReadPolicy) -> (usize, usize) {
    match policy.merge {
        Merge::AdjacentOnly => (1, policy.read_size_max),
        Merge::Chunked(alignment) => {
            let alignment = alignment.bytes();
            (alignment, (policy.read_size_max / alignment).max(1) * alignment)
        }
    }
}

fn rounded(value: &ReadAt, alignment: usize) -> Range<usize> {
    let start = value.offset as usize;
    start / alignment * alignment..(start + value.length).div_ceil(alignment) * alignment
}

/// For each byte, whether it belongs to a value, rounded out.
fn wanted(values: &[ReadAt], alignment: usize) -> Vec<bool> {
    let mut wanted = vec![false; END];
    for value in values.iter().filter(|value| value.length > 0) {
        wanted[rounded(value, alignment)].fill(true);
    }
    wanted
}

/// Whether `range` is a permitted device read: only wanted bytes, and within the maximum or an oversize
/// value.
fn may_be_read(range: Range<usize>, values: &[ReadAt], wanted: &[bool], policy: ReadPolicy) -> bool {
    let (alignment, size_max) = limits(policy);
    wanted[range.clone()].iter().all(|wanted| *wanted)
        && (range.len() <= size_max
            || values
                .iter()
                .map(|value| rounded(value, alignment))
                .any(|value| value.len() > size_max && value.start <= range.start && range.end <= value.end))
}

/// The fewest ranges such that each value lies whole in one.
fn least_whole(values: &[ReadAt], policy: ReadPolicy) -> usize {
    let values: Vec<_> = values.iter().copied().filter(|value| value.length > 0).collect();
    let wanted = wanted(&values, 1);
    let starts = values.iter().map(|value| value.offset as usize);
    let served: Vec<usize> = starts
        .flat_map(|start| values.iter().map(move |value| start..rounded(value, 1).end))
        .filter(|range| !range.is_empty() && may_be_read(range.clone(), &values, &wanted, policy))
        .map(|range| {
            let inside = |value| {
                let Range { start, end } = rounded(value, 1);
                range.start <= start && end <= range.end
            };
            values.iter().enumerate().filter(|(_, value)| inside(value)).map(|(index, _)| 1 << index).sum()
        })
        .collect();
    let mut least = vec![usize::MAX; 1 << values.len()];
    least[0] = 0;
    for done in 0..least.len() {
        for more in &served {
            least[done | more] = least[done | more].min(least[done].saturating_add(1));
        }
    }
    least[least.len() - 1]
}

/// The fewest ranges that cover each wanted chunk once, with those of oversize values separate.
fn least_chunked(values: &[ReadAt], policy: ReadPolicy) -> usize {
    let (alignment, size_max) = limits(policy);
    let wanted = wanted(values, alignment);
    let oversize = oversize(values, policy);
    let may_be_read = |range: Range<usize>| {
        wanted[range.clone()].iter().all(|wanted| *wanted)
            && match oversize.iter().any(|span| span.start < range.end && range.start < span.end) {
                true => oversize.iter().any(|span| span.start <= range.start && range.end <= span.end),
                false => range.len() <= size_max,
            }
    };
    // The fewest ranges for the chunks before each chunk.
    let mut least = vec![0];
    for end in 1..=END / alignment {
        let count = if wanted[(end - 1) * alignment] {
            (0..end)
                .rev()
                .take_while(|start| wanted[start * alignment])
                .filter(|start| may_be_read(start * alignment..end * alignment))
                .map(|start| least[start] + 1)
                .min()
                .unwrap()
        } else {
            least[end - 1]
        };
        least.push(count);
    }
    least[least.len() - 1]
}

/// The oversize values, rounded out.
fn oversize(values: &[ReadAt], policy: ReadPolicy) -> Vec<Range<usize>> {
    let (alignment, size_max) = limits(policy);
    let spans = values.iter().filter(|value| value.length > 0).map(|value| rounded(value, alignment));
    spans.filter(|span| span.len() > size_max).collect()
}

/// Whether an oversize value and another have bytes in common.
fn overlaps_oversize(values: &[ReadAt], policy: ReadPolicy) -> bool {
    let (alignment, size_max) = limits(policy);
    values.iter().enumerate().any(|(index, value)| {
        let Range { start, end } = rounded(value, 1);
        let overlaps = |(other_index, other): (usize, &ReadAt)| {
            let other = rounded(other, 1);
            other_index != index && other.start < end && start < other.end
        };
        rounded(value, alignment).len() > size_max && values.iter().enumerate().any(overlaps)
    })
}

fn range(read: &DeviceRead) -> Range<usize> {
    read.offset as usize..read.end() as usize
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_reads_every_value_and_nothing_beyond_its_chunks(
        values in values(40),
        policy in policy(),
    ) {
        let device_reads = plan(&values, policy);
        let (alignment, _) = limits(policy);
        let mut read = vec![false; END];
        for device_read in &device_reads {
            prop_assert!(device_read.length > 0);
            read[range(device_read)].fill(true);
        }
        prop_assert_eq!(&read, &wanted(&values, alignment));
        let exactly = wanted(&values, 1);
        for device_read in &device_reads {
            let last = exactly[range(device_read)].iter().rposition(|wanted| *wanted).unwrap();
            prop_assert!(device_read.wanted > last && device_read.wanted <= device_read.length);
        }
        if let Some(device_read) = device_reads.last() {
            let last = exactly.iter().rposition(|wanted| *wanted).unwrap() as u64;
            prop_assert_eq!(device_read.offset + device_read.wanted as u64, last + 1);
        }
        prop_assert!(device_reads.is_sorted_by(|a, b| a.offset < b.offset && a.end() < b.end()));
    }

    #[test]
    fn a_device_read_exceeds_the_maximum_only_within_an_oversize_value(
        values in values(40),
        policy in policy(),
    ) {
        let (alignment, _) = limits(policy);
        let wanted = wanted(&values, alignment);
        for read in plan(&values, policy) {
            prop_assert!(may_be_read(range(&read), &values, &wanted, policy), "{read:?}");
        }
    }

    #[test]
    fn adjacent_only_leaves_every_value_whole(values in values(40), read_size_max in 0..700usize) {
        let device_reads = plan(&values, ReadPolicy { merge: Merge::AdjacentOnly, read_size_max });
        for value in values.iter().filter(|value| value.length > 0) {
            let Range { start, end } = rounded(value, 1);
            let holds = |read: Range<usize>| read.start <= start && end <= read.end;
            prop_assert!(device_reads.iter().map(range).any(holds), "{:?} is split", value);
        }
    }

    #[test]
    fn chunked_reads_each_chunk_once_and_oversize_values_whole(
        values in values(40),
        shift in 0..7u32,
        read_size_max in 0..700usize,
    ) {
        let policy = ReadPolicy { merge: Merge::Chunked(Alignment::new(1 << shift).unwrap()), read_size_max };
        let (alignment, _) = limits(policy);
        let device_reads = plan(&values, policy);
        let mut count_of = vec![0; END / alignment];
        for read in &device_reads {
            prop_assert_eq!((read.offset as usize % alignment, read.length % alignment), (0, 0));
            for count in &mut count_of[read.offset as usize / alignment..read.end() as usize / alignment] {
                *count += 1;
            }
        }
        prop_assert!(count_of.iter().all(|count| *count <= 1), "a chunk is read again");
        let oversize = oversize(&values, policy);
        for span in oversize.iter().filter(|_| !overlaps_oversize(&values, policy)) {
            // Except one whose first chunk its predecessor has.
            if oversize.iter().any(|other| other.start < span.start && span.start < other.end) {
                continue;
            }
            let is_it = |read: Range<usize>| read == *span;
            prop_assert!(device_reads.iter().map(range).any(is_it), "{:?} is not alone", span);
        }
    }

    #[test]
    fn a_plan_has_the_fewest_possible_device_reads(values in values(8), policy in policy()) {
        check_least(&values, policy)?;
    }

    #[test]
    fn many_chunked_values_have_the_fewest_device_reads(
        values in values(40),
        shift in 4..7u32,
        read_size_max in 0..1_500usize,
    ) {
        let merge = Merge::Chunked(Alignment::new(1 << shift).unwrap());
        check_least(&values, ReadPolicy { merge, read_size_max })?;
    }
}

fn check_least(values: &[ReadAt], policy: ReadPolicy) -> Result<(), TestCaseError> {
    let count = plan(values, policy).len();
    match policy.merge {
        Merge::AdjacentOnly => prop_assert_eq!(count, least_whole(values, policy)),
        Merge::Chunked(_) if overlaps_oversize(values, policy) => {
            let count_max = least_chunked(values, policy) + oversize(values, policy).len();
            prop_assert!(count <= count_max, "{} reads", count);
        }
        Merge::Chunked(_) => prop_assert_eq!(count, least_chunked(values, policy)),
    }
    Ok(())
}

fn planned(values: &[(u64, usize)], policy: ReadPolicy) -> Vec<(u64, usize)> {
    let values: Vec<_> = values.iter().map(|(offset, length)| ReadAt::new(*offset, *length)).collect();
    plan(&values, policy).iter().map(|read| (read.offset, read.length)).collect()
}

#[test]
fn plans_match_examples() {
    let adjacent = ReadPolicy { merge: Merge::AdjacentOnly, read_size_max: 100 };
    assert_eq!(planned(&[(50, 10), (0, 10), (10, 20)], adjacent), [(0, 30), (50, 10)]);
    assert_eq!(planned(&[(0, 60), (60, 60), (120, 40)], adjacent), [(0, 60), (60, 100)]);
    assert_eq!(planned(&[(0, 80), (40, 80), (50, 10)], adjacent), [(0, 80), (40, 80)]);
    assert_eq!(planned(&[(0, 10), (10, 500), (510, 10)], adjacent), [(0, 10), (10, 500), (510, 10)]);

    let alignment = Alignment::new(16).unwrap();
    let chunked = ReadPolicy { merge: Merge::Chunked(alignment), read_size_max: 70 };
    assert_eq!(planned(&[(5, 1), (14, 1), (40, 1)], chunked), [(0, 16), (32, 16)]);
    assert_eq!(planned(&[(0, 50), (50, 50), (100, 20)], chunked), [(0, 64), (64, 64)]);
    // The chunk at 32 goes to the oversize value, and the value at 20 is joined.
    assert_eq!(planned(&[(0, 20), (20, 20), (40, 100)], chunked), [(0, 32), (32, 112)]);
}

#[test]
fn values_up_to_the_largest_offset_are_planned_and_those_beyond_are_not() {
    let policy = ReadPolicy::chunked(Alignment::new(ALIGNMENT_MAX).unwrap());
    let last = planned(&[(OFFSET_MAX - 1, 1)], policy);
    assert_eq!(last, [(OFFSET_MAX - ALIGNMENT_MAX as u64, ALIGNMENT_MAX)]);
    let beyond = [(OFFSET_MAX, 1), (u64::MAX, usize::MAX), (1, usize::MAX), (u64::MAX, 0)];
    assert_eq!(planned(&beyond, policy), []);
}
