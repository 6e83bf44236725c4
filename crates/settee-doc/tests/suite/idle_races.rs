//! Goal: while databases are concurrently opened, created, deleted and closed as idle, a database holds its
//! acknowledged data, no user sees its database closed, and no request fails because it came during a
//! closing.
//! Method: each database has an owner that creates, writes, reads, releases and deletes it, and knows its
//! exact contents; visitors look at any database meanwhile, hold it or a snapshot past the idle time, and
//! read. Two may be open at once, and the idle time is one second. Some runs lose power; all are reopened,
//! and compared with the model of names and contents.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use settee_doc::{
    Database, Databases, DatabasesOptions, Edit, ErrorKind, LogOptions, Options, Range, Snapshot, Stage,
};
use settee_io::Env;
use settee_sim::{Sim, SimDisk, seeds};

const OWNER_COUNT: usize = 5;
const GUEST_COUNT: usize = 4;
const STEP_COUNT: usize = 20;
const OPEN_MAX: usize = 2;

/// A database's documents, and their numbers; `None` where it doesn't exist.
type Content = Option<BTreeMap<String, usize>>;

/// The requested states of one database, in order.
struct History {
    states: Vec<Content>,
    acknowledged: usize,
    /// Deletions begun and ended: odd while one is in progress.
    deletions: usize,
}

type Shared = Arc<Mutex<History>>;

fn options() -> DatabasesOptions {
    // Only a close persists data that no task waits for.
    let log =
        LogOptions { accepted_age_ms_max: 3_600_000, written_age_ms_max: 3_600_000, ..LogOptions::DEFAULT };
    DatabasesOptions { log, open_databases_max: OPEN_MAX, database_idle_s: 1, ..DatabasesOptions::default() }
}

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }
}

struct World {
    env: Env,
    databases: Arc<Databases>,
    histories: Vec<Shared>,
    /// Tasks that ask for a database, or have one.
    in_progress: AtomicUsize,
    /// The largest number of such tasks.
    most_in_progress: AtomicUsize,
    most_open: AtomicUsize,
}

impl World {
    /// Counts a task that uses databases, and checks that not too many are open.
    fn begin(&self) -> InProgress<'_> {
        let count = self.in_progress.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_in_progress.fetch_max(count, Ordering::Relaxed);
        InProgress(self)
    }

    fn check_open_count(&self) {
        let open = self.databases.stats().open_count;
        let most = OPEN_MAX + self.most_in_progress.load(Ordering::Relaxed);
        assert!(open <= most, "{open} databases are open, {most} may be");
        self.most_open.fetch_max(open, Ordering::Relaxed);
    }

    async fn pause(&self, random: &mut Random) {
        let ms = [0, 1, 5, 300, 1_200, 3_000][random.below(6)];
        self.env.clock.sleep(Duration::from_millis(ms)).await;
    }
}

struct InProgress<'a>(&'a World);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.check_open_count();
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

fn name_of(owner: usize) -> String {
    format!("db{owner}")
}

async fn content_of(view: &Snapshot) -> settee_doc::Result<BTreeMap<String, usize>> {
    let mut rows = view.all_docs(&Range::default()).await?;
    let mut ids = Vec::new();
    while let Some(row) = rows.next().await? {
        ids.push(row.id.to_owned());
    }
    let mut content = BTreeMap::new();
    for id in ids {
        let body = view.document(&id).await?.body;
        let text = std::str::from_utf8(&body).unwrap();
        let number = text.trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap();
        content.insert(id, number);
    }
    Ok(content)
}

/// Writes a new document.
async fn write(database: &Database, id: &str, number: usize, stage: Stage) -> settee_doc::Result<()> {
    let mut edit = Edit::parse(format!("{{\"n\":{number}}}").as_bytes(), &Options::default()).unwrap();
    edit.id = id.to_owned();
    database.update(edit, stage).await.map(drop)
}

/// The owner of a database.
async fn own(world: Arc<World>, owner: usize, seed: u64) {
    let (mut random, name) = (Random::new(seed * 100 + owner as u64), name_of(owner));
    let history = world.histories[owner].clone();
    let ask = |change: &dyn Fn(&mut Content)| {
        let mut history = history.lock().unwrap();
        let mut state = history.states.last().unwrap().clone();
        change(&mut state);
        history.states.push(state);
    };
    let acknowledge = || {
        let mut history = history.lock().unwrap();
        history.acknowledged = history.states.len() - 1;
    };
    for step in 0..STEP_COUNT {
        world.pause(&mut random).await;
        let _in_progress = world.begin();
        let now = history.lock().unwrap().states.last().unwrap().clone();
        let Some(content) = now else {
            assert_eq!(world.databases.get(&name).await.err().unwrap().kind(), ErrorKind::NotFound);
            ask(&|state| *state = Some(BTreeMap::new()));
            match random.below(2) {
                0 => world.databases.create_closed(&name).await.unwrap(),
                _ => drop(world.databases.create(&name).await.unwrap()),
            }
            acknowledge();
            continue;
        };
        match random.below(8) {
            0 => {
                history.lock().unwrap().deletions += 1;
                ask(&|state| *state = None);
                world.databases.delete(&name).await.unwrap();
                acknowledge();
                history.lock().unwrap().deletions += 1;
            }
            1 => {
                let again = world.databases.create_closed(&name).await;
                assert_eq!(again.unwrap_err().kind(), ErrorKind::DatabaseExists);
            }
            kind => {
                let database = world.databases.get(&name).await.unwrap();
                let persisted = content_of(&database.snapshot()).await.unwrap();
                let known = {
                    let history = history.lock().unwrap();
                    history.states[history.acknowledged..].contains(&Some(persisted))
                };
                assert!(known, "{name} shows what it never held, or lost what was acknowledged");
                let stage = if kind < 4 { Stage::Accepted } else { Stage::Persisted };
                let id = format!("doc{}", content.len());
                ask(&|state| {
                    state.as_mut().unwrap().insert(id.clone(), step);
                });
                write(&database, &id, step, stage).await.unwrap();
                if stage == Stage::Persisted {
                    acknowledge();
                    assert_eq!(Some(content_of(&database.snapshot()).await.unwrap()), last_state(&history));
                }
            }
        }
    }
}

