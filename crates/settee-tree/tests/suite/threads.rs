//! Goal: readers and the writer don't disturb each other on real threads and files either.
//! Method: tasks read their roots in every way while updates and commits continue, buffered and direct, with
//! a cache that is too small. Each root's entries are known from its commit.

#![expect(clippy::disallowed_methods, reason = "this is about real threads")]

use crate::common;

use std::ops::Bound;
use std::sync::Arc;

use common::Polynomial;
use settee_io::{Env, ThreadOptions};
use settee_tree::{Change, NodeCache, Root, Tree, TreeError, TreeOptions};

const KEY_COUNT: u32 = 3000;
const COMMIT_COUNT: u64 = 40;

/// The root of commit `seq` has every `seq`-th key, with `seq` as its value.
fn expected_count(seq: u64) -> u64 {
    u64::from(KEY_COUNT).div_ceil(seq)
}

async fn read(root: Root<Polynomial>) -> Result<(), TreeError> {
    let seq = root.seq();
    let value = seq.to_be_bytes();
    let mut scan = root.scan((Bound::Unbounded, Bound::Unbounded), seq.is_multiple_of(2));
    let mut count = 0;
    while let Some((_, found)) = scan.next().await? {
        assert_eq!(found, value);
        count += 1;
    }
    assert_eq!((count, root.len()), (expected_count(seq), expected_count(seq)));
    let keys: Vec<_> = (0..KEY_COUNT).map(u32::to_be_bytes).collect();
    let mut found_count = 0;
    root.get_many(&keys, |_, found| found_count += u64::from(found.is_some())).await?;
    assert_eq!(found_count, count);
    for number in (0..KEY_COUNT).step_by(101) {
        let found = root.get(&number.to_be_bytes()).await?;
        assert_eq!(found.is_some(), u64::from(number) % seq == 0);
    }
    assert_eq!(root.count_in((Bound::Unbounded, Bound::Excluded(&KEY_COUNT.to_be_bytes()))).await?, count);
    assert_eq!(root.check(|_, _| {}, |_| {}).await?, []);
    Ok(())
}

#[test]
fn roots_are_read_while_others_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let env = Env::system(runtime.handle().clone(), ThreadOptions::default());
    for direct in [false, true] {
        let path = directory.path().join(format!("tree-{direct}"));
        let options =
            TreeOptions { direct, node_bytes: 1024, ..TreeOptions::new(Arc::new(NodeCache::new(20 << 10))) };
        let env = env.clone();
        runtime.block_on(async {
            let tree = Arc::new(Tree::create(&env, &path, options.clone(), Polynomial).await.unwrap());
            let mut readers = Vec::new();
            for seq in 1..=COMMIT_COUNT {
                let changes: Vec<_> = (0..KEY_COUNT).map(|number| (number.to_be_bytes(), number)).collect();
                let writer = tree.clone();
                let commit = tokio::spawn(async move {
                    let decide = |_: &[u8], number: u32, _: Option<&[u8]>| {
                        let stays = u64::from(number) % seq == 0;
                        if stays { Change::Put(seq.to_be_bytes().to_vec()) } else { Change::Remove }
                    };
                    let root = writer.update(&writer.root(), changes, decide).await?;
                    writer.commit(&root, seq, &seq.to_be_bytes()).await
                });
                commit.await.unwrap().unwrap();
                readers.push(tokio::spawn(read(tree.committed())));
            }
            for reader in readers {
                reader.await.unwrap().unwrap();
            }
            tree.close().await;
            assert!(matches!(tree.commit(&tree.root(), 99, b"").await, Err(TreeError::Stopped { .. })));
            let tree = Tree::open(&env, &path, options, Polynomial).await.unwrap();
            assert_eq!(tree.root().attachment().await.unwrap(), COMMIT_COUNT.to_be_bytes().as_slice());
            read(tree.root()).await.unwrap();
        });
    }
}
