//! A soak test: mixed clients on a server that is killed at random moments, for a given time.
//!
//! Each writer writes its own documents, attachments and local documents and keeps a model of all
//! acknowledged writes. Other clients follow the changes feeds, list, read slowly, compact, and create and
//! delete databases. At random moments the server is killed (SIGKILL) and restarted on the same directory.
//! After each restart, and at the end, the server's content is compared with the models byte by byte.
//! Meanwhile, and once at the end, the server is backed up; each backup is restored and compared with the
//! models of the time when it was made. The server's memory, descriptors and threads are sampled every few
//! seconds.
//!
//! Invariants:
//! 1. A write acknowledged by 200 or 201 survives. A write with response 202 may be lost and is counted
//!    separately.
//! 2. A write without a response is stored whole, or not at all.
//! 3. A follower receives each document's newest revision, in order, and no change twice.
//! 4. A violation ends the soak with its reason.

mod backups;
mod client;
mod followers;
mod model;
mod others;
mod writers;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use self::backups::Backups;
use self::client::{Context, Failure, Http, Phase, StepResult, wrong};
use self::followers::{Feed, FeedMode, Follower};
use self::model::{Counts, DocState, Model, Random};
use self::others::Admin;
use crate::error::{Error, Result};
use crate::process::{ServerProcess, Usage};
use crate::rounds;

const DATABASES: usize = 3;
const WRITERS: usize = 9;
const READERS: usize = 3;
const SLOW_CLIENTS: usize = 3;

/// Number of each database's followers with a continuous feed. One more polls.
const CONTINUOUS_FOLLOWERS: usize = 2;

/// Interval between two samples of the server's usage, unless a period is short.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum number of samples in a period.
const SAMPLES_MIN: u32 = 12;

/// Minimum duration of a period whose memory is judged. In a shorter one, caches are still filling.
const JUDGED_PERIOD_MIN: Duration = Duration::from_secs(180);

/// Growth of memory that is allowed, as a share: from the median of a period's second quarter to that of its
/// last. [`MEMORY_GROWTH_BYTES`] is allowed in addition.
const MEMORY_GROWTH_SHARE: f64 = 0.10;

/// Growth of memory that is allowed in addition, in bytes: the memory of one large request.
const MEMORY_GROWTH_BYTES: f64 = (24 << 20) as f64;

/// Growth of descriptors that is allowed: a few more open segments and connections.
const DESCRIPTOR_GROWTH: f64 = 24.0;

/// Growth of threads that is allowed.
const THREAD_GROWTH: f64 = 8.0;

/// Maximum number of sockets of a server without clients: its listener and its internal wake-ups.
const IDLE_SOCKETS_MAX: u64 = 4;

/// Longest wait for clients to release their models, and for the server to close their connections.
const REST_WAIT_MAX: Duration = Duration::from_secs(90);

/// Parameters of a soak.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Duration in minutes
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,

    /// Duration in seconds, instead of --minutes
    #[arg(long, value_name = "N", conflicts_with = "minutes",
        value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: Option<u64>,

    /// Number of times that the server is killed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    kills: u32,

    /// Seed that determines the clients' operations and the times of the kills
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Config {
    /// How long the clients run, in all.
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(self.minutes * 60))
    }

    /// A description of the run.
    pub fn title(&self) -> String {
        format!("soak of {:?} with {} kill(s), seed {}", self.duration(), self.kills, self.seed)
    }
}

/// Runs a soak of the `settee` program in an empty directory and prints its progress line by line. Returns once
/// the server's content has been compared and the server has exited.
///
/// # Errors
/// The first violation, or the reason why the server didn't start. The server has exited then.
pub async fn run(config: &Config, program: &Path, directory: &Path, print: impl Fn(&str)) -> Result<()> {
    let mut server = ServerProcess::start(program, directory, None, &[]).await?;
    let soak = Soak::prepare(config, program, directory, &server).await?;
    let outcome = soak.run(config, program, &mut server, &print).await;
    if let Err(Error::Wrong { .. }) = &outcome {
        print(&format!("the server's log ends with:\n{}", server.log_tail()));
    }
    outcome
}

