//! Goal: a power loss preserves synced changes, and loses or garbles unsynced ones in every permitted way.
//! Method: small programs; the set of remaining contents over many seeds.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::pin::pin;

use futures_util::future::{Either, join, select};
use settee_io::{Completion, Descriptor, Engine, Operation, Outcome, Request};

use super::*;
use crate::seeds;

/// Returns the contents of `PATH` after a power loss at the end of the program, for each of the seeds.
fn remains<F: Future>(program: impl Fn(Env) -> F) -> BTreeSet<Option<Vec<u8>>> {
    remains_on(|disk| disk, program)
}

fn remains_on<F: Future>(
    plan: impl Fn(SimDisk) -> SimDisk,
    program: impl Fn(Env) -> F,
) -> BTreeSet<Option<Vec<u8>>> {
    let remains = |seed| {
        let disk = plan(SimDisk::new(seed));
        run(&disk, &program).expect("no power cut is planned");
        disk.after_power_loss().read_file(PATH)
    };
    seeds(300).map(remains).collect()
}

#[test]
fn synced_bytes_survive() {
    let remains = remains(|env| async move { drop(create_durable(&env, PATH, vec![7; 5000]).await) });
    assert_eq!(remains, BTreeSet::from([Some(vec![7; 5000])]));
}

#[test]
fn an_unsynced_sector_is_kept_dropped_or_garbled() {
    let remains = remains(|env| async move {
        let file = create_durable(&env, PATH, vec![1; SECTOR]).await;
        file.write_at(0, sectors(1, 2)).await.unwrap();
    });
    assert!(remains.contains(&Some(vec![1; SECTOR])), "never dropped");
    assert!(remains.contains(&Some(vec![2; SECTOR])), "never kept");
    assert!(remains.contains(&Some(vec![0; SECTOR])), "never zeros");
    assert!(remains.len() > 10, "never random");
}

#[test]
fn sectors_of_one_write_are_kept_and_dropped_independently() {
    let remains = remains(|env| async move {
        let file = create_durable(&env, PATH, vec![1; 2 * SECTOR]).await;
        file.write_at(0, sectors(2, 2)).await.unwrap();
    });
    for expected in [[1, 1], [1, 2], [2, 1], [2, 2]] {
        let bytes = expected.map(|byte| vec![byte; SECTOR]).concat();
        assert!(remains.contains(&Some(bytes)), "never {expected:?}");
    }
}

#[test]
fn a_sector_may_hold_any_of_its_versions_independently_of_its_neighbour() {
    let remains = remains(|env| async move {
        let file = create_durable(&env, PATH, vec![1; 2 * SECTOR]).await;
        file.write_at(0, sectors(2, 2)).await.unwrap();
        file.write_at(0, sectors(2, 3)).await.unwrap();
    });
    for versions in [1, 2, 3].map(|first| [1, 2, 3].map(|second| [first, second])).concat() {
        let bytes = versions.map(|byte| vec![byte; SECTOR]).concat();
        assert!(remains.contains(&Some(bytes)), "never {versions:?}");
    }
}

#[test]
fn overwriting_a_part_of_a_sector_endangers_the_rest_unless_it_is_powersafe() {
    let program = |env: Env| async move {
        let file = create_durable(&env, PATH, vec![1; 100]).await;
        file.write_at(100, vec![2; 100].into()).await.unwrap();
    };
    let is_whole = |bytes: &Option<Vec<u8>>| bytes.as_ref().unwrap().starts_with(&[1; 100]);
    assert!(!remains(program).iter().all(is_whole));
    let powersafe = remains_on(|disk| disk.powersafe_overwrite(true), program);
    assert!(powersafe.iter().all(is_whole));
    assert!(powersafe.len() > 3, "nothing is garbled at all");
}

#[test]
fn lengths_are_kept_or_dropped() {
    let remains = remains(|env| async move {
        let file = create_durable(&env, PATH, vec![1; 3 * SECTOR]).await;
        file.set_length(SECTOR as u64).await.unwrap();
        file.allocate(0, 5 * SECTOR as u64).await.unwrap();
    });
    let lengths: BTreeSet<usize> = remains.iter().map(|bytes| bytes.as_ref().unwrap().len()).collect();
    assert_eq!(lengths, [1, 3, 5].map(|count| count * SECTOR).into());
    assert!(remains.iter().all(|bytes| bytes.as_ref().unwrap().starts_with(&[1; SECTOR])));
}

