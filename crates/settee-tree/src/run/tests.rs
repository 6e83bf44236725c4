//! Where runs are split.

use super::*;

/// The nodes' sizes and item counts.
fn split_into_nodes(run: &Run, level: u8, inserted: Option<Range<usize>>) -> Vec<(usize, usize)> {
    let mut first = 0;
    let ends = run.split_into_nodes(level, 512, inserted);
    let nodes = ends.into_iter().map(|end| {
        let items = std::mem::replace(&mut first, end)..end;
        (items.len(), run.node_size(items))
    });
    nodes.collect()
}

fn run_of(sizes: impl IntoIterator<Item = usize>) -> Run {
    let mut run = Run::default();
    for (index, size) in sizes.into_iter().enumerate() {
        run.push(&(index as u32).to_be_bytes(), &vec![0; size]);
    }
    run
}

#[test]
fn nodes_are_full_but_the_last_two_which_share() {
    for count in 1..200 {
        let nodes = split_into_nodes(&run_of(vec![20; count]), 0, None);
        assert_eq!(nodes.iter().map(|(items, _)| items).sum::<usize>(), count);
        assert!(nodes.iter().all(|(_, size)| *size <= 512), "{nodes:?}");
        if nodes.len() >= 2 {
            assert!(nodes.iter().all(|(_, size)| *size >= 230), "{nodes:?}");
            assert!(nodes[..nodes.len() - 2].iter().all(|(_, size)| *size > 480), "{nodes:?}");
        }
    }
}

#[test]
fn appended_items_leave_a_full_node() {
    let run = run_of(vec![20; 23]);
    let balanced = split_into_nodes(&run, 0, None);
    let appended = split_into_nodes(&run, 0, Some(22..23));
    assert!(balanced[0].0 < 14 && appended[0].0 > 18, "{balanced:?} {appended:?}");
    // In the middle, the split is where the insertions end.
    let inserted = split_into_nodes(&run, 0, Some(10..17));
    assert_eq!(inserted[0].0, 17, "{inserted:?}");
}

#[test]
fn large_items_have_nodes_of_their_own_and_inner_nodes_two_children() {
    let nodes = split_into_nodes(&run_of([2000, 10, 3000, 3000, 10]), 0, None);
    assert_eq!(nodes.iter().map(|(items, _)| *items).collect::<Vec<_>>(), [1, 1, 1, 1, 1]);
    for count in 2..12 {
        let nodes = split_into_nodes(&run_of(vec![2000; count]), 1, None);
        assert!(nodes.iter().all(|(items, _)| (2..=3).contains(items)), "{nodes:?}");
    }
    assert_eq!(split_into_nodes(&run_of([2000]), 1, None).len(), 1);
    assert!(split_into_nodes(&Run::default(), 0, None).is_empty());
}

#[test]
fn a_long_common_prefix_makes_no_node_too_large() {
    // Keys with a long common prefix take little space until another key joins the node.
    for others in 1..20 {
        let mut run = Run::default();
        for number in 0..40_u32 {
            run.push(&[vec![b'p'; 3000], number.to_be_bytes().to_vec()].concat(), b"");
        }
        for number in 0..others {
            run.push(&[b'q', number], b"value");
        }
        for (items, size) in split_into_nodes(&run, 0, None) {
            assert!(size <= 512 || items == 1 && size < 3100, "{items} items of {size}");
        }
    }
}

#[test]
fn separators_are_short_and_separate() {
    let keys: [&[u8]; 6] = [b"", b"a", b"ab", b"abacus", b"abstract", b"b"];
    let mut run = Run::default();
    keys.iter().for_each(|key| run.push(key, b""));
    let separators: Vec<_> = (1..6).map(|index| run.separator(index)).collect();
    assert_eq!(separators, [&b"a"[..], b"ab", b"aba", b"abs", b"b"]);
    for (index, separator) in (1..).zip(separators) {
        assert!(keys[index - 1] < separator && separator <= keys[index]);
    }
}

#[test]
fn items_are_removed_from_both_ends() {
    let mut run = run_of([1, 2, 3, 4, 5]);
    run.remove_front(2);
    run.truncate(2);
    assert_eq!((run.len(), run.payload(0), run.key(1)), (2, &[0; 3][..], &3_u32.to_be_bytes()[..]));
    assert_eq!(run.bytes(), 4 + 3 + 4 + 4);
    run.remove_front(2);
    assert!(run.is_empty() && run.bytes() == 0);
}
