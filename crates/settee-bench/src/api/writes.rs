//! Rows that write documents: loads, single durable puts and updates, and a writer beside readers.

use super::bench::{Bench, ROUND_COUNT, directory, generators, row};
use super::clients::{Content, IdPath, Ids, NumberRange, Putter, Updater, generation, sequential_id};
use super::config::Target;
use super::plan::{BESIDE, DOCUMENT_BYTES, Kind, Plan};
use crate::couch::BulkRow;
use crate::documents::Generator;
use crate::drive::{Client, Outcome, Until, add_outcome, drive};
use crate::error::{Error, Result};
use crate::limits::{BareClient, FRAME_OVERHEAD_BYTES, SyncLimit};
use crate::report::{Bound, Limit, Row};
use crate::stats::Samples;

/// Number of documents that each updating client has.
const UPDATED_COUNT_PER_CLIENT: u64 = 500;

/// Number of updates of a document with a history.
const HISTORY_COUNT: u64 = 2_000;

/// Number of slices into which the updates of a document are divided.
const HISTORY_SLICES: usize = 20;

/// Minimum number of updates of a slice that is scaled down.
const SLICE_COUNT_MIN: u64 = 5;

/// Number of documents with a history. The cost of a slice is the sum over all of them.
const HISTORY_DOCUMENTS: u64 = 5;

/// Largest ratio of the cost of a late update to that of an early one at which both count as equal: the
/// difference between two slices of equal work on a machine with other load.
const SAME_COST_MAX: f64 = 1.15;

/// Number of documents of a batch of tiny ones.
const TINY_BATCH: u64 = 1_000;

/// Number of readers of one document beside the writer of tiny ones.
const TINY_READERS: u64 = 15;

/// Goal: minimum rate of writer and readers together, as a share of their rate alone.
const SHARE_KEPT: f64 = 0.5;

/// Number of slices of one client's writes, alternating with slices of their limits: many, since a disk's
/// latency changes quickly.
const SINGLE_ROUND_COUNT: u32 = 20;

/// Latencies of one sync and of one round trip to the bare server, measured alternately with one client's
/// writes.
struct SingleWriteLimit {
    syncs: Samples,
    trips: Samples,
}

