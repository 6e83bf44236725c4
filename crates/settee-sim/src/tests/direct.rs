//! Goal: direct mode refuses unaligned requests, and guarantees no more than buffered mode does.
//! Method: requests that are unaligned by one byte; the same program in both modes under the same seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use settee_io::{AlignedBuffer, Alignment, Descriptor, DirectMode, Engine, Operation, Outcome};

use super::*;
use crate::seeds;

fn unit() -> Alignment {
    Alignment::new(SECTOR).unwrap()
}

/// Opens the file for direct I/O, and creates it if it doesn't exist.
fn open_direct(engine: &dyn Engine) -> Arc<Descriptor> {
    let open = Operation::Open { path: PATH.into(), mode: OpenMode::Create };
    let Ok(Outcome::Opened(file)) = engine.run(open) else { panic!("no file") };
    match engine.run(Operation::OpenDirect { file: Arc::new(file) }).unwrap() {
        Outcome::OpenedDirect { descriptor, alignment } => {
            assert_eq!(alignment, unit());
            Arc::new(descriptor)
        }
        other => panic!("{other:?}"),
    }
}

fn aligned(byte: u8, count: usize) -> Bytes {
    let mut buffer = AlignedBuffer::new(count * SECTOR, unit());
    buffer.append(&sectors(count, byte));
    buffer.into()
}

/// Whether the simulation panics because of the request.
fn is_refused(engine: &dyn Engine, operation: Operation) -> bool {
    catch_unwind(AssertUnwindSafe(|| engine.run(operation).unwrap())).is_err()
}

#[test]
fn a_direct_request_with_unaligned_offset_length_or_memory_is_refused() {
    let disk = SimDisk::new(1).short_reads(0.0).short_writes(0.0);
    run(&disk, |env| async move {
        let engine = &*env.engine;
        let file = open_direct(engine);
        let write = |offset: usize, buffer: Bytes| {
            let offset = offset as u64;
            is_refused(engine, Operation::Write { file: file.clone(), offset, buffer, sync: false })
        };
        let read = |offset: usize, buffer: AlignedBuffer| {
            is_refused(engine, Operation::Read { file: file.clone(), offset: offset as u64, buffer })
        };
        assert!(!write(SECTOR, aligned(1, 2)));
        assert!(write(SECTOR + 1, aligned(2, 2)), "an offset");
        assert!(write(SECTOR, aligned(2, 2).slice(..SECTOR + 1)), "a length");
        assert!(write(SECTOR, aligned(2, 2).slice(1..=SECTOR)), "memory");

        assert!(!read(0, AlignedBuffer::new(3 * SECTOR, unit())));
        assert!(read(1, AlignedBuffer::new(SECTOR, unit())), "an offset");
        let off = AlignedBuffer::new(SECTOR + 8, Alignment::new(8).unwrap());
        assert!(read(0, off), "a length");
    });
    let expected = [sectors(1, 0), sectors(2, 1)].concat();
    assert_eq!(disk.read_file(PATH).unwrap(), expected, "a refused write wrote");
}

#[test]
fn a_short_direct_read_is_of_whole_sectors_except_at_the_end() {
    let mut short_count = 0;
    for seed in seeds(50) {
        run(&SimDisk::new(seed).short_reads(1.0), |env| async move {
            create_durable(&env, PATH, vec![1; 6 * SECTOR + 100]).await;
            let buffer = AlignedBuffer::new(16 * SECTOR, unit());
            let read = Operation::Read { file: open_direct(&*env.engine), offset: 0, buffer };
            let Ok(Outcome::Read { buffer }) = env.engine.run(read) else { panic!("seed={seed}") };
            buffer.len()
        })
        .map(|count| {
            assert!(count > 0 && (count % SECTOR == 0 || count == 6 * SECTOR + 100), "seed={seed}: {count}");
            short_count += usize::from(count < 6 * SECTOR);
        })
        .unwrap();
    }
    assert!(short_count > 0, "no read came up short");
}