fn last_state(history: &Shared) -> Content {
    history.lock().unwrap().states.last().unwrap().clone()
}

/// A visitor of other tasks' databases, which takes its time.
async fn visit(world: Arc<World>, guest: usize, seed: u64) {
    let mut random = Random::new(seed * 100 + 50 + guest as u64);
    for _ in 0..STEP_COUNT {
        world.pause(&mut random).await;
        let owner = random.below(OWNER_COUNT);
        let (history, name) = (&world.histories[owner], name_of(owner));
        let _in_progress = world.begin();
        let deletions = || history.lock().unwrap().deletions;
        let before = deletions();
        let database = match world.databases.get(&name).await {
            Ok(database) => database,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                continue;
            }
        };
        let view = database.snapshot();
        // With the database, or only with its snapshot.
        let database = (random.below(2) == 0).then_some(database);
        world.pause(&mut random).await;
        let read = content_of(&view).await;
        let barrier = match &database {
            Some(database) => database.barrier().await,
            None => Ok(()),
        };
        if before.is_multiple_of(2) && deletions() == before {
            read.unwrap_or_else(|error| panic!("{name} was closed under its user: {error}"));
            barrier.unwrap_or_else(|error| panic!("{name} was closed under its user: {error}"));
        }
    }
}

/// Whether the run was completed.
fn run(disk: &SimDisk, seed: u64) -> (Vec<Shared>, Option<usize>) {
    let history = || History { states: vec![None], acknowledged: 0, deletions: 0 };
    let histories: Vec<Shared> = (0..OWNER_COUNT).map(|_| Arc::new(Mutex::new(history()))).collect();
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    let most_open = sim.run(async {
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options()).await.unwrap();
        let world = Arc::new(World {
            env: env.clone(),
            databases: databases.clone(),
            histories: histories.clone(),
            in_progress: AtomicUsize::new(0),
            most_in_progress: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        });
        let mut ends = Vec::new();
        for task in 0..OWNER_COUNT + GUEST_COUNT {
            let (done, end) = tokio::sync::oneshot::channel();
            let world = world.clone();
            env.spawn("task", async move {
                match task.checked_sub(OWNER_COUNT) {
                    None => own(world, task, seed).await,
                    Some(guest) => visit(world, guest, seed).await,
                }
                let _ = done.send(());
            });
            ends.push(end);
        }
        for end in ends {
            end.await.unwrap();
        }
        // Idle databases are closed, with everything accepted, and not changed otherwise.
        env.clock.sleep(Duration::from_secs(10)).await;
        assert_eq!(databases.stats().open_count, 0, "what is idle is closed");
        for history in &histories {
            let mut history = history.lock().unwrap();
            history.acknowledged = history.states.len() - 1;
        }
        world.most_open.load(Ordering::Relaxed)
    });
    (histories, most_open)
}

fn check(disk: &SimDisk, histories: &[Shared], case: &str) {
    let sim = Sim::with_disk(disk);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open_with(env, Path::new("/data"), options()).await.unwrap();
        let names = databases.names();
        for (owner, history) in histories.iter().enumerate() {
            let name = name_of(owner);
            let found = match databases.get(&name).await {
                Ok(database) => Some(content_of(&database.snapshot()).await.unwrap()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{case}");
                    None
                }
            };
            assert_eq!(names.contains(&name), found.is_some(), "{case}");
            let history = history.lock().unwrap();
            let asked = &history.states[history.acknowledged..];
            assert!(asked.contains(&found), "{case}: {name} holds {found:?}, not one of {asked:?}");
        }
    })
    .unwrap();
}

#[test]
fn databases_closed_when_idle_lose_nothing_and_fail_no_request() {
    let (mut run_count, mut crash_count, mut most_open) = (0, 0, 0);
    for seed in seeds(60) {
        let disk = || match seed % 3 {
            0 => SimDisk::new(seed),
            // Closing takes some time.
            1 => SimDisk::new(seed).delays_us(20_000..=400_000),
            _ => SimDisk::new(seed).stalls(0.02).stalls_us(50_000..=2_000_000),
        };
        let whole = disk();
        let (histories, most) = run(&whole, seed);
        most_open = most_open.max(most.expect("no power loss was planned"));
        check(&whole, &histories, &format!("seed={seed}"));
        check(&whole.after_power_loss(), &histories, &format!("seed={seed}, power lost at the end"));
        run_count += 1;
        let sync_count = whole.sync_count();
        for part in 1..4 {
            let crash_at = sync_count * part / 4;
            let disk = disk().crash_at_sync(crash_at);
            let (histories, _) = run(&disk, seed);
            check(&disk.after_power_loss(), &histories, &format!("seed={seed} crash_at={crash_at}"));
            crash_count += 1;
        }
    }
    println!("{run_count} runs, {crash_count} power losses, {most_open} databases open at most");
    assert!(most_open > OPEN_MAX || std::env::var_os("SETTEE_SEED").is_some(), "the limit was never met");
}
