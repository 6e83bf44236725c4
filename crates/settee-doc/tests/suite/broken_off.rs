//! Goal: a request interrupted by its client, a full disk or a power loss is detected and completed or
//! cleaned up by the next one; and a document is removed whatever its size.
//! Method: in the simulation. Futures dropped after some polls, a disk of limited capacity, documents whose
//! removal doesn't fit a batch, and power losses at every sync.

use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use settee_doc::{
    CHUNK_BYTES, Content, Database, Databases, Document, Edit, ErrorKind, NewAttachment, Options, Revision,
    Stage,
};
use settee_io::{OperationKind, yield_now};
use settee_sim::{Sim, SimDisk, seeds};

/// The longest id: some two thousand keys with it fill a batch.
const ID_BYTES: usize = 8000;

/// Largest number of bytes that removed data may leave behind.
const SMALL_BYTES: u64 = 64 << 10;

fn long_id() -> String {
    "x".repeat(ID_BYTES)
}

/// `None` if the power was cut.
fn run<T, F: Future<Output = T>>(disk: &SimDisk, test: impl FnOnce(Arc<Databases>) -> F) -> Option<T> {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async { test(Databases::open(env, Path::new("/data")).await.unwrap()).await })
}

async fn put(db: &Database, edit: Edit) -> Revision {
    db.update(edit, Stage::Persisted).await.unwrap()
}

/// Adds small attachments to an edit, named by the numbers.
async fn attach(db: &Database, edit: &mut Edit, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let mut uploading = db.upload(&edit.id, "image/png", false, u64::MAX);
        uploading.write(format!("content {number}").as_bytes()).await.unwrap();
        let content = Content::Stored(uploading.finish(None).await.unwrap());
        let (name, content_type) = (number.to_string(), "image/png".to_owned());
        edit.attachments.push(NewAttachment { name, content_type, revpos: None, content });
    }
}

/// A document with this many attachments, made by updates that each fit a batch.
async fn filled(db: &Database, id: &str, count: usize) -> Revision {
    let mut edit = Edit::empty(id);
    let mut start = 0;
    loop {
        let end = count.min(start + 900);
        attach(db, &mut edit, start..end).await;
        let revision = put(db, edit).await;
        if end == count {
            return revision;
        }
        edit = Edit::again(&db.snapshot().document(id).await.unwrap());
        start = end;
    }
}

async fn is_complete(db: &Database, document: &Document) -> bool {
    for attachment in &document.attachments {
        let mut reader = db.snapshot().attachment(&document.id, attachment, None, true);
        let read = reader.next().await.unwrap().unwrap();
        if read != format!("content {}", attachment.name) {
            return false;
        }
    }
    true
}

/// Polls a future at most this many times, then drops it.
async fn begin<F: Future>(future: F, polls: u64) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

#[test]
fn a_document_with_many_attachments_is_removed() {
    for is_purged in [false, true] {
        run(&SimDisk::new(1), async |databases| {
            let db = databases.create("db").await.unwrap();
            put(&db, Edit::empty("other")).await;
            let before = db.info().active_bytes;
            let last = filled(&db, &long_id(), 2700).await;
            let full = db.info().active_bytes;
            assert!(full - before > 20_000_000, "{full}");
            let document = db.snapshot().document(&long_id()).await.unwrap();
            assert!(is_complete(&db, &document).await);
            if is_purged {
                let purged = db.purge(&[(long_id(), vec![last.clone()])]).await.unwrap();
                assert_eq!(purged, [vec![last]]);
            } else {
                put(&db, Edit::delete(&long_id(), Some(last))).await;
            }
            assert_eq!(db.snapshot().document(&long_id()).await.unwrap_err().kind(), ErrorKind::NotFound);
            let remaining = db.info().active_bytes;
            // The next update removes the rest.
            put(&db, Edit::empty("next")).await;
            let after = db.info().active_bytes;
            println!("{full} bytes live before, {remaining} at once, {after} with the next update");
            assert!(remaining < full / 4, "{remaining}");
            assert!(after < before + SMALL_BYTES, "{after} {before}");
        })
        .unwrap();
    }
}

/// Few enough to test a power loss at each sync; their removal takes two batches.
const FEW_COUNT: usize = 150;