struct Soak {
    phase: watch::Sender<Phase>,
    context: Arc<Context>,
    followers: Vec<Arc<Follower>>,
    admin: Arc<Mutex<Admin>>,
    backups: Arc<Mutex<Backups>>,
    tasks: Tasks,
    started: Instant,
}

type Tasks = JoinSet<Result<(), String>>;

fn violation(reason: impl Into<String>) -> Error {
    Error::wrong("soak", reason)
}

fn into_error(failure: Failure) -> Error {
    match failure {
        Failure::Wrong(reason) => violation(reason),
        Failure::Broken(error) => violation(format!("the server broke the connection: {error}")),
    }
}

impl Soak {
    async fn prepare(
        config: &Config,
        program: &Path,
        directory: &Path,
        server: &ServerProcess,
    ) -> Result<Soak> {
        let (phase, receiver) = watch::channel(Phase::Paused);
        let databases: Vec<String> = (0..DATABASES).map(|index| format!("soak{index}")).collect();
        let context = Arc::new(Context {
            server: server.server().clone(),
            phase: receiver,
            databases: databases.clone(),
            models: (0..WRITERS).map(|_| Mutex::new(Model::default())).collect(),
            purged: Default::default(),
            aborted: Default::default(),
            seed: config.seed,
        });
        let mut http = Http::new(&context.server);
        for database in &databases {
            let created = http.send("PUT", &format!("/{database}"), None).await.map_err(into_error)?;
            created.expect("a database", &[201]).map_err(into_error)?;
        }
        let modes = [FeedMode::Continuous; CONTINUOUS_FOLLOWERS].into_iter().chain([FeedMode::Longpoll]);
        let followers: Vec<Arc<Follower>> = databases
            .iter()
            .flat_map(|name| modes.clone().map(|mode| Arc::new(Follower::new(name, mode))))
            .collect();
        let started = Instant::now();
        let backups = Arc::new(Mutex::new(Backups::new(program, directory)));
        let (admin, tasks) = (Arc::default(), JoinSet::new());
        let mut soak = Soak { phase, context, followers, admin, backups, tasks, started };
        soak.spawn();
        Ok(soak)
    }

    fn spawn(&mut self) {
        for index in 0..WRITERS {
            let context = self.context.clone();
            self.tasks.spawn(async move { writers::run(&context, index).await });
        }
        for index in 0..READERS {
            let context = self.context.clone();
            self.tasks.spawn(async move { others::list(&context, index).await });
        }
        for index in 0..SLOW_CLIENTS {
            let context = self.context.clone();
            self.tasks.spawn(async move { others::run_slow_client(&context, index).await });
        }
        let (context, admin) = (self.context.clone(), self.admin.clone());
        self.tasks.spawn(async move { others::administer(&context, &admin).await });
        let (context, backups) = (self.context.clone(), self.backups.clone());
        self.tasks.spawn(async move { backups::run(&context, &backups).await });
        for (index, follower) in self.followers.iter().enumerate() {
            let (context, follower) = (self.context.clone(), follower.clone());
            self.tasks.spawn(async move { follower.run(&context, index).await });
        }
    }

