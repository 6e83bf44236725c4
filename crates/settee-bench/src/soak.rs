//! A soak: mixed clients on a server that is killed now and then, for as long as one has time for.
//!
//! Clients write documents, attachments and local documents of their own, and know all that was
//! acknowledged; others follow the changes, list, dawdle, compact, make and delete databases. At a random
//! moment the server is killed (SIGKILL) and started again on the same directory; then, and at the end,
//! everything that was acknowledged is compared with what is there, byte by byte. Meanwhile, and once at the
//! end, the server is backed up; each run is restored and compared with what was acknowledged when it was
//! made. Every few seconds the server's memory, descriptors and threads are read.
//!
//! Invariants:
//! 1. What was acknowledged by 200 or 201 is there; what was answered by 202 is counted apart.
//! 2. What was sent and never answered is there whole, or not at all.
//! 3. A follower hears of each document's newest revision, in order, and of no change twice.
//! 4. A violation ends the soak with its reason.

mod backups;
mod client;
mod followers;
mod model;
mod others;
mod server;
mod writers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use self::backups::Backups;
use self::client::{Http, Phase, Shared, Step, Trouble, wrong};
use self::followers::{Feed, Follower, Kind};
use self::model::{Counts, Model, Random, State};
use self::others::Admin;
use self::server::{Held, Subject};
use crate::error::{Error, Result};

const DATABASES: usize = 3;
const WRITERS: usize = 9;
const READERS: usize = 3;
const DAWDLERS: usize = 3;

/// Of each database's followers, so many have a connection that stays open.
const CONTINUOUS_FOLLOWERS: usize = 2;

/// Time between two looks at what the server holds; less where a stretch between two kills is short.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOKS_MIN: u32 = 12;

/// A stretch of this length tells whether memory is flat: before, caches are filling.
const FLAT_STRETCH_MIN: Duration = Duration::from_secs(180);

/// Memory is flat where its median in a stretch's last quarter is at most so much above that in the
/// second: a share of it, and a fixed amount for what one large request takes at a time.
const MEMORY_GROWTH_SHARE: f64 = 0.10;
const MEMORY_GROWTH_BYTES: f64 = (24 << 20) as f64;

/// The same for descriptors and threads: what a few more open segments and connections take.
const DESCRIPTOR_GROWTH: f64 = 24.0;
const THREAD_GROWTH: f64 = 8.0;

/// Sockets of a server that has no client left: it listens, and its own parts wake each other.
const SOCKETS_AT_REST: u64 = 4;

/// How long clients may take to let go, and the server to close what they left.
const REST_WAIT_MAX: Duration = Duration::from_secs(90);

/// What a soak is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The `settee` program.
    pub program: PathBuf,
    /// Where data and log go: a directory of the soak's own.
    pub directory: PathBuf,
    /// How long the clients run, in all.
    pub duration: Duration,
    /// How often the server is killed meanwhile.
    pub kills: u32,
    /// Names the run.
    pub seed: u64,
}

/// Soaks, and prints what it sees line by line. Returns when all has been compared and the server has
/// been stopped.
///
/// # Errors
/// The first violation; what kept the server from starting. The server runs no more then.
pub async fn run(config: &Config, print: impl Fn(&str)) -> Result<()> {
    let mut subject = Subject::start(&config.program, &config.directory).await?;
    let soak = Soak::prepare(config, &subject).await?;
    let outcome = soak.run(config, &mut subject, &print).await;
    if let Err(Error::Wrong { .. }) = &outcome {
        print(&format!("the server's log ends with:\n{}", subject.said()));
    }
    outcome
}

struct Soak {
    phase: watch::Sender<Phase>,
    shared: Arc<Shared>,
    followers: Vec<Arc<Follower>>,
    admin: Arc<Mutex<Admin>>,
    backups: Arc<Mutex<Backups>>,
    tasks: Tasks,
    begun: Instant,
}

type Tasks = JoinSet<Result<(), String>>;

fn violation(reason: impl Into<String>) -> Error {
    Error::wrong("soak", reason)
}

fn trouble(trouble: Trouble) -> Error {
    match trouble {
        Trouble::Wrong(reason) => violation(reason),
        Trouble::Broken(error) => violation(format!("the server broke off: {error}")),
    }
}

