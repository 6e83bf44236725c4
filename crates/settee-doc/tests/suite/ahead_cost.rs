//! Goal: cost and benefit of out-of-line bodies.
//! Method: on the real system, writers parse, write and wait until their documents are persisted; inline and
//! out-of-line writes take turns. The small run shows that it works; the measurement is `SETTEE_FIGURES=1
//! cargo test --release -p settee-doc --test suite ahead_cost -- --nocapture`, in `TMPDIR`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use settee_doc::{Database, Databases, Edit, ErrorKind, Options, Stage};
use settee_io::{Env, ThreadOptions};
use settee_store::{Batch, Value};

const KIB: usize = 1 << 10;

/// The variable that enables the whole measurement.
const FIGURES: &str = "SETTEE_FIGURES";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    WithUpdate,
    Ahead,
}

/// The largest is nearly the limit of a document.
const BODY_BYTES: [usize; 4] = [KIB, 64 * KIB + 64, KIB * KIB, 7_900_000];

const WAYS: [Way; 2] = [Way::WithUpdate, Way::Ahead];

/// One run: the number of writers, the size of their bodies in bytes, and the duration.
#[derive(Debug, Clone, Copy)]
struct Plan {
    way: Way,
    body_bytes: usize,
    writer_count: usize,
    /// Whether they update the same two documents instead of creating new ones.
    conflicts: bool,
    /// Whether a writer with bodies of 1 KiB runs beside them, whose latencies are reported.
    small_beside: bool,
    duration: Duration,
}

#[derive(Debug, Clone, Default)]
struct Measurement {
    made: u64,
    refused: u64,
    seconds: f64,
    /// Processor time.
    cpu_seconds: f64,
    written_bytes: u64,
    latencies: Vec<Duration>,
}

impl Measurement {
    fn percentile(&self, percent: usize) -> f64 {
        let at = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    }
}

/// Random letters, from which texts are cut at random positions.
struct Texts(Vec<u8>);

impl Texts {
    fn new(bytes: usize) -> Texts {
        let mut random = Random(7);
        Texts((0..bytes).map(|_| b'0' + (random.next() >> 33) as u8 % 64).map(escaped).collect())
    }

