//! Rows that write documents: loads, single durable puts and updates, and a writer beside readers.

use super::clients::{Content, IdPath, Ids, Numbers, Putter, Updater, generation, sequential_id};
use super::plan::{BESIDE, DOCUMENT_BYTES, Kind, Plan};
use super::{Bench, ROUND_COUNT, Target, directory, generators, row};
use crate::couch::BulkRow;
use crate::documents::Generator;
use crate::drive::{Client, Outcome, Until, drive, tally};
use crate::error::{Error, Result};
use crate::limits::{FRAME_OVERHEAD_BYTES, FloorClient, SyncFloor};
use crate::report::{Bound, Limit, Row};
use crate::stats::Samples;

/// Documents that each updating client has to itself.
const UPDATED_COUNT_EACH: u64 = 500;

/// Updates of a document with a history, and into how many stretches they are divided.
const HISTORY_COUNT: u64 = 2_000;
const HISTORY_STRETCHES: usize = 20;

/// Fewest updates of a stretch that is scaled down.
const STRETCH_COUNT_MIN: u64 = 5;

/// Documents with a history: what a stretch costs is the sum over them.
const HISTORY_DOCUMENTS: u64 = 5;

/// How much more a late update may cost than an early one and count as the same: what two
/// stretches of equal work differ by on a machine that does other things.
const SAME_COST_MAX: f64 = 1.15;

/// Documents in a batch of tiny ones.
const TINY_BATCH: u64 = 1_000;

/// Readers of one document beside the writer of tiny ones.
const TINY_READERS: u64 = 15;

/// What writer and readers keep of their rates alone.
const SHARE_KEPT: f64 = 0.5;

/// Times that lone writes and their limits take turns: many, since a disk's mood changes quickly.
const LONE_ROUND_COUNT: u32 = 20;

/// What one sync and one bare round trip took, beside lone writes.
struct LoneLimit {
    syncs: Samples,
    trips: Samples,
}