#[test]
fn a_synced_truncation_leaves_none_of_the_truncated_bytes() {
    let remains = remains(|env| async move {
        let file = create_durable(&env, PATH, vec![1; 3 * SECTOR]).await;
        file.set_length(100).await.unwrap();
        file.allocate(0, 200).await.unwrap();
        file.sync().await.unwrap();
    });
    assert_eq!(remains, BTreeSet::from([Some([vec![1; 100], vec![0; 100]].concat())]));
}

#[test]
fn a_sync_covers_only_writes_complete_before_it_was_submitted() {
    let mut found = BTreeSet::new();
    for seed in seeds(200) {
        let disk = SimDisk::new(seed);
        let is_write_first = run(&disk, |env| async move {
            let file = create_durable(&env, PATH, vec![1; SECTOR]).await;
            let (write, sync) = (pin!(file.write_at(0, sectors(1, 2))), pin!(file.sync()));
            match select(write, sync).await {
                Either::Left((write, sync)) => write.and(sync.await).map(|()| true).unwrap(),
                Either::Right((sync, write)) => sync.and(write.await).map(|()| false).unwrap(),
            }
        });
        if is_write_first.unwrap() {
            found.insert(disk.after_power_loss().read_file(PATH).unwrap()[0]);
        }
    }
    assert!(found.contains(&1), "the sync covered a write that was in flight");
}

#[test]
fn a_directory_sync_covers_only_changes_complete_before_it_was_submitted() {
    let mut found = BTreeSet::new();
    for seed in seeds(200) {
        let disk = SimDisk::new(seed);
        let is_removal_first = run(&disk, |env| async move {
            create_durable(&env, PATH, vec![1]).await;
            let (engine, path) = (&*env.engine, Path::new(PATH));
            let (remove, sync) =
                (pin!(directory::remove(engine, path)), pin!(directory::sync(engine, Path::new("/"))));
            match select(remove, sync).await {
                Either::Left((remove, sync)) => remove.and(sync.await).map(|()| true).unwrap(),
                Either::Right((sync, remove)) => sync.and(remove.await).map(|()| false).unwrap(),
            }
        });
        if is_removal_first.unwrap() {
            found.insert(disk.after_power_loss().read_file(PATH));
        }
    }
    assert!(found.contains(&Some(vec![1])), "the sync covered a removal that was in flight");
}

#[test]
fn direct_mode_reads_and_writes_the_same_bytes_as_buffered_mode() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed).short_reads(0.5).short_writes(0.5);
        run(&disk, |env| async move {
            let file = create_durable(&env, PATH, vec![1; 10 * SECTOR + 7]).await;
            assert!(file.set_direct(true).await.unwrap() != settee_io::DirectMode::Buffered);
            let (aligned, other) = (sectors(2, 2), Bytes::from(vec![3; 100]));
            let begin = SECTOR as u64;
            let (first, second) =
                join(file.write_at(begin, aligned), file.write_and_sync_at(5 * begin + 9, other)).await;
            first.and(second).unwrap();
            let mut expected = vec![1; 10 * SECTOR + 7];
            expected[SECTOR..3 * SECTOR].fill(2);
            expected[5 * SECTOR + 9..5 * SECTOR + 109].fill(3);
            assert_eq!(file.read_at(3, 1 << 20).await.unwrap(), expected[3..], "seed={seed}");
            file.set_direct(false).await.unwrap();
            assert_eq!(file.read_at(0, 1 << 20).await.unwrap(), expected, "seed={seed}");
            file.sync().await.unwrap();
        })
        .unwrap();
        let found = disk.after_power_loss().read_file(PATH).unwrap();
        assert_eq!(found[SECTOR..3 * SECTOR], [2; 2 * SECTOR], "seed={seed}");
        assert_eq!(found[5 * SECTOR + 9..5 * SECTOR + 109], [3; 100], "seed={seed}");
    }
}

#[test]
fn the_result_of_overlapping_writes_survives_a_later_sync() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        let seen = run(&disk, |env| async move {
            let file = create_durable(&env, PATH, vec![1; SECTOR]).await;
            let (own, other) = (sectors(1, 2), sectors(1, 3));
            let (sync, write) = join(file.write_and_sync_at(0, own), file.write_at(0, other)).await;
            sync.and(write).unwrap();
            file.sync().await.unwrap();
            file.read_exact_at(0, SECTOR).await.unwrap().to_vec()
        });
        assert_eq!(disk.after_power_loss().read_file(PATH), seen, "seed={seed}");
    }
}