    fn document(&self, bytes: usize, random: &mut Random) -> Vec<u8> {
        let length = bytes - br#"{"rest":""}"#.len();
        let start = random.next() as usize % (self.0.len() - length);
        [br#"{"rest":""#, &self.0[start..start + length], br#""}"#].concat()
    }
}

/// Replaces letters that JSON would escape.
fn escaped(byte: u8) -> u8 {
    if byte == b'\\' { b'_' } else { byte }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Processor time of this process, in seconds.
#[expect(clippy::disallowed_methods, reason = "what the system says of this process")]
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    // User and system time, in clock ticks of 10 ms.
    [11, 12].iter().map(|field| fields[*field].parse::<f64>().unwrap() / 100.0).sum()
}

struct Writer {
    env: Env,
    database: Arc<Database>,
    texts: Arc<Texts>,
    plan: Plan,
    number: u64,
}

impl Writer {
    async fn run(self, ends: Duration) -> (u64, u64, Vec<Duration>) {
        let Writer { env, database, texts, plan, number } = self;
        let (mut made, mut refused, mut latencies) = (0, 0, Vec::new());
        let mut random = Random((number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        while env.clock.now() < ends {
            let text = texts.document(plan.body_bytes, &mut random);
            let begun = env.clock.now();
            let mut edit = Edit::parse(&text, &Options::default()).unwrap();
            if plan.conflicts {
                edit.id = format!("doc{}", random.next() % 2);
                let known = database.snapshot().find(&edit.id).await.unwrap();
                edit.revision = known.map(|summary| summary.revision);
            } else {
                edit.id = format!("{:016x}", random.next());
            }
            if plan.way == Way::Ahead {
                database.write_large_bodies(std::slice::from_mut(&mut edit), false).await.unwrap();
            }
            match database.update(edit, Stage::Persisted).await {
                Ok(_) => made += 1,
                Err(error) if error.kind() == ErrorKind::Conflict => refused += 1,
                Err(error) => panic!("{error}"),
            }
            latencies.push(env.clock.now() - begun);
        }
        (made, refused, latencies)
    }
}

async fn run(plan: Plan, texts: &Arc<Texts>) -> Measurement {
    let directory = tempfile::tempdir().unwrap();
    let env = Env::current(ThreadOptions::default());
    let databases = Databases::open(env.clone(), directory.path()).await.unwrap();
    let database = databases.create("db").await.unwrap();
    database.update(Edit::empty("first"), Stage::Persisted).await.unwrap();
    let (begun, cpu) = (env.clock.now(), cpu_seconds());
    let finished = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for number in 0..plan.writer_count as u64 + u64::from(plan.small_beside) {
        let is_small = plan.small_beside && number == 0;
        let mut own = plan;
        if is_small {
            (own.body_bytes, own.conflicts) = (KIB, false);
        }
        let writer =
            Writer { env: env.clone(), database: database.clone(), texts: texts.clone(), plan: own, number };
        let (sender, done) = tokio::sync::oneshot::channel();
        let finished = finished.clone();
        env.spawn("writer", async move {
            let _ = sender.send(writer.run(begun + plan.duration).await);
            finished.fetch_add(1, Ordering::Relaxed);
        });
        writers.push((is_small, done));
    }
    let mut measurement = Measurement::default();
    for (is_small, done) in writers {
        let (made, refused, latencies) = done.await.unwrap();
        if !is_small {
            measurement.made += made;
            measurement.refused += refused;
        }
        if is_small == plan.small_beside {
            measurement.latencies.extend(latencies);
        }
    }
    measurement.latencies.sort_unstable();
    measurement.seconds = (env.clock.now() - begun).as_secs_f64();
    measurement.cpu_seconds = cpu_seconds() - cpu;
    measurement.written_bytes = database.log_stats().written_bytes;
    databases.close().await.unwrap();
    measurement
}

/// The median run, by rate.
fn median(mut runs: Vec<Measurement>) -> Measurement {
    runs.sort_by(|a, b| (a.made as f64 / a.seconds).total_cmp(&(b.made as f64 / b.seconds)));
    runs.swap_remove(runs.len() / 2)
}

fn print(plan: Plan, measurement: &Measurement) {
    let made = measurement.made as f64;
    println!(
        "| {} | {} | {}{} | {:?} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {} |",
        plan.body_bytes / KIB,
        plan.writer_count,
        if plan.conflicts { "conflicts" } else { "new" },
        if plan.small_beside { ", 1 KiB beside" } else { "" },
        plan.way,
        made / measurement.seconds,
        made * plan.body_bytes as f64 / 1e6 / measurement.seconds,
        measurement.cpu_seconds * 1e3 / (made + measurement.refused as f64).max(1.0),
        measurement.percentile(50),
        measurement.percentile(99),
        measurement.written_bytes as f64 / (made * plan.body_bytes as f64).max(1.0),
        measurement.refused,
    );
}

async fn measure(plans: &[Plan], round_count: usize, texts: &Arc<Texts>) -> Vec<Measurement> {
    println!(
        "| KiB | writers | | way | /s | MB/s | processor ms each | p50 ms | p99 ms | written/body | refused |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut all = Vec::new();
    for plan in plans {
        let mut runs = WAYS.map(|_| Vec::new());
        for _ in 0..round_count {
            for (way, runs) in WAYS.into_iter().zip(&mut runs) {
                runs.push(run(Plan { way, ..*plan }, texts).await);
            }
        }
        for (way, runs) in WAYS.into_iter().zip(runs) {
            let measurement = median(runs);
            print(Plan { way, ..*plan }, &measurement);
            all.push(measurement);
        }
    }
    all
}

/// The updater's time for a body's bytes: hashed by it, or hashed before. In microseconds, the median of
/// many.
fn hashing_us(env: &Env, texts: &Texts, body_bytes: usize) -> [f64; 2] {
    let body = bytes::Bytes::from(texts.document(body_bytes, &mut Random(3)));
    let value = Value::new(body.clone());
    let median = |put: &dyn Fn(&mut Batch)| {
        let mut times: Vec<Duration> = (0..101)
            .map(|_| {
                let (mut batch, begun) = (Batch::new(), env.clock.now());
                put(&mut batch);
                env.clock.now() - begun
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    let hashing = median(&|batch| batch.put(b"key", b"", body.clone(), false));
    [hashing, median(&|batch| batch.put_value(b"key", b"", value.clone(), false))]
}

fn plan(body_bytes: usize, writer_count: usize, conflicts: bool, duration: Duration) -> Plan {
    Plan { way: Way::WithUpdate, body_bytes, writer_count, conflicts, small_beside: false, duration }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_and_out_of_line_writes_create_documents_and_refuse_conflicts() {
    let texts = Arc::new(Texts::new(256 * KIB));
    let env = Env::current(ThreadOptions::default());
    assert!(hashing_us(&env, &texts, 80 * KIB).iter().all(|time| *time > 0.0));
    let plan = plan(80 * KIB, 3, true, Duration::from_millis(200));
    for measurement in measure(&[plan], 1, &texts).await {
        assert!(
            measurement.made > 0 && measurement.written_bytes > measurement.made * 80 * 1024,
            "{measurement:?}"
        );
    }
    if std::env::var_os(FIGURES).is_some() {
        print_figures(&env).await;
    }
}

/// The table of decision 18: takes several minutes.
async fn print_figures(env: &Env) {
    let texts = Arc::new(Texts::new(16 * KIB * KIB));
    for body_bytes in BODY_BYTES {
        let [before, now] = hashing_us(env, &texts, body_bytes);
        println!(
            "{} KiB: {before:.1} us in the updater to hash them, {now:.1} us hashed before",
            body_bytes / KIB
        );
    }
    let duration = Duration::from_millis(1_500);
    let mut plans = Vec::new();
    for conflicts in [false, true] {
        for writer_count in [1, 10] {
            for body_bytes in BODY_BYTES {
                plans.push(plan(body_bytes, writer_count, conflicts, duration));
            }
        }
    }
    for body_bytes in [KIB * KIB, 7_900_000] {
        plans.push(Plan { small_beside: true, ..plan(body_bytes, 4, false, duration) });
    }
    measure(&plans, 3, &texts).await;
}
