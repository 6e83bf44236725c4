//! Goal: planned failures, short results, limits and failpoints have the documented effects.
//! Method: small programs with one fault each; effects that the seed decides are collected over many seeds.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

use settee_io::{AlignedBuffer, Alignment, Descriptor, Engine, Operation, OperationKind, Outcome};

use super::*;
use crate::{Fault, seeds};

fn open_raw(engine: &dyn Engine) -> Arc<Descriptor> {
    match engine.run(Operation::Open { path: PATH.into(), mode: OpenMode::Create }).unwrap() {
        Outcome::Opened(descriptor) => Arc::new(descriptor),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_short_write_makes_progress_and_syncs_nothing() {
    let mut lost_count = 0;
    for seed in seeds(100) {
        let disk = SimDisk::new(seed).short_writes(1.0);
        let count = run(&disk, |env| async move {
            create_durable(&env, PATH, Vec::new()).await;
            let file = open_raw(&*env.engine);
            match env.engine.run(Operation::Write { file, offset: 0, buffer: sectors(4, 1), sync: true }) {
                Ok(Outcome::Count(count)) => count,
                other => panic!("{other:?}"),
            }
        });
        assert!((1..4 * SECTOR as u64).contains(&count.unwrap()), "seed={seed}");
        lost_count += usize::from(disk.after_power_loss().read_file(PATH).unwrap().is_empty());
    }
    assert!(lost_count > 0, "a short write was synced");
}

#[test]
fn a_short_read_makes_progress() {
    for seed in seeds(20) {
        run(&SimDisk::new(seed).short_reads(1.0), |env| async move {
            let file = create_durable(&env, PATH, vec![1; 1000]).await;
            let buffer = AlignedBuffer::new(2000, Alignment::ONE);
            let read = Operation::Read { file: open_raw(&*env.engine), offset: 100, buffer };
            let Ok(Outcome::Read { buffer }) = env.engine.run(read) else {
                panic!("seed={seed}");
            };
            assert!((1..900).contains(&buffer.len()), "seed={seed}");
            assert_eq!(file.read_at(100, 2000).await.unwrap(), vec![1; 900], "seed={seed}");
        })
        .unwrap();
    }
}

#[test]
fn the_page_cache_holds_bytes_under_some_seeds_only() {
    let mut seen = BTreeSet::new();
    for seed in seeds(20) {
        run(&SimDisk::new(seed).short_reads(0.0), |env| async move {
            drop(create_durable(&env, PATH, vec![1; 100]).await);
            let file = open_raw(&*env.engine);
            let mut buffer = AlignedBuffer::new(100, Alignment::ONE);
            let read = env.engine.read_cached(&file, 50, &mut buffer);
            read.map(|result| result.map(|()| buffer.len()).unwrap())
        })
        .map(|count| seen.insert(count));
    }
    assert_eq!(seen, BTreeSet::from([None, Some(50)]));
}

#[test]
fn only_the_planned_operation_fails() {
    let disk = SimDisk::new(1).fail(OperationKind::Write, 1, Fault::NoSpace).fail_operation(0, Fault::Io);
    let disk = disk.short_writes(0.0);
    run(&disk, |env| async move {
        assert!(open(&env, PATH).await.unwrap_err().to_string().contains("os error 5"));
        let file = create(&env, PATH).await;
        let results = [
            file.write_at(0, sectors(1, 1)).await.map_err(|error| error.is_no_space()),
            file.write_at(0, sectors(1, 1)).await.map_err(|error| error.is_no_space()),
            file.write_at(0, sectors(1, 1)).await.map_err(|error| error.is_no_space()),
        ];
        assert_eq!(results, [Ok(()), Err(true), Ok(())]);
    })
    .unwrap();
    assert_eq!((disk.operation_count(), disk.count_of(OperationKind::Write)), (5, 3));
}

#[test]
fn a_failed_write_leaves_any_part_of_its_range() {
    let mut written_counts = BTreeSet::new();
    for seed in seeds(100) {
        let disk = SimDisk::new(seed).short_writes(0.0).fail(OperationKind::Write, 1, Fault::Io);
        run(&disk, |env| async move {
            let file = create_durable(&env, PATH, vec![1; SECTOR]).await;
            file.write_at(0, sectors(1, 2)).await.unwrap_err();
        });
        written_counts.insert(disk.read_file(PATH).unwrap().iter().filter(|byte| **byte == 2).count());
    }
    assert!(written_counts.len() > 10, "{written_counts:?}");
}

#[test]
fn after_a_failed_sync_a_later_one_proves_nothing() {
    let mut found = BTreeSet::new();
    for seed in seeds(100) {
        let disk = SimDisk::new(seed).fail(OperationKind::Sync, 0, Fault::Io);
        run(&disk, |env| async move {
            let file = create_durable(&env, PATH, vec![1; SECTOR]).await;
            file.write_at(0, sectors(1, 2)).await.unwrap();
            file.sync().await.unwrap_err();
            file.sync().await.unwrap();
            assert_eq!(file.read_exact_at(0, SECTOR).await.unwrap(), sectors(1, 2));
        })
        .unwrap();
        let left = disk.after_power_loss().read_file(PATH).unwrap();
        assert_eq!(left, disk.after_power_loss().read_file(PATH).unwrap(), "still pending: seed={seed}");
        found.insert(left[0]);
    }
    assert!(found.contains(&1) && found.contains(&2), "{found:?}");
}

#[test]
fn after_a_failed_directory_sync_a_later_one_proves_nothing() {
    let mut found = BTreeSet::new();
    for seed in seeds(100) {
        let disk = SimDisk::new(seed).fail(OperationKind::SyncDirectory, 1, Fault::Io);
        run(&disk, |env| async move {
            create_durable(&env, PATH, vec![1]).await;
            directory::rename(&*env.engine, Path::new(PATH), Path::new("/second")).await.unwrap();
            directory::sync(&*env.engine, Path::new("/")).await.unwrap_err();
            sync_directory(&env, "/").await;
        })
        .unwrap();
        found.insert(disk.after_power_loss().paths());
    }
    assert_eq!(found, BTreeSet::from([vec!["file".into()], vec!["second".into()]]));
}

#[test]
fn a_file_has_one_name_after_a_failed_directory_sync_too() {
    for seed in seeds(50) {
        let disk = SimDisk::new(seed).fail(OperationKind::SyncDirectory, 1, Fault::Io);
        run(&disk, |env| async move {
            create_durable(&env, PATH, vec![1]).await;
            let engine = &*env.engine;
            directory::rename(engine, Path::new(PATH), Path::new("/second")).await.unwrap();
            directory::sync(engine, Path::new("/")).await.unwrap_err();
            directory::rename(engine, Path::new("/second"), Path::new("/third")).await.unwrap();
            sync_directory(&env, "/").await;
        })
        .unwrap();
        assert_eq!(disk.after_power_loss().paths(), [Path::new("third")], "seed={seed}");
    }
}

#[test]
fn a_full_disk_refuses_growth_until_bytes_are_freed() {
    let disk = SimDisk::new(1).capacity(Some(1000)).short_writes(0.0);
    run(&disk, |env| async move {
        let file = create(&env, PATH).await;
        let is_refused = |result: settee_io::Result<()>| assert!(result.unwrap_err().is_no_space());
        is_refused(file.allocate(0, 1001).await);
        is_refused(file.set_length(1001).await);
        file.write_at(0, vec![1; 600].into()).await.unwrap();
        let other = create(&env, "/other").await;
        is_refused(other.write_at(0, vec![2; 600].into()).await);
        assert_eq!(other.length().await.unwrap(), 400, "the part that fits is written");
        file.write_at(0, vec![3; 600].into()).await.unwrap();
        file.set_length(300).await.unwrap();
        other.write_at(400, vec![2; 300].into()).await.unwrap();
        is_refused(other.write_at(700, vec![2; 1].into()).await);
        directory::remove(&*env.engine, Path::new(PATH)).await.unwrap();
        other.write_at(700, vec![2; 300].into()).await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_full_disk_is_an_error_of_its_own_kind() {
    let disk = SimDisk::new(1).capacity(Some(0));
    run(&disk, |env| async move {
        let error = create(&env, PATH).await.write_at(0, "x".into()).await.unwrap_err();
        assert_eq!(error.io_kind(), Some(ErrorKind::StorageFull));
    })
    .unwrap();
}

#[test]
fn ignored_syncs_succeed_and_lose_data() {
    let lost = |plan: fn(SimDisk) -> SimDisk| {
        let disks = seeds(50).map(|seed| plan(SimDisk::new(seed)));
        disks
            .filter(|disk| {
                run(disk, |env| async move { drop(create_durable(&env, PATH, vec![1; SECTOR]).await) })
                    .unwrap();
                disk.after_power_loss().read_file(PATH) != Some(vec![1; SECTOR])
            })
            .count()
    };
    assert_eq!(lost(|disk| disk), 0);
    assert!(lost(|disk| disk.ignore_syncs(true)) > 10);
    assert!(lost(|disk| disk.ignore_directory_syncs(true)) > 10);
}

#[test]
fn stalls_delay_only_the_chosen_operations() {
    let took = |plan: fn(SimDisk) -> SimDisk, seed: u64| {
        run(&plan(SimDisk::new(seed)), |env| async move {
            let start = env.clock.now();
            drop(create(&env, PATH).await);
            (env.clock.now() - start).as_millis()
        })
        .unwrap()
    };
    assert!(took(|disk| disk, 1) < 3);
    let stalls: Vec<u128> = seeds(100).map(|seed| took(|disk| disk.stalls(1.0), seed)).collect();
    assert!(stalls.iter().all(|ms| (50..=5_002).contains(ms)), "{stalls:?}");
    assert!(stalls.iter().any(|ms| *ms > 4_000), "{stalls:?}");
    assert!(stalls.iter().any(|ms| *ms < 1_000), "{stalls:?}");
    assert!((70..=73).contains(&took(|disk| disk.stalls(1.0).stalls_us(70_000..=70_000), 1)));
    assert!(took(|disk| disk.stalls(1.0).stalls_only(|kind| kind == OperationKind::Write), 1) < 3);
}
