//! Goal: a committed root survives any power loss, and one being committed survives whole or not at all; a
//! failing disk changes nothing about that.
//! Method: seeded updates and commits, one after another. Cut the power at every operation of the run, at
//! every sync and after every sync; make every operation fail once, in several ways. Each unsynced sector is
//! kept, dropped or garbled. Or kill the process at any moment, and cut the power once the tree was opened
//! again. Then open the tree: it must hold exactly the entries of the last acknowledged root, or of the one
//! being committed. Update, commit and open it once more, to show that no leftovers interfere.

use crate::common;

use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use common::{Model, Polynomial, Random, Shape, compare, create, entries, open, options, update};
use settee_io::Env;
use settee_sim::{Fault, Sim, SimDisk, seeds};
use settee_tree::{Tree, TreeError, TreeOptions};

/// Time between the moments at which a process is killed.
const KILL_STEP: Duration = Duration::from_millis(2);

/// Progress of a run: the last acknowledged root, and the one that may have been committed since.
#[derive(Debug, Clone, Default)]
struct Progress {
    acknowledged: Option<(u64, Model)>,
    begun: Option<(u64, Model)>,
}

fn tree_options(seed: u64) -> TreeOptions {
    let cache_bytes = if seed.is_multiple_of(2) { 0 } else { 64 << 10 };
    TreeOptions { direct: seed % 3 == 1, ..options(256, cache_bytes) }
}

/// Updates and commits until something fails.
async fn work(
    tree: &Tree<Polynomial>,
    random: &mut Random,
    mut model: Model,
    progress: &Mutex<Progress>,
    case: &str,
) -> Result<(), TreeError> {
    let shape = Shape::ALL[random.below(3)];
    let mut seq = tree.root().seq();
    for _ in 0..4 {
        for _ in 0..1 + random.below(2) {
            let count = [4, 120][random.below(2)];
            let changes = shape.changes(random, count, 70);
            update(tree, &tree.root(), &mut model, changes, case).await?;
        }
        seq += 1;
        progress.lock().unwrap().begun = Some((seq, model.clone()));
        let size = [0, 700][random.below(2)];
        let attachment = random.bytes(size);
        tree.commit(&tree.root(), seq, &attachment).await?;
        *progress.lock().unwrap() = Progress { acknowledged: Some((seq, model.clone())), begun: None };
    }
    Ok(())
}

async fn run(env: &Env, seed: u64, progress: &Mutex<Progress>, case: &str) -> Result<(), TreeError> {
    let options = tree_options(seed);
    let tree = create(env, &options).await?;
    work(&tree, &mut Random::new(seed), Model::new(), progress, case).await
}

/// Opens the file after a crash and compares the entries; returns the root's `seq`.
async fn recover(env: &Env, seed: u64, progress: &Progress, case: &str) -> u64 {
    let options = tree_options(seed);
    let tree = match open(env, &options).await {
        Ok(tree) => tree,
        Err(TreeError::NoRoot { .. }) => {
            assert!(progress.acknowledged.is_none(), "{case}: lost all");
            return 0;
        }
        Err(TreeError::Io(error)) if error.is_not_found() => {
            assert!(progress.acknowledged.is_none(), "{case}: lost the file");
            return 0;
        }
        Err(error) => panic!("{case}: {error}"),
    };
    let seq = tree.root().seq();
    let known = [&progress.acknowledged, &progress.begun].into_iter().flatten();
    let (_, model) = known.clone().find(|(known, _)| *known == seq).unwrap_or_else(|| {
        panic!("{case}: found {seq}, expected one of {:?}", known.map(|(seq, _)| seq).collect::<Vec<_>>())
    });
    compare(&tree.root(), model, case).await;
    tree.root().attachment().await.unwrap();
    // The tree continues to work.
    let again = Mutex::new(Progress::default());
    work(&tree, &mut Random::new(seed + 1), model.clone(), &again, case).await.unwrap();
    let again = again.into_inner().unwrap().acknowledged.unwrap();
    drop(tree);
    let tree = open(env, &options).await.unwrap();
    assert_eq!((tree.root().seq(), tree.is_torn()), (again.0, false), "{case}");
    compare(&tree.root(), &again.1, case).await;
    seq
}

/// One run on a disk that loses power; returns the `seq` of the recovered root.
fn lose_power(disk: SimDisk, seed: u64, case: &str) -> u64 {
    let progress = Mutex::new(Progress::default());
    let sim = Sim::with_disk(&disk);
    let env = sim.env();
    let result = sim.run(run(&env, seed, &progress, case));
    if let Some(result) = result {
        result.unwrap_or_else(|error| panic!("{case}: {error}"));
    }
    let sim = Sim::with_disk(&disk.after_power_loss());
    let env = sim.env();
    sim.run(async { recover(&env, seed, &progress.into_inner().unwrap(), case).await }).unwrap()
}

#[test]
fn commits_are_durable_and_atomic_under_power_loss() {
    let (mut loss_count, mut roots) = (0, std::collections::BTreeSet::new());
    for seed in seeds(24) {
        let whole = SimDisk::new(seed);
        roots.insert(lose_power(whole.clone(), seed, &format!("seed={seed}")));
        for at in 0..whole.operation_count() {
            let disk = SimDisk::new(seed).crash_at_operation(at);
            roots.insert(lose_power(disk, seed, &format!("seed={seed} operation={at}")));
            loss_count += 1;
        }
        for at in 0..whole.sync_count() {
            let disk = SimDisk::new(seed).crash_at_sync(at);
            roots.insert(lose_power(disk, seed, &format!("seed={seed} sync={at}")));
            let disk = SimDisk::new(seed).crash_after_sync(at);
            roots.insert(lose_power(disk, seed, &format!("seed={seed} after sync={at}")));
            loss_count += 2;
        }
    }
    println!("power losses tried: {loss_count}, lost 0; roots found: {roots:?}");
    assert!(loss_count > 500 && roots.len() == 5, "{loss_count} {roots:?}");
}