impl Soak {
    async fn prepare(config: &Config, subject: &Subject) -> Result<Soak> {
        let (phase, receiver) = watch::channel(Phase::Paused);
        let databases: Vec<String> = (0..DATABASES).map(|index| format!("soak{index}")).collect();
        let shared = Arc::new(Shared {
            server: subject.server(),
            phase: receiver,
            databases: databases.clone(),
            models: (0..WRITERS).map(|_| Mutex::new(Model::default())).collect(),
            purged: Default::default(),
            aborted: Default::default(),
            seed: config.seed,
        });
        let mut http = Http::new(&shared.server);
        for database in &databases {
            let made = http.send("PUT", &format!("/{database}"), None).await.map_err(trouble)?;
            made.expect("a database", &[201]).map_err(trouble)?;
        }
        let kinds = [Kind::Continuous; CONTINUOUS_FOLLOWERS].into_iter().chain([Kind::Longpoll]);
        let followers: Vec<Arc<Follower>> = databases
            .iter()
            .flat_map(|name| kinds.clone().map(|kind| Arc::new(Follower::new(name, kind))))
            .collect();
        let begun = Instant::now();
        let backups = Arc::new(Mutex::new(Backups::new(&config.program, &config.directory)));
        let (admin, tasks) = (Arc::default(), JoinSet::new());
        let mut soak = Soak { phase, shared, followers, admin, backups, tasks, begun };
        soak.spawn();
        Ok(soak)
    }

    fn spawn(&mut self) {
        for index in 0..WRITERS {
            let shared = self.shared.clone();
            self.tasks.spawn(async move { writers::run(&shared, index).await });
        }
        for index in 0..READERS {
            let shared = self.shared.clone();
            self.tasks.spawn(async move { others::list(&shared, index).await });
        }
        for index in 0..DAWDLERS {
            let shared = self.shared.clone();
            self.tasks.spawn(async move { others::dawdle(&shared, index).await });
        }
        let (shared, admin) = (self.shared.clone(), self.admin.clone());
        self.tasks.spawn(async move { others::administer(&shared, &admin).await });
        let (shared, backups) = (self.shared.clone(), self.backups.clone());
        self.tasks.spawn(async move { backups::run(&shared, &backups).await });
        for (index, follower) in self.followers.iter().enumerate() {
            let (shared, follower) = (self.shared.clone(), follower.clone());
            self.tasks.spawn(async move { follower.run(&shared, index).await });
        }
    }

    async fn run(mut self, config: &Config, subject: &mut Subject, print: &impl Fn(&str)) -> Result<()> {
        let mut random = Random::new(config.seed ^ 0x6b11);
        let stretch = config.duration / (config.kills + 1);
        let mut moment = Duration::ZERO;
        let mut flat: Vec<String> = Vec::new();
        for index in 0..=config.kills {
            // A random moment, within a quarter of a stretch of where an even one would be.
            let end = match index == config.kills {
                true => config.duration,
                false => {
                    let even = stretch * (index + 1) - stretch / 4;
                    even + stretch.mul_f64(random.below(1_000) as f64 / 2_000.0)
                }
            };
            let looks = self.stretch(subject, end - moment, print).await?;
            moment = end;
            if index < config.kills {
                subject.kill();
                self.phase.send_replace(Phase::Paused);
                print(&format!("{:>6.0} s  killed", self.begun.elapsed().as_secs_f64()));
                self.wait_for_clients().await?;
                let time = subject.start_again().await?;
                print(&format!(
                    "{:>6.0} s  answers again after {time:.1?}",
                    self.begun.elapsed().as_secs_f64()
                ));
            } else {
                self.phase.send_replace(Phase::Paused);
                self.wait_for_clients().await?;
            }
            self.verify(print).await.map_err(trouble)?;
            flat.extend(judge(index, &looks, print));
        }
        self.backups.lock().await.cycle(&self.shared).await.map_err(trouble)?;
        if let Some(ended) = self.tasks.try_join_next() {
            return Err(ended_early(ended, subject));
        }
        self.rest(subject, print).await?;
        self.summarize(print).await;
        match flat.is_empty() {
            true => Ok(()),
            false => Err(violation(flat.join("; "))),
        }
    }