impl Bench<'_> {
    pub(super) async fn load_row(&mut self, plan: &Plan) -> Result<Row> {
        let Kind::Load { ids, content, batch, writers, documents } = plan.kind else {
            unreachable!("called for loads alone");
        };
        let database = self.create().await?;
        let loaded = self.load(plan.name, &database, (ids, content), (batch, writers), documents).await?;
        Ok(row(plan, "docs", &loaded).judged(plan.goals))
    }

    pub(super) async fn put(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let numbers = Numbers::from(0);
        let putters: Vec<Putter> = (0..clients)
            .map(|_| Putter {
                target: IdPath::new(&directory(&database)),
                query: self.durability_query(),
                numbers: numbers.clone(),
                bytes: DOCUMENT_BYTES,
                document: Vec::new(),
            })
            .collect();
        let row = self.singles(plan, putters).await?;
        self.check_count(plan.name, &database, numbers.taken()).await?;
        Ok(row)
    }

    pub(super) async fn update(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let mut updaters = Vec::new();
        for (client, generator) in (0..clients).zip(generators(clients)) {
            let ids = (0..UPDATED_COUNT_EACH).map(|number| format!("{client}-{number}"));
            updaters.push(self.updater(plan, &database, ids.collect(), generator).await?);
        }
        self.singles(plan, updaters).await
    }

    /// Single writes: a lone client's in turn with what limits it.
    async fn singles<C: Client>(&mut self, plan: &Plan, clients: Vec<C>) -> Result<Row> {
        if clients.len() > 1 {
            let (outcome, _) = self.ours(plan.name, clients, Until::Passed(self.config.row_time)).await?;
            return Ok(row(plan, "docs", &outcome).judged(plan.goals));
        }
        let (outcome, limit) = self.lone(plan, clients).await?;
        let row = row(plan, "docs", &outcome);
        let row = match limit {
            None => row,
            Some(limit) => beside_lone_limit(row, &outcome.latencies, &limit),
        };
        Ok(row.judged(plan.goals))
    }

    /// Syncs, round trips and writes in turn.
    async fn lone<C: Client>(
        &mut self,
        plan: &Plan,
        mut clients: Vec<C>,
    ) -> Result<(Outcome, Option<LoneLimit>)> {
        let slice = self.config.row_time / LONE_ROUND_COUNT;
        let limits = (&self.config.directory, &self.config.floor);
        let mut sync_floor = match limits {
            (Some(directory), Some(_)) => {
                Some(SyncFloor::create(directory, DOCUMENT_BYTES + FRAME_OVERHEAD_BYTES)?)
            }
            _ => None,
        };
        let mut document = Vec::new();
        Generator::new(1).document("floor", DOCUMENT_BYTES, &mut document);
        let (mut sum, mut limit) = (None, LoneLimit { syncs: Samples::default(), trips: Samples::default() });
        for _ in 0..LONE_ROUND_COUNT {
            if let (Some(sync_floor), Some(Target { server, pid })) = (&mut sync_floor, limits.1) {
                limit.syncs.append(sync_floor.measure(slice / 2)?);
                let client = vec![FloorClient::put(document.clone())];
                let (trips, _) = drive(plan.name, server, *pid, client, Until::Passed(slice / 2)).await?;
                limit.trips.append(trips.latencies);
            }
            let (outcome, again) = self.ours(plan.name, clients, Until::Passed(slice)).await?;
            clients = again;
            tally(&mut sum, outcome);
        }
        Ok((sum.expect("there is a round"), sync_floor.map(|_| limit)))
    }

    /// A client that updates these documents, which it makes first.
    async fn updater(
        &mut self,
        plan: &Plan,
        database: &str,
        ids: Vec<String>,
        mut generator: Generator,
    ) -> Result<Updater> {
        let mut body = b"{\"docs\":[".to_vec();
        for (index, id) in ids.iter().enumerate() {
            body.extend_from_slice(if index == 0 { b"" } else { b"," });
            generator.document(id, DOCUMENT_BYTES, &mut body);
        }
        body.extend_from_slice(b"]}");
        let rows = self.couch.bulk(database, &body).await?;
        let revision = |row: BulkRow| row.rev.map(|rev| (row.id, rev));
        let documents: Option<Vec<_>> = rows.into_iter().map(revision).collect();
        Ok(Updater {
            directory: directory(database),
            query: self.durability_query().replace('?', "&"),
            documents: documents.ok_or_else(|| Error::wrong(plan.name, "a document was refused"))?,
            turn: 0,
            bytes: DOCUMENT_BYTES,
            generator,
            left: None,
        })
    }

    /// One document is updated again and again: what an update costs early on and late. One
    /// document after another, so that the sums are over enough work to tell.
    pub(super) async fn history(&mut self, plan: &Plan) -> Result<Row> {
        let database = self.create().await?;
        let stretch = self.scaled(HISTORY_COUNT, 1) / HISTORY_STRETCHES as u64;
        let stretch = stretch.max(STRETCH_COUNT_MIN);
        // Before the first: what a new database and a new connection cost once.
        let mut warm = self.updater(plan, &database, vec!["warm".to_owned()], Generator::new(1)).await?;
        warm.left = Some(stretch);
        self.ours(plan.name, vec![warm], Until::Done).await?;
        let mut stretches: Vec<Option<Outcome>> = (0..HISTORY_STRETCHES).map(|_| None).collect();
        let mut sum = None;
        for (number, generator) in (0..HISTORY_DOCUMENTS).zip(generators(HISTORY_DOCUMENTS)) {
            let ids = vec![sequential_id(number)];
            let mut updaters = vec![self.updater(plan, &database, ids, generator).await?];
            for total in &mut stretches {
                updaters.iter_mut().for_each(|updater| updater.left = Some(stretch));
                let (outcome, again) = self.ours(plan.name, updaters, Until::Done).await?;
                updaters = again;
                let (operations, elapsed) = (outcome.operations, outcome.elapsed);
                tally(total, Outcome { operations, elapsed, latencies: Samples::default() });
                tally(&mut sum, outcome);
            }
            self.check_history(plan, &updaters[0], 1 + stretch * HISTORY_STRETCHES as u64).await?;
        }
        let row = row(plan, "docs", &sum.expect("there is a document"));
        let stretches: Vec<Outcome> = stretches.into_iter().flatten().collect();
        Ok(judged_by_history(row, &stretches, stretch).judged(plan.goals))
    }

    /// Whether the server has the revision that the client saw last, and its number is right.
    async fn check_history(&mut self, plan: &Plan, updater: &Updater, expected: u64) -> Result<()> {
        let (id, revision) = &updater.documents[0];
        let target = format!("{}/{id}", updater.directory);
        let body = self.couch.call("GET", &target, None).await?.body;
        let is_there = memchr::memmem::find(&body, format!("\"_rev\":\"{revision}\"").as_bytes()).is_some();
        if !is_there || generation(revision) != Some(expected) {
            return Err(Error::wrong(plan.name, format!("{id} isn't at {revision}, update {expected}")));
        }
        Ok(())
    }

    /// The writer alone, the readers alone, and both, in turn.
    pub(super) async fn beside(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let database = self.create().await?;
        // The document that is read has the first number; the tiny ones begin behind it.
        let mut document = Vec::new();
        Generator::numbered_document(&sequential_id(0), 0, DOCUMENT_BYTES, &mut document);
        let target = format!("{}/{}", directory(&database), sequential_id(0));
        self.couch.call("PUT", &target, Some(&document)).await?;
        let numbers = Numbers::from(1);
        let loader = self.loader(&database, numbers.clone(), TINY_BATCH, (Ids::Sequential, Content::Tiny));
        let mut writer: Vec<_> = generators(1).map(loader).collect();
        let mut readers = self.getters(&database, TINY_READERS, 1);
        let until = Until::Passed(self.config.row_time / ROUND_COUNT);
        let mut sums: [Option<Outcome>; 4] = Default::default();
        for _ in 0..ROUND_COUNT {
            let (written, again) = self.ours(plan.name, writer, until).await?;
            writer = again;
            let (read, again) = self.ours(plan.name, readers, until).await?;
            readers = again;
            let both =
                tokio::join!(self.ours(plan.name, writer, until), self.ours(plan.name, readers, until));
            let ((written_beside, again), (read_beside, readers_again)) = (both.0?, both.1?);
            (writer, readers) = (again, readers_again);
            for (sum, next) in sums.iter_mut().zip([written, read, written_beside, read_beside]) {
                tally(sum, next);
            }
        }
        self.check_count(plan.name, &database, numbers.taken()).await?;
        let outcomes = sums.map(|sum| sum.expect("there is a round"));
        let rates = outcomes.each_ref().map(Outcome::rate);
        let rows = BESIDE.iter().zip(&outcomes).enumerate().map(|(index, (plan, outcome))| {
            let row = row(plan, if index % 2 == 0 { "docs" } else { "requests" }, outcome);
            let row = match index {
                0 | 1 => row,
                _ => {
                    let kept = rates[index] / rates[index - 2];
                    row.aim("of the rate alone", Bound::AtLeast(SHARE_KEPT), Some(kept))
                }
            };
            row.judged(plan.goals)
        });
        Ok(rows.collect())
    }
}