#[test]
fn a_root_recovered_after_a_kill_survives_a_power_loss() {
    let (mut tried, mut found_count) = (0, 0);
    for seed in seeds(6) {
        for at in 0.. {
            let case = format!("seed={seed} kill={at}");
            let (disk, progress) = (SimDisk::new(seed), Mutex::new(Progress::default()));
            // Its syncs are still in flight.
            let sim = Sim::with_disk(&disk.clone().ignore_syncs(true));
            let env = sim.env();
            let work = async {
                let (mut run, mut end) =
                    (pin!(run(&env, seed, &progress, &case)), pin!(env.clock.sleep(KILL_STEP * at)));
                std::future::poll_fn(|context| match run.as_mut().poll(context) {
                    Poll::Ready(_) => Poll::Ready(true),
                    Poll::Pending => end.as_mut().poll(context).map(|()| false),
                })
                .await
            };
            let is_over = sim.run(work).unwrap();
            drop((sim, env));
            let sim = Sim::with_disk(&disk.clone().ignore_syncs(false));
            let env = sim.env();
            let found =
                sim.run(async { open(&env, &tree_options(seed)).await.ok().map(|tree| tree.root().seq()) });
            let found = found.unwrap().unwrap_or(0);
            tried += 1;
            found_count += u64::from(found > 0);
            drop((sim, env));
            let sim = Sim::with_disk(&disk.after_power_loss());
            let env = sim.env();
            let recovered =
                sim.run(async { recover(&env, seed, &progress.into_inner().unwrap(), &case).await });
            assert!(recovered.unwrap() >= found, "{case}: {found} was found, and is lost");
            if is_over {
                break;
            }
        }
    }
    println!("kills tried: {tried}, roots found: {found_count}");
    assert!(found_count > 50, "{found_count} of {tried}");
}

/// Verifies the test itself: on a disk that ignores syncs it finds lost roots.
#[test]
fn a_disk_that_ignores_syncs_is_detected() {
    let found = std::panic::catch_unwind(|| {
        for seed in 0..50 {
            let whole = SimDisk::new(seed);
            lose_power(whole.clone(), seed, "");
            for at in 0..whole.sync_count() {
                lose_power(SimDisk::new(seed).ignore_syncs(true).crash_after_sync(at), seed, "");
            }
        }
    });
    assert!(found.is_err(), "no loss was noticed");
}

#[test]
fn a_failing_operation_stops_the_writer_and_loses_nothing_committed() {
    let (mut failed_count, mut stopped_count) = (0, 0);
    for seed in seeds(8) {
        let whole = SimDisk::new(seed);
        lose_power(whole.clone(), seed, "");
        for at in 0..whole.operation_count() {
            for fault in [Fault::Io, Fault::NoSpace] {
                let case = format!("seed={seed} operation={at} {fault:?}");
                let disk = SimDisk::new(seed).fail_operation(at, fault);
                let sim = Sim::with_disk(&disk);
                let env = sim.env();
                let progress = Mutex::new(Progress::default());
                let stopped = sim.run(fail(&env, seed, &progress, &case)).unwrap();
                failed_count += u64::from(stopped.is_some());
                stopped_count += u64::from(stopped == Some(true));
                let progress = progress.into_inner().unwrap();
                sim.run(recover(&env, seed, &progress, &case)).unwrap();
            }
        }
    }
    println!("operations failed: {failed_count}, of them the writer stopped: {stopped_count}");
    assert!(failed_count > 100 && stopped_count > 50);
}

/// Works until something fails; returns whether that stopped the writer.
async fn fail(env: &Env, seed: u64, progress: &Mutex<Progress>, case: &str) -> Option<bool> {
    let options = tree_options(seed);
    let Ok(tree) = create(env, &options).await else { return Some(false) };
    let mut random = Random::new(seed);
    let error = work(&tree, &mut random, Model::new(), progress, case).await.err()?;
    let expected = progress.lock().unwrap().acknowledged.clone();
    // Committed and uncommitted roots can still be read.
    if let Some((seq, model)) = expected {
        assert_eq!(tree.committed().seq(), seq, "{case}");
        compare(&tree.committed(), &model, case).await;
    }
    entries(&tree.root()).await.unwrap();
    let stopped = matches!(error, TreeError::Stopped { .. });
    if !stopped {
        // The failed write left a gap behind the committed root, which may be committed again.
        let last = progress.lock().unwrap().acknowledged.clone();
        let (seq, model) = last.map_or((1, Model::new()), |(seq, model)| (seq + 1, model));
        tree.commit(&tree.committed(), seq, b"").await.unwrap();
        assert_eq!(open(env, &options).await.unwrap().root().seq(), seq, "{case}");
        *progress.lock().unwrap() = Progress { acknowledged: Some((seq, model)), begun: None };
    }
    let again = tree.update(&tree.root(), [(b"k", ())], |_, (), _| settee_tree::Change::Put(vec![1])).await;
    match again {
        Ok(_) => assert!(!stopped, "{case}: went on after {error}"),
        Err(TreeError::Stopped { .. }) => assert!(stopped, "{case}: {error}"),
        Err(other) => panic!("{case}: {error}, then {other}"),
    }
    Some(stopped)
}