    /// Lets the clients run for so long; what the server held meanwhile.
    async fn stretch(
        &mut self,
        subject: &mut Subject,
        time: Duration,
        print: &impl Fn(&str),
    ) -> Result<Stretch> {
        self.phase.send_replace(Phase::Running);
        let (begun, every) = (Instant::now(), LOOK_EVERY.min(time / LOOKS_MIN));
        let mut stretch = Stretch { time, looks: Vec::new() };
        let mut next = every;
        while begun.elapsed() < time {
            let left = next.min(time).saturating_sub(begun.elapsed());
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                Some(ended) = self.tasks.join_next() => return Err(ended_early(ended, subject)),
            }
            if let Some(ended) = subject.has_ended() {
                return Err(violation(ended));
            }
            next += every;
            let held = subject.held()?;
            stretch.looks.push(held);
            print(&line(self.begun.elapsed(), &held, &self.followers));
        }
        Ok(stretch)
    }

    /// Returns once no client holds its model.
    async fn wait_for_clients(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let all = async {
            for model in &shared.models {
                drop(model.lock().await);
            }
            drop(self.admin.lock().await);
        };
        let all = tokio::time::timeout(REST_WAIT_MAX, all);
        tokio::select! {
            done = all => done.map_err(|_| violation("a client waits for an answer for too long")),
            Some(ended) = self.tasks.join_next() => Err(match ended {
                Ok(Err(reason)) => violation(reason),
                other => violation(format!("a client ended: {other:?}")),
            }),
        }
    }

    /// Compares all that is known with what is there.
    async fn verify(&self, print: &impl Fn(&str)) -> Step<()> {
        let begun = Instant::now();
        let shared = &*self.shared;
        let mut http = Http::new(&shared.server);
        // What a 202 promised nothing of is there now, or never will be.
        for database in &shared.databases {
            let target = format!("/{database}/_ensure_full_commit");
            http.post(&target, &serde_json::json!({})).await?.expect("a commit", &[201])?;
        }
        let mut before = Counts::default();
        let mut after = Counts::default();
        for (index, model) in shared.models.iter().enumerate() {
            let mut model = model.lock().await;
            before.add(&model.counts);
            writers::verify(&mut http, &shared.databases[index % DATABASES], &mut model).await?;
            after.add(&model.counts);
        }
        let aborted = others::verify_aborted(shared, &mut http).await?;
        self.admin.lock().await.verify(&mut http).await?;
        for (number, database) in shared.databases.iter().enumerate() {
            let feed = Feed::read(&mut http, database).await?;
            self.compare_feed(&mut http, number, database, &feed).await?;
            for follower in self.followers.iter().filter(|follower| follower.database == *database) {
                follower.compare(shared, &feed).await?;
            }
        }
        print(&format!(
            "{:>6.0} s  compared in {:.1?}: {} documents, {} attachments, {} half requests; unanswered: {} done, \
             {} not; of 202: {} there, {} lost",
            self.begun.elapsed().as_secs_f64(),
            begun.elapsed(),
            after.verified - before.verified,
            after.verified_files - before.verified_files,
            aborted,
            after.unanswered_done - before.unanswered_done,
            after.unanswered_undone - before.unanswered_undone,
            after.accepted_found - before.accepted_found,
            after.accepted_lost - before.accepted_lost,
        ));
        Ok(())
    }

    /// The feed of a database has what its writers know, and nothing live that nobody wrote.
    async fn compare_feed(&self, http: &mut Http, number: usize, database: &str, feed: &Feed) -> Step<()> {
        let mut live = 0_u64;
        for model in self.shared.models.iter().skip(number).step_by(DATABASES) {
            let model = model.lock().await;
            for (id, doc) in &model.docs {
                let found = feed.docs.get(id);
                let is_right = match &doc.state {
                    State::Live { rev, .. } => found == Some(&(rev.clone(), false)),
                    State::Deleted(Some(rev)) => found == Some(&(rev.clone(), true)),
                    State::Deleted(None) => found.is_none_or(|(_, deleted)| *deleted),
                    State::Absent => found.is_none(),
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

    /// Ends all clients, and waits until the server has closed what they left; then stops it, and checks
    /// its files.
    async fn rest(&mut self, subject: &mut Subject, print: &impl Fn(&str)) -> Result<()> {
        self.phase.send_replace(Phase::Done);
        self.tasks.shutdown().await;
        let begun = Instant::now();
        let held = loop {
            let held = subject.held()?;
            if held.sockets <= SOCKETS_AT_REST && held.nameless == 0 {
                break held;
            }
            if begun.elapsed() > REST_WAIT_MAX {
                let Held { sockets, nameless, .. } = held;
                let reason = format!("without a client it holds {sockets} sockets, {nameless} removed files");
                return Err(violation(reason));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        print(&format!("{} (no client left)", line(self.begun.elapsed(), &held, &self.followers)));
        subject.stop_and_check().await?;
        print(&format!(
            "{:>6.0} s  stopped; settee check finds its files sound",
            self.begun.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    async fn summarize(&self, print: &impl Fn(&str)) {
        let mut counts = Counts::default();
        for model in &self.shared.models {
            counts.add(&model.lock().await.counts);
        }
        let changes: u64 =
            self.followers.iter().map(|one| one.heard.lock().map_or(0, |heard| heard.changes)).sum();
        let backups = self.backups.lock().await;
        print(&format!(
            "backups: {} runs of the server had what was acknowledged when they were made, {} runs of edited \
             copies what these had",
            backups.compared, backups.compared_copies,
        ));
        print(&format!(
            "nothing acknowledged was lost: {} requests, {} writes acknowledged, {} answered by 202 ({} of those \
             lost), {} changes heard by {} followers, {} compactions, {} comparisons of documents, {} of \
             attachments",
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

fn ended_early(ended: Result<Result<(), String>, tokio::task::JoinError>, subject: &mut Subject) -> Error {
    let reason = match ended {
        Ok(Err(reason)) => reason,
        other => format!("a client ended: {other:?}"),
    };
    match subject.has_ended() {
        Some(ended) => violation(format!("{ended}; {reason}")),
        None => violation(reason),
    }
}

fn line(time: Duration, held: &Held, followers: &[Arc<Follower>]) -> String {
    let changes: u64 = followers.iter().map(|one| one.heard.lock().map_or(0, |heard| heard.changes)).sum();
    format!(
        "{:>6.0} s  {:>6.1} MiB resident  {:>4} descriptors ({} sockets, {} removed files)  {:>3} threads  {changes:>8} \
         changes heard",
        time.as_secs_f64(),
        held.resident_bytes as f64 / f64::from(1 << 20),
        held.descriptors,
        held.sockets,
        held.nameless,
        held.threads,
    )
}

/// What the server held in the time between two kills.
struct Stretch {
    time: Duration,
    looks: Vec<Held>,
}

/// Compares medians of the second and of the last quarter: what isn't flat.
fn judge(index: u32, stretch: &Stretch, print: &impl Fn(&str)) -> Vec<String> {
    let quarter = stretch.looks.len() / 4;
    if quarter == 0 {
        return Vec::new();
    }
    let second = &stretch.looks[quarter..2 * quarter];
    let last = &stretch.looks[stretch.looks.len() - quarter..];
    let is_judged = stretch.time >= FLAT_STRETCH_MIN;
    let mut grown = Vec::new();
    let mut said = Vec::new();
    let mut compare = |name: &str, of: fn(&Held) -> f64, share: f64, more: f64| {
        let (then, now) = (median(second, of), median(last, of));
        said.push(format!("{name} {then:.0} then {now:.0}"));
        if is_judged && now > then * (1.0 + share) + more {
            grown.push(format!("{name} grew from {then:.0} to {now:.0} in stretch {}", index + 1));
        }
    };
    compare("resident bytes", |held| held.resident_bytes as f64, MEMORY_GROWTH_SHARE, MEMORY_GROWTH_BYTES);
    compare("descriptors", |held| held.descriptors as f64, 0.0, DESCRIPTOR_GROWTH);
    compare("threads", |held| held.threads as f64, 0.0, THREAD_GROWTH);
    let verdict = match (is_judged, grown.is_empty()) {
        (false, _) => "too short to judge",
        (true, true) => "flat",
        (true, false) => "NOT FLAT",
    };
    print(&format!(
        "          stretch {}: medians of the second and the last quarter: {}: {verdict}",
        index + 1,
        said.join(", ")
    ));
    grown
}

fn median(looks: &[Held], of: fn(&Held) -> f64) -> f64 {
    let mut values: Vec<f64> = looks.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(time: Duration, resident: impl Fn(u64) -> u64) -> Stretch {
        let look = |index| Held { resident_bytes: resident(index) << 20, ..Held::default() };
        Stretch { time, looks: (0..40).map(look).collect() }
    }

    #[test]
    fn memory_that_grows_is_not_flat_and_caches_that_fill_first_are() {
        let long = FLAT_STRETCH_MIN;
        assert_eq!(
            judge(0, &stretch(long, |index| 100 + index.min(9) * 20), &|_: &str| {}),
            Vec::<String>::new()
        );
        assert_eq!(judge(0, &stretch(long, |index| 100 + index * 3), &|_: &str| {}).len(), 1);
        assert!(judge(0, &stretch(long / 2, |index| 100 + index * 3), &|_: &str| {}).is_empty(), "too short");
    }
}