async fn fill_and_delete(databases: Arc<Databases>) {
    let db = databases.create("db").await.unwrap();
    let last = filled(&db, &long_id(), FEW_COUNT).await;
    put(&db, Edit::delete(&long_id(), Some(last))).await;
    put(&db, Edit::empty("other")).await;
}

/// Whether the document exists; then it is complete, otherwise nothing of it is left.
async fn is_there(databases: Arc<Databases>, case: String) -> bool {
    let Ok(db) = databases.get("db").await else { return false };
    put(&db, Edit::empty("next")).await;
    let document = db.snapshot().document(&long_id()).await;
    let live = db.info().active_bytes;
    match document {
        Ok(document) => {
            assert_eq!(document.attachments.len(), FEW_COUNT, "{case}");
            assert!(is_complete(&db, &document).await, "{case}");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{case}");
            assert!(live < SMALL_BYTES, "{live} bytes: {case}");
            false
        }
    }
}

#[test]
fn unreferenced_attachments_are_removed_after_a_power_loss() {
    let mut counts = [0, 0];
    for seed in seeds(8) {
        let disk = SimDisk::new(seed);
        run(&disk, fill_and_delete).unwrap();
        for crash_at in 0..=disk.sync_count() {
            let disk = SimDisk::new(seed).crash_at_sync(crash_at);
            let _ = run(&disk, fill_and_delete);
            let case = format!("seed={seed} crash_at={crash_at}");
            let found = run(&disk.after_power_loss(), |databases| is_there(databases, case)).unwrap();
            counts[usize::from(found)] += 1;
        }
    }
    println!("{} times the document was there, {} times it wasn't", counts[1], counts[0]);
    assert!(!counts.contains(&0) || std::env::var_os("SETTEE_SEED").is_some());
}

#[test]
fn an_edit_larger_than_a_batch_is_refused_alone() {
    run(&SimDisk::new(3), async |databases| {
        let db = databases.create("db").await.unwrap();
        let mut large = Edit::empty(&long_id());
        attach(&db, &mut large, 0..2200).await;
        let edits = vec![Edit::empty("a"), large, Edit::empty("b")];
        let outcomes = db.update_all(edits, Stage::Persisted).await.unwrap();
        let kinds: Vec<_> =
            outcomes.into_iter().map(|outcome| outcome.err().map(|error| error.kind())).collect();
        assert_eq!(kinds, [None, Some(ErrorKind::TooLarge), None]);
        assert_eq!(db.snapshot().doc_count(), 2);
    })
    .unwrap();
}

#[test]
fn unreferenced_uploads_are_removed_after_a_full_disk() {
    let disk = SimDisk::new(4);
    run(&disk, async |databases| {
        let db = databases.create("db").await.unwrap();
        put(&db, Edit::empty("first")).await;
        let mut broken = db.upload("doc", "image/png", false, u64::MAX);
        broken.write(&vec![7; 3 * CHUNK_BYTES]).await.unwrap();
        db.barrier().await.unwrap();
        let used: usize =
            disk.paths().iter().filter_map(|path| disk.read_file(path)).map(|bytes| bytes.len()).sum();
        let _full = disk.clone().capacity(Some(used as u64));
        let filler = format!("{{\"a\":\"{}\"}}", "y".repeat(200_000));
        let filler = |number: usize| {
            let mut edit = Edit::parse(filler.as_bytes(), &Options::default()).unwrap();
            edit.id = format!("filler{number}");
            edit
        };
        let mut number = 0;
        while let Ok(revision) = db.update(filler(number), Stage::Persisted).await {
            assert_eq!(revision.generation, 1);
            number += 1;
            assert!(number < 1000, "the disk never becomes full");
        }
        let full = db.info().active_bytes;
        drop(broken);
        let refused = db.update(filler(number), Stage::Persisted).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let _room = disk.clone().capacity(None);
        put(&db, Edit::empty("last")).await;
        let live = db.info().active_bytes;
        println!("{full} bytes live on the full disk, {live} later");
        assert!(live + 3 * CHUNK_BYTES as u64 <= full + SMALL_BYTES, "{live} {full}");
    })
    .unwrap();
}