/// A lone client waits for one sync and one round trip: what is reached of what they allow. Judged
/// by medians, since a disk's few slow syncs meet one side more than the other.
fn beside_lone_limit(mut row: Row, writes: &Samples, LoneLimit { syncs, trips }: &LoneLimit) -> Row {
    let median = |samples: &Samples| samples.percentiles([0.5]).map(|[half]| half.as_secs_f64());
    let mean = Samples::mean_seconds;
    let of = |seconds: &dyn Fn(&Samples) -> Option<f64>| {
        Some([seconds(syncs)?, seconds(trips)?, seconds(writes)?])
    };
    let (Some([sync, trip, write]), Some(means)) = (of(&median), of(&mean)) else {
        return row;
    };
    row.limit = Some(Limit {
        name: "one raw sync and one bare round trip, by medians".to_owned(),
        rate: 1.0 / (sync + trip),
        cpu_us: None,
        share: (sync + trip) / write,
        cpu_multiple: None,
    });
    let [mean_sync, mean_trip, mean_write] = means;
    let share = (mean_sync + mean_trip) / mean_write;
    let ([sync, trip], [mean_sync, mean_trip]) =
        ([sync, trip].map(millis), [mean_sync, mean_trip].map(millis));
    row.note(format!(
        "one sync {sync:.3} ms, one bare round trip {trip:.3} ms; \
         by means {mean_sync:.3} + {mean_trip:.3} ms: {share:.2} of the limit"
    ))
}