#[test]
fn a_write_that_syncs_covers_itself_and_no_other_in_flight() {
    let remains = remains(|env| async move {
        let file = create_durable(&env, PATH, vec![1; 2 * SECTOR]).await;
        let (other, own) = (sectors(1, 2), sectors(1, 3));
        let (write, sync) = join(file.write_at(0, other), file.write_and_sync_at(SECTOR as u64, own)).await;
        write.and(sync).unwrap();
    });
    assert!(remains.iter().all(|bytes| bytes.as_ref().unwrap()[SECTOR..] == vec![3; SECTOR]));
    assert!(remains.iter().any(|bytes| bytes.as_ref().unwrap()[..SECTOR] == vec![1; SECTOR]));
    assert!(remains.iter().any(|bytes| bytes.as_ref().unwrap()[..SECTOR] == vec![2; SECTOR]));
}

#[test]
fn a_sync_covers_the_writes_of_its_own_file_only() {
    let remains = remains(|env| async move {
        let file = create_durable(&env, PATH, vec![1; SECTOR]).await;
        let other = create(&env, "/other").await;
        file.write_at(0, sectors(1, 2)).await.unwrap();
        other.write_and_sync_at(0, sectors(1, 2)).await.unwrap();
    });
    assert!(remains.contains(&Some(vec![1; SECTOR])));
}

#[test]
fn a_name_is_durable_only_once_its_directory_was_synced() {
    let created = |with_sync: bool| {
        remains(move |env| async move {
            let file = create(&env, PATH).await;
            file.write_and_sync_at(0, sectors(1, 1)).await.unwrap();
            if with_sync {
                sync_directory(&env, "/").await;
            }
        })
    };
    assert_eq!(created(true), BTreeSet::from([Some(vec![1; SECTOR])]));
    assert_eq!(created(false), BTreeSet::from([None, Some(vec![1; SECTOR])]));
}

#[test]
fn a_removed_name_may_come_back_until_its_directory_was_synced() {
    let removed = |with_sync: bool| {
        remains(move |env| async move {
            create_durable(&env, PATH, vec![1]).await;
            directory::remove(&*env.engine, Path::new(PATH)).await.unwrap();
            if with_sync {
                sync_directory(&env, "/").await;
            }
        })
    };
    assert_eq!(removed(true), BTreeSet::from([None]));
    assert_eq!(removed(false), BTreeSet::from([None, Some(vec![1])]));
}

#[test]
fn a_rename_is_atomic() {
    for (to, directories_synced) in [("/new", 0), ("/new", 1), ("/directory/new", 1), ("/directory/new", 2)] {
        let mut found = BTreeSet::new();
        for seed in seeds(100) {
            let disk = SimDisk::new(seed);
            run(&disk, |env| async move {
                directory::create(&*env.engine, Path::new("/directory")).await.unwrap();
                create_durable(&env, to, vec![2]).await;
                create_durable(&env, "/old", vec![1]).await;
                directory::rename(&*env.engine, Path::new("/old"), Path::new(to)).await.unwrap();
                for directory in ["/", "/directory"].into_iter().take(directories_synced) {
                    sync_directory(&env, directory).await;
                }
            });
            let after = disk.after_power_loss();
            found.insert((after.read_file("/old"), after.read_file(to)));
        }
        let renamed = (None, Some(vec![1]));
        let not_renamed = (Some(vec![1]), Some(vec![2]));
        let is_durable = directories_synced == if to == "/new" { 1 } else { 2 };
        let expected = if is_durable { vec![renamed] } else { vec![renamed, not_renamed] };
        assert_eq!(found, BTreeSet::from_iter(expected), "{to}, {directories_synced} directories synced");
    }
}

#[test]
fn a_renamed_file_is_not_lost_to_a_new_one_of_its_old_name() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        run(&disk, |env| async move {
            create_durable(&env, "/old", vec![1]).await;
            directory::rename(&*env.engine, Path::new("/old"), Path::new("/new")).await.unwrap();
            create(&env, "/old").await;
        });
        let after = disk.after_power_loss();
        let found: Vec<_> = after.paths().iter().map(|path| after.read_file(path).unwrap()).collect();
        assert!(found.contains(&vec![1]), "seed={seed}");
    }
}