    async fn run(
        mut self,
        config: &Config,
        program: &Path,
        server: &mut ServerProcess,
        print: &impl Fn(&str),
    ) -> Result<()> {
        let mut random = Random::new(config.seed ^ 0x6b11);
        let period_time = config.duration() / (config.kills + 1);
        let mut moment = Duration::ZERO;
        let mut growth: Vec<String> = Vec::new();
        for index in 0..=config.kills {
            // A random moment, at most a quarter of a period before or after its even end.
            let end = match index == config.kills {
                true => config.duration(),
                false => {
                    let earliest = period_time * (index + 1) - period_time / 4;
                    earliest + period_time.mul_f64(random.below(1_000) as f64 / 2_000.0)
                }
            };
            let period = self.run_period(server, end - moment, print).await?;
            moment = end;
            if index < config.kills {
                server.kill();
                self.phase.send_replace(Phase::Paused);
                self.print(print, "killed");
                self.wait_for_clients().await?;
                let time = server.restart().await?;
                self.print(print, &format!("responds again after {time:.1?}"));
            } else {
                self.phase.send_replace(Phase::Paused);
                self.wait_for_clients().await?;
            }
            self.verify(print).await.map_err(into_error)?;
            growth.extend(judge(index, &period, print));
        }
        self.backups.lock().await.cycle(&self.context).await.map_err(into_error)?;
        if let Some(ended) = self.tasks.try_join_next() {
            return Err(ended_early(ended, server));
        }
        self.rest(program, server, print).await?;
        self.summarize(print).await;
        match growth.is_empty() {
            true => Ok(()),
            false => Err(violation(growth.join("; "))),
        }
    }