impl Bench<'_> {
    pub(super) async fn load_row(&mut self, plan: &Plan) -> Result<Row> {
        let Kind::Load { ids, content, batch, writers, documents } = plan.kind else {
            unreachable!("called only for loads");
        };
        let database = self.create().await?;
        let loaded = self.load(plan.name, &database, (ids, content), (batch, writers), documents).await?;
        Ok(row(plan, "docs", &loaded).judged(plan.goals))
    }

    pub(super) async fn put(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let numbers = NumberRange::from(0);
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
            let ids = (0..UPDATED_COUNT_PER_CLIENT).map(|number| format!("{client}-{number}"));
            updaters.push(self.updater(plan, &database, ids.collect(), generator).await?);
        }
        self.singles(plan, updaters).await
    }

    /// Measures writes of single documents; those of one client alternate with their limits.
    async fn singles<C: Client>(&mut self, plan: &Plan, clients: Vec<C>) -> Result<Row> {
        if clients.len() > 1 {
            let until = Until::Passed(self.config.row_time);
            let (outcome, _) = self.drive_target(plan.name, clients, until).await?;
            return Ok(row(plan, "docs", &outcome).judged(plan.goals));
        }
        let (outcome, limit) = self.single_client(plan, clients).await?;
        let row = row(plan, "docs", &outcome);
        let row = match limit {
            None => row,
            Some(limit) => against_single_limit(row, &outcome.latencies, &limit),
        };
        Ok(row.judged(plan.goals))
    }

    /// Measures syncs, round trips to the bare server and writes alternately.
    async fn single_client<C: Client>(
        &mut self,
        plan: &Plan,
        mut clients: Vec<C>,
    ) -> Result<(Outcome, Option<SingleWriteLimit>)> {
        let slice = self.config.row_time / SINGLE_ROUND_COUNT;
        let limits = (&self.config.directory, &self.config.bare);
        let mut sync_limit = match limits {
            (Some(directory), Some(_)) => {
                Some(SyncLimit::create(directory, DOCUMENT_BYTES + FRAME_OVERHEAD_BYTES)?)
            }
            _ => None,
        };
        let mut document = Vec::new();
        Generator::new(1).document("floor", DOCUMENT_BYTES, &mut document);
        let mut sum = None;
        let mut limit = SingleWriteLimit { syncs: Samples::default(), trips: Samples::default() };
        for _ in 0..SINGLE_ROUND_COUNT {
            if let (Some(sync_limit), Some(Target { server, pid })) = (&mut sync_limit, limits.1) {
                limit.syncs.append(sync_limit.measure(slice / 2)?);
                let client = vec![BareClient::put(document.clone())];
                let (trips, _) = drive(plan.name, server, *pid, client, Until::Passed(slice / 2)).await?;
                limit.trips.append(trips.latencies);
            }
            let (outcome, returned) = self.drive_target(plan.name, clients, Until::Passed(slice)).await?;
            clients = returned;
            add_outcome(&mut sum, outcome);
        }
        Ok((sum.expect("there is a round"), sync_limit.map(|_| limit)))
    }

    /// Stores documents and returns a client that updates them.
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
            next: 0,
            bytes: DOCUMENT_BYTES,
            generator,
            left: None,
        })
    }

    /// Updates one document many times and compares the cost of early and late updates. Several documents,
    /// one after the other, so that each sum covers enough processor time.
    pub(super) async fn history(&mut self, plan: &Plan) -> Result<Row> {
        let database = self.create().await?;
        let slice = self.scaled(HISTORY_COUNT, 1) / HISTORY_SLICES as u64;
        let slice = slice.max(SLICE_COUNT_MIN);
        // Warms up: the one-time costs of a new database and a new connection aren't measured.
        let mut warm = self.updater(plan, &database, vec!["warm".to_owned()], Generator::new(1)).await?;
        warm.left = Some(slice);
        self.drive_target(plan.name, vec![warm], Until::Done).await?;
        let mut slices: Vec<Option<Outcome>> = (0..HISTORY_SLICES).map(|_| None).collect();
        let mut sum = None;
        for (number, generator) in (0..HISTORY_DOCUMENTS).zip(generators(HISTORY_DOCUMENTS)) {
            let ids = vec![sequential_id(number)];
            let mut updaters = vec![self.updater(plan, &database, ids, generator).await?];
            for total in &mut slices {
                updaters.iter_mut().for_each(|updater| updater.left = Some(slice));
                let (outcome, returned) = self.drive_target(plan.name, updaters, Until::Done).await?;
                updaters = returned;
                let (operations, elapsed) = (outcome.operations, outcome.elapsed);
                add_outcome(total, Outcome { operations, elapsed, latencies: Samples::default() });
                add_outcome(&mut sum, outcome);
            }
            self.check_history(plan, &updaters[0], 1 + slice * HISTORY_SLICES as u64).await?;
        }
        let row = row(plan, "docs", &sum.expect("there is a document"));
        let slices: Vec<Outcome> = slices.into_iter().flatten().collect();
        Ok(judged_by_history(row, &slices, slice).judged(plan.goals))
    }

    /// Checks that the server has the client's last revision and that its number is `expected`.
    async fn check_history(&mut self, plan: &Plan, updater: &Updater, expected: u64) -> Result<()> {
        let (id, revision) = &updater.documents[0];
        let target = format!("{}/{id}", updater.directory);
        let body = self.couch.call("GET", &target, None).await?.body;
        let is_current = memchr::memmem::find(&body, format!("\"_rev\":\"{revision}\"").as_bytes()).is_some();
        if !is_current || generation(revision) != Some(expected) {
            return Err(Error::wrong(plan.name, format!("{id} isn't at {revision}, update {expected}")));
        }
        Ok(())
    }

    /// Measures the writer alone, the readers alone, and both together, alternately.
    pub(super) async fn beside(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let database = self.create().await?;
        // Number 0 is the document of the readers; the tiny ones have the numbers from 1 on.
        let mut document = Vec::new();
        Generator::numbered_document(&sequential_id(0), 0, DOCUMENT_BYTES, &mut document);
        let target = format!("{}/{}", directory(&database), sequential_id(0));
        self.couch.call("PUT", &target, Some(&document)).await?;
        let numbers = NumberRange::from(1);
        let loader = self.loader(&database, numbers.clone(), TINY_BATCH, (Ids::Sequential, Content::Tiny));
        let mut writer: Vec<_> = generators(1).map(loader).collect();
        let mut readers = self.getters(&database, TINY_READERS, 1);
        let until = Until::Passed(self.config.row_time / ROUND_COUNT);
        let mut sums: [Option<Outcome>; 4] = Default::default();
        for _ in 0..ROUND_COUNT {
            let (written, returned) = self.drive_target(plan.name, writer, until).await?;
            writer = returned;
            let (read, returned) = self.drive_target(plan.name, readers, until).await?;
            readers = returned;
            let both = tokio::join!(
                self.drive_target(plan.name, writer, until),
                self.drive_target(plan.name, readers, until)
            );
            let ((written_beside, returned_writer), (read_beside, returned_readers)) = (both.0?, both.1?);
            (writer, readers) = (returned_writer, returned_readers);
            for (sum, next) in sums.iter_mut().zip([written, read, written_beside, read_beside]) {
                add_outcome(sum, next);
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

/// Compares a single client's writes with one sync and one round trip, for which such a client waits. The
/// limit is computed from medians, since a disk's few slow syncs may affect one of the two more.
fn against_single_limit(
    mut row: Row,
    writes: &Samples,
    SingleWriteLimit { syncs, trips }: &SingleWriteLimit,
) -> Row {
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

/// Compares the middle slice (whose last update is the thousandth) and the last one with the first, by the
/// server's processor time. `updates` is the number of updates of a slice.
fn judged_by_history(mut row: Row, slices: &[Outcome], updates: u64) -> Row {
    let cost = |index: usize| slices.get(index).and_then(Outcome::server_cpu_us);
    let (middle, last) = (slices.len() / 2 - 1, slices.len() - 1);
    let name =
        |index: usize| format!("updates {} to {}", index as u64 * updates + 1, (index as u64 + 1) * updates);
    for index in [middle, last] {
        let grown = cost(0).zip(cost(index)).map(|(first, later)| later / first);
        let what = format!("CPU of {} × the first {updates}", name(index));
        row = row.aim(what, Bound::AtMost(SAME_COST_MAX), grown);
    }
    let figures = [0, middle, last].map(|index| {
        let cpu = cost(index).map_or("–".to_owned(), |cost| format!("{cost:.1}"));
        format!("{}: {cpu} µs, {:.0}/s", name(index), slices[index].rate())
    });
    row.note(format!("{} documents, one after the other; {}", HISTORY_DOCUMENTS, figures.join("; ")))
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

    fn empty_row() -> Row {
        Row::new("update", "docs", 1, &Elapsed::default(), &Samples::default())
    }

    #[test]
    fn updates_of_growing_cost_miss_the_aims() {
        let slices: Vec<Outcome> = (0..20).map(|index| outcome(100, 100 + 10 * index)).collect();
        let row = judged_by_history(empty_row(), &slices, 100);
        let aims: Vec<_> = row.aims.iter().map(|aim| (aim.reached, aim.met)).collect();
        assert_eq!(aims, [(Some(1.9), Some(false)), (Some(2.9), Some(false))]);
        assert!(row.aims[0].what.contains("updates 901 to 1000"), "{}", row.aims[0].what);
        assert!(row.aims[1].what.contains("updates 1901 to 2000"), "{}", row.aims[1].what);
        let even: Vec<Outcome> = (0..20).map(|_| outcome(100, 100)).collect();
        let row = judged_by_history(empty_row(), &even, 100);
        assert!(row.aims.iter().all(|aim| aim.met == Some(true)));
    }

    #[test]
    fn a_single_writers_limit_is_one_sync_and_one_round_trip() {
        let samples = |micros: u64| {
            let mut samples = Samples::default();
            samples.push(Duration::from_micros(micros));
            samples
        };
        let limit = SingleWriteLimit { syncs: samples(150), trips: samples(50) };
        let row = against_single_limit(empty_row(), &samples(250), &limit);
        let Limit { rate, share, .. } = row.limit.unwrap();
        assert_eq!((rate.round(), (share * 100.0).round()), (5000.0, 80.0));
        assert!(row.notes[0].ends_with("0.80 of the limit"), "{}", row.notes[0]);
    }
}