#[test]
fn directories_moved_into_each_other_are_not_lost() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        run(&disk, |env| async move {
            directory::create(&*env.engine, Path::new("/a/b")).await.unwrap();
            create_durable(&env, "/a/one", vec![1]).await;
            create_durable(&env, "/a/b/two", vec![2]).await;
            directory::rename(&*env.engine, Path::new("/a/b"), Path::new("/b")).await.unwrap();
            directory::rename(&*env.engine, Path::new("/a"), Path::new("/b/a")).await.unwrap();
        });
        let after = disk.after_power_loss();
        let mut found: Vec<_> = after.paths().iter().map(|path| after.read_file(path).unwrap()).collect();
        found.sort();
        assert_eq!(found, [[1], [2]], "seed={seed}");
    }
}

#[test]
fn a_directory_whose_name_was_not_synced_is_lost_with_its_contents() {
    let mut found = BTreeSet::new();
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        run(&disk, |env| async move {
            let create = Operation::CreateDirectory { path: "/directory".into() };
            env.engine.run(create).unwrap();
            create_durable(&env, "/directory/file", vec![1]).await;
        });
        found.insert(disk.after_power_loss().read_file("/directory/file"));
    }
    assert_eq!(found, BTreeSet::from([None, Some(vec![1])]));
}

#[test]
fn operations_in_flight_may_take_effect_when_the_power_is_cut() {
    let mut found = BTreeSet::new();
    for seed in seeds(200) {
        let disk = SimDisk::new(seed);
        run(&disk, |env| {
            let disk = disk.clone();
            async move {
                let file = create_durable(&env, PATH, vec![1; SECTOR]).await;
                let cut = async { disk.cut_power() };
                join(file.write_and_sync_at(0, sectors(1, 2)), cut).await
            }
        });
        found.insert(disk.after_power_loss().read_file(PATH).unwrap()[0]);
    }
    assert!(found.contains(&1) && found.contains(&2), "{found:?}");
}

#[test]
fn completed_writes_survive_a_killed_program() {
    for seed in seeds(50) {
        let disk = SimDisk::new(seed);
        run(&disk, |env| async move { create(&env, PATH).await.write_at(0, sectors(9, 1)).await.unwrap() });
        let found =
            run(&disk, |env| async move { open(&env, PATH).await.unwrap().read_at(0, 9999).await.unwrap() });
        assert_eq!(found.unwrap(), sectors(9, 1), "seed={seed}");
    }
}

#[test]
fn the_same_run_leaves_the_same_contents() {
    for seed in seeds(20) {
        let leave = || {
            let disk = SimDisk::new(seed).crash_at_operation(12);
            run(&disk, |env| async move {
                let file = create_durable(&env, PATH, vec![1; 9 * SECTOR]).await;
                for index in 0..9 {
                    file.write_at(index * 300, sectors(1, 2)).await.unwrap();
                }
            });
            let after = disk.after_power_loss();
            let again = disk.after_power_loss();
            assert_eq!(after.read_file(PATH), again.read_file(PATH), "seed={seed}");
            (after.seed(), after.read_file(PATH))
        };
        assert_eq!(leave(), leave(), "seed={seed}");
    }
}

#[test]
fn a_lock_is_exclusive_until_its_descriptor_is_closed() {
    let disk = SimDisk::new(1);
    let held = run(&disk, |env| async move {
        let (first, second) = (create(&env, PATH).await, open(&env, PATH).await.unwrap());
        first.lock().await.unwrap();
        first.lock().await.unwrap();
        assert_eq!(second.lock().await.unwrap_err().io_kind(), Some(ErrorKind::WouldBlock));
        drop(first);
        second.lock().await.unwrap();
        sync_directory(&env, "/").await;
        second
    });
    let again = disk.after_power_loss();
    assert!(held.is_some(), "the descriptor of the killed program still exists");
    run(&again, |env| async move { open(&env, PATH).await.unwrap().lock().await.unwrap() }).unwrap();
}