fn millis(seconds: f64) -> f64 {
    seconds * 1e3
}

/// Holds the stretch in the middle (the thousandth update is its last) and the last one against
/// the first, by the server's processor time.
fn judged_by_history(mut row: Row, stretches: &[Outcome], stretch: u64) -> Row {
    let cost = |index: usize| stretches.get(index).and_then(Outcome::server_cpu_us);
    let (middle, last) = (stretches.len() / 2 - 1, stretches.len() - 1);
    let name =
        |index: usize| format!("updates {} to {}", index as u64 * stretch + 1, (index as u64 + 1) * stretch);
    for index in [middle, last] {
        let grown = cost(0).zip(cost(index)).map(|(first, later)| later / first);
        let what = format!("CPU of {} × the first {stretch}", name(index));
        row = row.aim(what, Bound::AtMost(SAME_COST_MAX), grown);
    }
    let told = [0, middle, last].map(|index| {
        let cpu = cost(index).map_or("–".to_owned(), |cost| format!("{cost:.1}"));
        format!("{}: {cpu} µs, {:.0}/s", name(index), stretches[index].rate())
    });
    row.note(format!("{} documents, one after the other; {}", HISTORY_DOCUMENTS, told.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::Elapsed;

    fn outcome(operations: u64, cpu_us_each: u64) -> Outcome {
        let elapsed = Elapsed {
            wall: Duration::from_secs(1),
            client_cpu: Duration::ZERO,
            server_cpu: Some(Duration::from_micros(operations * cpu_us_each)),
        };
        Outcome { operations, elapsed, latencies: Samples::default() }
    }

    fn bare_row() -> Row {
        Row::new("update", "docs", 1, &Elapsed::default(), &Samples::default())
    }

    #[test]
    fn a_history_that_grows_misses_its_aims() {
        let stretches: Vec<Outcome> = (0..20).map(|index| outcome(100, 100 + 10 * index)).collect();
        let row = judged_by_history(bare_row(), &stretches, 100);
        let aims: Vec<_> = row.aims.iter().map(|aim| (aim.reached, aim.met)).collect();
        assert_eq!(aims, [(Some(1.9), Some(false)), (Some(2.9), Some(false))]);
        assert!(row.aims[0].what.contains("updates 901 to 1000"), "{}", row.aims[0].what);
        assert!(row.aims[1].what.contains("updates 1901 to 2000"), "{}", row.aims[1].what);
        let even: Vec<Outcome> = (0..20).map(|_| outcome(100, 100)).collect();
        let row = judged_by_history(bare_row(), &even, 100);
        assert!(row.aims.iter().all(|aim| aim.met == Some(true)));
    }

    #[test]
    fn a_lone_writers_limit_is_one_sync_and_one_round_trip() {
        let samples = |micros: u64| {
            let mut samples = Samples::default();
            samples.push(Duration::from_micros(micros));
            samples
        };
        let limit = LoneLimit { syncs: samples(150), trips: samples(50) };
        let row = beside_lone_limit(bare_row(), &samples(250), &limit);
        let Limit { rate, share, .. } = row.limit.unwrap();
        assert_eq!((rate.round(), (share * 100.0).round()), (5000.0, 80.0));
        assert!(row.notes[0].ends_with("0.80 of the limit"), "{}", row.notes[0]);
    }
}