#[test]
fn a_short_direct_write_is_of_whole_sectors_and_its_rest_is_direct_too() {
    let mut short_count = 0;
    for seed in seeds(50) {
        let disk = SimDisk::new(seed).short_writes(1.0);
        let count = run(&disk, |env| async move {
            let file = open_direct(&*env.engine);
            let write = Operation::Write { file, offset: 0, buffer: aligned(1, 6), sync: false };
            let Ok(Outcome::Count(count)) = env.engine.run(write) else { panic!("seed={seed}") };
            let file = open(&env, PATH).await.unwrap();
            file.set_direct(true).await.unwrap();
            file.write_at(0, aligned(2, 6)).await.unwrap();
            count as usize
        });
        let count = count.unwrap();
        assert!(count > 0 && count % SECTOR == 0, "seed={seed}: {count}");
        short_count += usize::from(count < 6 * SECTOR);
        assert!(disk.read_file(PATH).unwrap() == sectors(6, 2), "seed={seed}");
    }
    assert!(short_count > 0, "no write came up short");
}

#[test]
fn an_unsynced_direct_write_is_torn_only_between_sectors() {
    let (mut torn_count, mut old_count, mut new_count, mut garbled_count) = (0, 0, 0, 0);
    for seed in seeds(200) {
        let disk = SimDisk::new(seed);
        run(&disk, |env| async move {
            let file = create_durable(&env, PATH, vec![1; 8 * SECTOR]).await;
            assert_eq!(file.set_direct(true).await.unwrap(), DirectMode::Direct(unit()));
            file.write_at(0, aligned(2, 8)).await.unwrap();
        });
        let found = disk.after_power_loss().read_file(PATH).unwrap();
        assert_eq!(found.len(), 8 * SECTOR, "seed={seed}: the length was durable");
        let is = |byte: u8| found.chunks(SECTOR).filter(|sector| sector.iter().all(|b| *b == byte)).count();
        let (old, new) = (is(1), is(2));
        let within = |sector: &&[u8]| {
            sector.iter().all(|byte| matches!(byte, 1 | 2)) && sector.iter().any(|byte| *byte != sector[0])
        };
        assert_eq!(found.chunks(SECTOR).filter(within).count(), 0, "seed={seed}: torn within a sector");
        torn_count += usize::from(old > 0 && new > 0);
        old_count += usize::from(old == 8);
        new_count += usize::from(new == 8);
        garbled_count += usize::from(old + new < 8);
    }
    let counts = [torn_count, old_count, new_count, garbled_count];
    assert!(counts.iter().all(|count| *count > 0), "torn, old, new, garbled: {counts:?}");
}

/// Returns the file's contents after a power loss that follows a few writes. With `synced` the first two were
/// synced, else none.
fn survivors(seed: u64, direct: bool, synced: bool) -> Vec<u8> {
    let disk = SimDisk::new(seed).short_reads(0.0).short_writes(0.0);
    run(&disk, |env| async move {
        let file = create_durable(&env, PATH, vec![1; 6 * SECTOR]).await;
        // The same requests in both modes, so that the seed makes the same choices.
        file.set_direct(true).await.unwrap();
        file.set_direct(direct).await.unwrap();
        file.write_at(0, aligned(2, 4)).await.unwrap();
        file.write_at(8 * SECTOR as u64, aligned(3, 2)).await.unwrap();
        if synced {
            file.sync().await.unwrap();
        }
        file.write_at(SECTOR as u64, aligned(4, 2)).await.unwrap();
        file.write_at(10 * SECTOR as u64, aligned(5, 5)).await.unwrap();
    });
    disk.after_power_loss().read_file(PATH).unwrap()
}

#[test]
fn a_power_loss_treats_direct_writes_as_buffered_ones() {
    let mut lost_count = 0;
    for seed in seeds(200) {
        for synced in [false, true] {
            let (direct, buffered) = (survivors(seed, true, synced), survivors(seed, false, synced));
            assert!(direct == buffered, "seed={seed} synced={synced}");
            if synced {
                // The sectors that were not written after the sync.
                assert!(direct[..SECTOR] == sectors(1, 2), "seed={seed}: a synced write was lost");
                assert!(direct[3 * SECTOR..4 * SECTOR] == sectors(1, 2), "seed={seed}");
                assert!(direct[8 * SECTOR..10 * SECTOR] == sectors(2, 3), "seed={seed}");
            } else {
                lost_count += usize::from(direct[..SECTOR] == sectors(1, 1));
            }
        }
    }
    assert!(lost_count > 0, "direct writes were durable without a sync");
}