#[test]
fn nothing_of_a_refused_bulk_appears_after_its_answer() {
    let mut partly_count = 0;
    for seed in 0..20 {
        // Writes and syncs take longer than the refusal of what follows.
        let disk = SimDisk::new(seed).stalls(1.0).stalls_us(50_000..=100_000);
        let disk = disk.stalls_only(|kind| matches!(kind, OperationKind::Write | OperationKind::Sync));
        run(&disk, async |databases| {
            let db = databases.create("db").await.unwrap();
            put(&db, Edit::empty("first")).await;
            db.barrier().await.unwrap();
            let used: usize =
                disk.paths().iter().filter_map(|path| disk.read_file(path)).map(|bytes| bytes.len()).sum();
            let _nearly_full = disk.clone().capacity(Some(used as u64 + ((2 + seed) << 19)));
            let body = format!("{{\"a\":\"{}\"}}", "y".repeat(20_000));
            let edit = |number: usize| {
                let mut edit = Edit::parse(body.as_bytes(), &Options::default()).unwrap();
                edit.id = format!("bulk{number:04}");
                edit
            };
            // More than one group of edits.
            let refused = db.update_all((0..1200).map(edit).collect(), Stage::Persisted).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
            let answered = db.snapshot().doc_count();
            assert!(answered < 1200);
            partly_count += usize::from(answered > 1);
            db.barrier().await.unwrap();
            assert_eq!(db.snapshot().doc_count(), answered, "seed={seed}");
        })
        .unwrap();
    }
    assert!(partly_count > 0, "no bulk was stored in part");
}

#[test]
fn a_stored_change_is_notified_although_its_writer_has_left() {
    let mut left_count = 0;
    for polls in 1..12 {
        run(&SimDisk::new(polls), async |databases| {
            let db = databases.create("db").await.unwrap();
            put(&db, Edit::empty("first")).await;
            let since = databases.last_event();
            let edits = vec![Edit::empty("doc"), Edit::empty("first"), Edit::empty("doc")];
            left_count += usize::from(begin(db.update_all(edits, Stage::Persisted), polls).await.is_none());
            db.barrier().await.unwrap();
            let is_stored = db.snapshot().find("doc").await.unwrap().is_some();
            let is_told = !databases.events_after(since, 10).unwrap().is_empty();
            assert_eq!(is_told, is_stored, "after {polls} polls");
        })
        .unwrap();
    }
    assert!(left_count > 0, "everybody stayed to the end");
}

#[test]
fn an_update_without_changes_is_not_notified() {
    run(&SimDisk::new(5), async |databases| {
        let db = databases.create("db").await.unwrap();
        put(&db, Edit::empty("doc")).await;
        let since = databases.last_event();
        assert!(db.update(Edit::empty("doc"), Stage::Persisted).await.is_err());
        db.put_local(Edit::empty("_local/doc"), Stage::Persisted).await.unwrap();
        assert!(databases.events_after(since, 10).unwrap().is_empty());
        put(&db, Edit::empty("other")).await;
        assert_eq!(databases.events_after(since, 10).unwrap().len(), 1);
    })
    .unwrap();
}

#[test]
fn settings_take_effect_although_their_writer_has_left() {
    let mut left_count = 0;
    for polls in 1..12 {
        let disk = SimDisk::new(polls);
        let found = run(&disk, async |databases| {
            let db = databases.create("db").await.unwrap();
            let mut asked = Vec::new();
            for id in ["a", "b", "c"] {
                asked.push((id.to_owned(), vec![put(&db, Edit::empty(id)).await]));
            }
            left_count += usize::from(begin(db.purge(&asked), polls).await.is_none());
            left_count += usize::from(begin(db.set_revs_limit(40), polls).await.is_none());
            db.barrier().await.unwrap();
            let mut last = 0;
            let mut purges = db.snapshot().purges(0);
            while let Some(purge) = purges.next().await.unwrap() {
                last = purge.number;
            }
            let found = (db.info().purge_seq, db.revs_limit());
            assert_eq!(found.0, last, "after {polls} polls");
            drop((purges, db));
            databases.close().await.unwrap();
            found
        });
        // Another opening finds the stored values.
        let again = run(&disk, async |databases| {
            let db = databases.get("db").await.unwrap();
            (db.info().purge_seq, db.revs_limit())
        });
        assert_eq!(found.unwrap(), again.unwrap(), "after {polls} polls");
    }
    assert!(left_count > 0, "everybody stayed to the end");
}