    /// Lets the clients run for `time`. Returns the server's usage meanwhile.
    async fn run_period(
        &mut self,
        server: &mut ServerProcess,
        time: Duration,
        print: &impl Fn(&str),
    ) -> Result<Period> {
        self.phase.send_replace(Phase::Running);
        let (started, interval) = (Instant::now(), SAMPLE_INTERVAL.min(time / SAMPLES_MIN));
        let mut period = Period { time, samples: Vec::new() };
        let mut next = interval;
        while started.elapsed() < time {
            let left = next.min(time).saturating_sub(started.elapsed());
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                Some(ended) = self.tasks.join_next() => return Err(ended_early(ended, server)),
            }
            if let Some(ended) = server.has_ended() {
                return Err(violation(ended));
            }
            next += interval;
            let usage = usage(server)?;
            period.samples.push(usage);
            self.print(print, &line(&usage, &self.followers));
        }
        Ok(period)
    }

    /// Prints a line with the time since the start.
    fn print(&self, print: &impl Fn(&str), text: &str) {
        print(&format!("{:>6.0} s  {text}", self.started.elapsed().as_secs_f64()));
    }

    /// Returns once no client uses its model.
    async fn wait_for_clients(&mut self) -> Result<()> {
        let context = self.context.clone();
        let all = async {
            for model in &context.models {
                drop(model.lock().await);
            }
            drop(self.admin.lock().await);
        };
        let all = tokio::time::timeout(REST_WAIT_MAX, all);
        tokio::select! {
            done = all => done.map_err(|_| violation("a client waits for a response for too long")),
            Some(ended) = self.tasks.join_next() => Err(match ended {
                Ok(Err(reason)) => violation(reason),
                other => violation(format!("a client ended: {other:?}")),
            }),
        }
    }

    /// Compares the models with the server's content.
    async fn verify(&self, print: &impl Fn(&str)) -> StepResult<()> {
        let started = Instant::now();
        let context = &*self.context;
        let mut http = Http::new(&context.server);
        // A write with response 202 is persisted now, or it is lost.
        for database in &context.databases {
            let target = format!("/{database}/_ensure_full_commit");
            http.post(&target, &serde_json::json!({})).await?.expect("a commit", &[201])?;
        }
        let mut before = Counts::default();
        let mut after = Counts::default();
        for (index, model) in context.models.iter().enumerate() {
            let mut model = model.lock().await;
            before.add(&model.counts);
            writers::verify(&mut http, &context.databases[index % DATABASES], &mut model).await?;
            after.add(&model.counts);
        }
        let aborted = others::verify_aborted(context, &mut http).await?;
        self.admin.lock().await.verify(&mut http).await?;
        for (number, database) in context.databases.iter().enumerate() {
            let feed = Feed::read(&mut http, database).await?;
            self.compare_feed(&mut http, number, database, &feed).await?;
            for follower in self.followers.iter().filter(|follower| follower.database == *database) {
                follower.compare(context, &feed).await?;
            }
        }
        let text = format!(
            "compared in {:.1?}: {} documents, {} attachments, {} aborted requests; \
             without a response: {} done, {} not; with 202: {} stored, {} lost",
            started.elapsed(),
            after.verified - before.verified,
            after.verified_files - before.verified_files,
            aborted,
            after.unanswered_done - before.unanswered_done,
            after.unanswered_undone - before.unanswered_undone,
            after.accepted_found - before.accepted_found,
            after.accepted_lost - before.accepted_lost,
        );
        self.print(print, &text);
        Ok(())
    }

    /// Checks that a database's feed agrees with its writers' models and has no other live document.
    async fn compare_feed(
        &self,
        http: &mut Http,
        number: usize,
        database: &str,
        feed: &Feed,
    ) -> StepResult<()> {
        let mut live = 0_u64;
        for model in self.context.models.iter().skip(number).step_by(DATABASES) {
            let model = model.lock().await;
            for (id, doc) in &model.docs {
                let found = feed.docs.get(id);
                let is_right = match &doc.state {
                    DocState::Live { rev, .. } => found == Some(&(rev.clone(), false)),
                    DocState::Deleted(Some(rev)) => found == Some(&(rev.clone(), true)),
                    DocState::Deleted(None) => found.is_none_or(|(_, deleted)| *deleted),
                    DocState::Absent => found.is_none(),
                };
                if !is_right {
                    return wrong(format!("the feed has {found:?} of {id}: {:?}", doc.state));
                }
                live += u64::from(doc.state.is_live());
            }
        }
        let in_feed = feed.docs.values().filter(|(_, deleted)| !deleted).count() as u64;
        let info = http.get(&format!("/{database}")).await?.expect("a database", &[200])?.json()?;
        if in_feed != live || info["doc_count"] != live {
            let count = &info["doc_count"];
            return wrong(format!("{database}: {live} are known, {in_feed} in the feed, {count} counted"));
        }
        Ok(())
    }

    /// Ends all clients and waits until the server has closed their connections. Then stops the server and
    /// checks its files.
    async fn rest(
        &mut self,
        program: &Path,
        server: &mut ServerProcess,
        print: &impl Fn(&str),
    ) -> Result<()> {
        self.phase.send_replace(Phase::Done);
        self.tasks.shutdown().await;
        let started = Instant::now();
        let usage = loop {
            let usage = usage(server)?;
            if usage.sockets <= IDLE_SOCKETS_MAX && usage.removed_files == 0 {
                break usage;
            }
            if started.elapsed() > REST_WAIT_MAX {
                let Usage { sockets, removed_files, .. } = usage;
                let reason =
                    format!("without a client it has {sockets} sockets, {removed_files} removed files open");
                return Err(violation(reason));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        self.print(print, &format!("{} (no client left)", line(&usage, &self.followers)));
        server.stop().await?;
        check(program, server)?;
        self.print(print, "stopped; settee check found no fault");
        Ok(())
    }

    async fn summarize(&self, print: &impl Fn(&str)) {
        let mut counts = Counts::default();
        for model in &self.context.models {
            counts.add(&model.lock().await.counts);
        }
        let changes = change_count(&self.followers);
        let backups = self.backups.lock().await;
        print(&format!(
            "backups: {} of the server had all that was acknowledged when they were made, \
             {} of edited copies equalled the copies",
            backups.compared, backups.compared_copies,
        ));
        print(&format!(
            "nothing acknowledged was lost: {} requests, {} writes acknowledged, {} with response 202 \
             ({} of those lost), {} changes received by {} followers, {} compactions, {} comparisons of \
             documents, {} of attachments",
            counts.requests,
            counts.acknowledged,
            counts.accepted,
            counts.accepted_lost,
            changes,
            self.followers.len(),
            self.admin.lock().await.compactions,
            counts.verified,
            counts.verified_files,
        ));
    }
}

/// The server's current usage.
fn usage(server: &ServerProcess) -> Result<Usage> {
    Usage::of(server.pid()).ok_or_else(|| Error::Server("it isn't running".to_owned()))
}

/// Runs `settee check` on the server's files.
fn check(program: &Path, server: &ServerProcess) -> Result<()> {
    let output = Command::new(program).arg("check").arg(server.data()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::Server(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    Err(Error::Server(format!("settee check: {}: {text}", output.status)))
}

fn ended_early(
    ended: Result<Result<(), String>, tokio::task::JoinError>,
    server: &mut ServerProcess,
) -> Error {
    let reason = match ended {
        Ok(Err(reason)) => reason,
        other => format!("a client ended: {other:?}"),
    };
    match server.has_ended() {
        Some(ended) => violation(format!("{ended}; {reason}")),
        None => violation(reason),
    }
}

fn change_count(followers: &[Arc<Follower>]) -> u64 {
    followers.iter().map(|one| one.received.lock().map_or(0, |received| received.changes)).sum()
}

fn line(usage: &Usage, followers: &[Arc<Follower>]) -> String {
    let changes = change_count(followers);
    format!(
        "{:>6.1} MiB resident  {:>4} descriptors ({} sockets, {} removed files)  {:>3} threads  \
         {changes:>8} changes received",
        usage.resident_bytes as f64 / f64::from(1 << 20),
        usage.descriptors,
        usage.sockets,
        usage.removed_files,
        usage.threads,
    )
}

/// The server's usage in the time between two kills.
struct Period {
    time: Duration,
    samples: Vec<Usage>,
}

/// Compares medians of a period's second and last quarter. Returns a description of each growth that isn't
/// allowed.
fn judge(index: u32, period: &Period, print: &impl Fn(&str)) -> Vec<String> {
    let quarter = period.samples.len() / 4;
    if quarter == 0 {
        return Vec::new();
    }
    let second = &period.samples[quarter..2 * quarter];
    let last = &period.samples[period.samples.len() - quarter..];
    let is_judged = period.time >= JUDGED_PERIOD_MIN;
    let mut grown = Vec::new();
    let mut figures = Vec::new();
    let mut compare = |name: &str, of: fn(&Usage) -> f64, share: f64, more: f64| {
        let (then, now) = (median(second, of), median(last, of));
        figures.push(format!("{name} {then:.0} then {now:.0}"));
        if is_judged && now > then * (1.0 + share) + more {
            grown.push(format!("{name} grew from {then:.0} to {now:.0} in period {}", index + 1));
        }
    };
    compare("resident bytes", |usage| usage.resident_bytes as f64, MEMORY_GROWTH_SHARE, MEMORY_GROWTH_BYTES);
    compare("descriptors", |usage| usage.descriptors as f64, 0.0, DESCRIPTOR_GROWTH);
    compare("threads", |usage| usage.threads as f64, 0.0, THREAD_GROWTH);
    let verdict = match (is_judged, grown.is_empty()) {
        (false, _) => "too short to judge",
        (true, true) => "flat",
        (true, false) => "NOT FLAT",
    };
    print(&format!(
        "          period {}: medians of the second and the last quarter: {}: {verdict}",
        index + 1,
        figures.join(", ")
    ));
    grown
}

fn median(samples: &[Usage], of: fn(&Usage) -> f64) -> f64 {
    rounds::median(samples.iter().map(of)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(time: Duration, resident: impl Fn(u64) -> u64) -> Period {
        let sample = |index| Usage { resident_bytes: resident(index) << 20, ..Usage::default() };
        Period { time, samples: (0..40).map(sample).collect() }
    }

    #[test]
    fn growth_counts_unless_it_ends_within_the_first_quarter() {
        let long = JUDGED_PERIOD_MIN;
        assert_eq!(
            judge(0, &period(long, |index| 100 + index.min(9) * 20), &|_: &str| {}),
            Vec::<String>::new()
        );
        assert_eq!(judge(0, &period(long, |index| 100 + index * 3), &|_: &str| {}).len(), 1);
        assert!(judge(0, &period(long / 2, |index| 100 + index * 3), &|_: &str| {}).is_empty(), "too short");
    }
}