#[test]
fn a_descriptor_from_before_a_power_loss_is_invalid() {
    let disk = SimDisk::new(1);
    let descriptor = run(&disk, |env| async move {
        let open = Operation::Open { path: PATH.into(), mode: OpenMode::CreateNew };
        match env.engine.run(open).unwrap() {
            Outcome::Opened(descriptor) => std::sync::Arc::new(descriptor),
            other => panic!("{other:?}"),
        }
    });
    let length = |env: Env| {
        let file: std::sync::Arc<Descriptor> = descriptor.clone().unwrap();
        async move { env.engine.run(Operation::Length { file }) }
    };
    assert!(run(&disk, length).unwrap().is_ok());
    assert!(run(&disk.after_power_loss(), length).unwrap().is_err());
}

#[test]
fn nothing_happens_on_a_disk_without_power() {
    let disk = SimDisk::new(1);
    let env = Sim::with_disk(&disk).env();
    disk.cut_power();
    assert!(env.engine.run(Operation::CreateDirectory { path: "/directory".into() }).is_err());
    let (completion, mut done) = Completion::new();
    env.engine.submit(Request { operation: Operation::List { path: "/".into() }, completion });
    assert!(done.try_recv().is_err());
    assert_eq!(disk.operation_count(), 0);
}

#[test]
fn operations_on_names_return_the_errors_of_a_real_file_system() {
    run(&SimDisk::new(1), |env| async move {
        let engine: &dyn Engine = &*env.engine;
        let failure = |operation: Operation| engine.run(operation).unwrap_err().kind();
        let remove_directory = |path: &str| Operation::RemoveDirectory { path: path.into() };
        let rename = |from: &str, to: &str| Operation::Rename { from: from.into(), to: to.into() };
        directory::create(engine, Path::new("/a/b")).await.unwrap();
        create(&env, "/a/file").await;
        let open_new = Operation::Open { path: "/a/file".into(), mode: OpenMode::CreateNew };
        assert_eq!(failure(open_new), ErrorKind::AlreadyExists);
        assert_eq!(failure(Operation::Open { path: "/x".into(), mode: OpenMode::Read }), ErrorKind::NotFound);
        assert_eq!(
            failure(Operation::Open { path: "/x/y".into(), mode: OpenMode::Create }),
            ErrorKind::NotFound
        );
        assert_eq!(failure(Operation::CreateDirectory { path: "/".into() }), ErrorKind::AlreadyExists);
        assert_eq!(failure(Operation::List { path: "/a/file".into() }), ErrorKind::NotADirectory);
        assert_eq!(failure(Operation::Remove { path: "/a/b".into() }), ErrorKind::IsADirectory);
        assert_eq!(failure(Operation::Remove { path: "/a/../a".into() }), ErrorKind::InvalidInput);
        assert_eq!(failure(remove_directory("/a")), ErrorKind::DirectoryNotEmpty);
        assert_eq!(failure(rename("/a", "/a/b/c")), ErrorKind::InvalidInput);
        assert_eq!(failure(rename("/a/b", "/a/file")), ErrorKind::NotADirectory);
        assert_eq!(failure(rename("/a/file", "/a/b")), ErrorKind::IsADirectory);
        let reader = File::open(&env.engine, Path::new("/a/file"), OpenMode::Read).await.unwrap();
        assert_eq!(
            reader.write_at(0, "x".into()).await.unwrap_err().io_kind(),
            Some(ErrorKind::PermissionDenied)
        );
        directory::remove_with_files(engine, Path::new("/a/b")).await.unwrap();
        assert_eq!(directory::list(engine, Path::new("a")).await.unwrap().len(), 1);
    })
    .unwrap();
}

#[test]
fn an_open_file_outlives_its_name() {
    run(&SimDisk::new(1), |env| async move {
        let file = create_durable(&env, PATH, vec![1; 100]).await;
        directory::remove(&*env.engine, Path::new(PATH)).await.unwrap();
        assert!(open(&env, PATH).await.unwrap_err().is_not_found());
        assert_eq!(file.read_exact_at(0, 100).await.unwrap(), vec![1; 100]);
    })
    .unwrap();
}

#[test]
fn files_can_be_damaged_between_two_runs() {
    let disk = SimDisk::new(1);
    disk.write_file("/a/b/file", *b"whole");
    disk.damage_file("/a/b/file", |bytes| bytes[0] = b'h');
    assert_eq!(disk.paths(), [Path::new("a/b/file")]);
    assert_eq!(disk.after_power_loss().read_file("/a/b/file").unwrap(), b"hhole");
}
