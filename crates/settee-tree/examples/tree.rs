//! A tree: load, update, commit, read, and an immutable snapshot.

use std::ops::Bound;
use std::sync::Arc;

use settee_io::{Env, ThreadOptions};
use settee_tree::{Change, Count, NodeCache, Tree, TreeBuilder, TreeOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("furniture.tree");
    let env = Env::current(ThreadOptions::default());
    let options = TreeOptions::new(Arc::new(NodeCache::new(64 << 20)));

    let mut builder = TreeBuilder::create(&env, &path, options.clone(), Count).await?;
    builder.push(b"chair", b"four legs").await?; // in ascending order
    builder.push(b"settee", b"room for two").await?;
    let tree = builder.finish(1, b"").await?; // on stable storage, as commit 1
    let snapshot = tree.root();

    // Sorted changes; `decide` gets each key's previous value in the same descent.
    let changes = [(b"settee".to_vec(), " or three"), (b"table".to_vec(), "a top")];
    let decide = |_: &[u8], more: &str, previous: Option<&[u8]>| {
        Change::Put([previous.unwrap_or_default(), more.as_bytes()].concat())
    };
    let root = tree.update(&snapshot, changes, decide).await?; // readable, not yet durable
    tree.commit(&root, 2, b"whatever belongs to it").await?;

    let mut scan = root.scan((Bound::Excluded(b"chair"), Bound::Unbounded), true);
    while let Some((key, value)) = scan.next().await? {
        println!("{}: {}", key.escape_ascii(), value.escape_ascii());
    }
    println!("{} of {}", root.count_in((Bound::Included(b"s"), Bound::Excluded(b"t"))).await?, root.len());
    assert_eq!(root.get(b"settee").await?.as_deref(), Some(&b"room for two or three"[..]));
    assert_eq!(snapshot.get(b"settee").await?.as_deref(), Some(&b"room for two"[..])); // as it was

    let tree = Tree::open(&env, &path, options, Count).await?;
    println!("commit {}: {:?}", tree.root().seq(), tree.root().attachment().await?);
    Ok(())
}
