//! Rows that write documents: loads, single durable puts and updates, and a writer beside readers.

use std::borrow::Cow;
use std::time::Instant;

use settee_client::JSON;

use super::bench::{Bench, Limit, ROUND_COUNT, directory, row};
use super::clients::{
    Documents, IdPath, Loader, NumberRange, Putter, Updater, generation, generators, sequential_id,
};
use super::plan::{BESIDE, DOCUMENT_BYTES, Load, Plan};
use super::reads::getters;
use crate::documents::Generator;
use crate::drive::{Client, drive};
use crate::error::{Error, Result};
use crate::limits::{BareClient, RawFile};
use crate::report::{Bound, Row, figure};
use crate::rounds::Window;
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

/// Bytes of a record in the log besides its document: headers, key, meta and checksum.
const FRAME_OVERHEAD_BYTES: usize = 150;

/// Number of slices of one client's writes, alternating with slices of their limits: many, since a disk's
/// latency changes quickly.
const SINGLE_ROUND_COUNT: u32 = 20;

impl Bench<'_> {
    pub(super) async fn load_row(&mut self, plan: &Plan, load: Load) -> Result<Row> {
        let database = self.create().await?;
        let loaded = self.load(plan.name, &database, load).await?;
        Ok(row(plan, "docs/s", loaded, None))
    }

    pub(super) async fn put(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let database = self.create().await?;
        let numbers = NumberRange::from(0);
        let putter = |_| Putter {
            target: IdPath::new(&directory(&database), self.setup.durability.query()),
            kind: JSON,
            numbers: numbers.clone(),
            content: |id, number, mut buffer| {
                buffer.clear();
                Generator::numbered_document(id, number, DOCUMENT_BYTES, &mut buffer);
                Cow::Owned(buffer)
            },
            body: Cow::Borrowed(&[]),
        };
        let row = self.singles(plan, (0..clients).map(putter).collect()).await?;
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

    /// Measures writes of single documents. Those of one client alternate with a raw sync and a round trip to
    /// the bare server, for which such a client waits. The limit is computed from medians, since a disk's few
    /// slow syncs may affect one of the two more.
    async fn singles<C: Client>(&mut self, plan: &Plan, mut clients: Vec<C>) -> Result<Row> {
        let time = self.config.row_time();
        if clients.len() > 1 {
            let (window, _) = drive(plan.name, &self.setup.target, clients, Some(time)).await?;
            return Ok(row(plan, "docs/s", window, None));
        }
        let slice = time / SINGLE_ROUND_COUNT;
        let mut raw = match (&self.setup.directory, &self.setup.bare) {
            (Some(directory), Some(bare)) => Some((RawFile::create(directory)?, bare)),
            _ => None,
        };
        let (mut document, mut frame) = (Vec::new(), Vec::new());
        Generator::new(1).document("bare", DOCUMENT_BYTES, &mut document);
        Generator::new(2).document("frame", DOCUMENT_BYTES + FRAME_OVERHEAD_BYTES, &mut frame);
        let (mut sum, mut syncs, mut trips) = (Window::default(), Samples::default(), Samples::default());
        for _ in 0..SINGLE_ROUND_COUNT {
            if let Some((file, bare)) = &mut raw {
                let started = Instant::now();
                while syncs.count() == 0 || started.elapsed() < slice / 2 {
                    syncs.push(file.write(&frame)?.0.elapsed());
                }
                let client = vec![BareClient::put(document.clone())];
                let (window, _) = drive(plan.name, bare, client, Some(slice / 2)).await?;
                trips.append(window.latencies);
            }
            let window;
            (window, clients) = drive(plan.name, &self.setup.target, clients, Some(slice)).await?;
            sum.append(window);
        }
        Ok(single_row(plan, sum, &syncs, &trips))
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
        let documents: Option<Vec<_>> = rows.into_iter().map(|row| Some((row.id, row.rev?))).collect();
        Ok(Updater {
            directory: directory(database),
            query: self.setup.durability.query().replace('?', "&"),
            documents: documents.ok_or_else(|| Error::wrong(plan.name, "a document was refused"))?,
            next: 0,
            bytes: DOCUMENT_BYTES,
            generator,
            left: None,
            target: String::new(),
            document: Vec::new(),
        })
    }

    /// Updates one document many times and compares the cost of early and late updates. Several documents,
    /// one after the other, so that each sum covers enough processor time.
    pub(super) async fn history(&mut self, plan: &Plan) -> Result<Row> {
        let database = self.create().await?;
        let slice = self.config.scaled(HISTORY_COUNT, 1) / HISTORY_SLICES as u64;
        let slice = slice.max(SLICE_COUNT_MIN);
        // Warms up: the one-time costs of a new database and a new connection aren't measured.
        let mut warm = self.updater(plan, &database, vec!["warm".to_owned()], Generator::new(1)).await?;
        warm.left = Some(slice);
        drive(plan.name, &self.setup.target, vec![warm], None).await?;
        let mut slices = vec![Window::default(); HISTORY_SLICES];
        for (number, generator) in (0..HISTORY_DOCUMENTS).zip(generators(HISTORY_DOCUMENTS)) {
            let ids = vec![sequential_id(number)];
            let mut updaters = vec![self.updater(plan, &database, ids, generator).await?];
            for total in &mut slices {
                updaters.iter_mut().for_each(|updater| updater.left = Some(slice));
                let window;
                (window, updaters) = drive(plan.name, &self.setup.target, updaters, None).await?;
                total.append(window);
            }
            self.check_history(plan, &updaters[0], 1 + slice * HISTORY_SLICES as u64).await?;
        }
        let mut sum = Window::default();
        slices.iter().for_each(|slice| sum.append(slice.clone()));
        Ok(judged_by_history(row(plan, "docs/s", sum, None), &slices, slice))
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
        let mut writer =
            Loader::group(&self.bulk_target(&database), 1, &numbers, TINY_BATCH, Documents::Tiny);
        let mut readers = getters(&database, TINY_READERS, 1);
        let (target, name) = (&self.setup.target, plan.name);
        let time = Some(self.config.row_time() / ROUND_COUNT);
        let mut sums: [Window; 4] = Default::default();
        for _ in 0..ROUND_COUNT {
            let (written, returned_writer) = drive(name, target, writer, time).await?;
            let (read, returned_readers) = drive(name, target, readers, time).await?;
            let both = tokio::try_join!(
                drive(name, target, returned_writer, time),
                drive(name, target, returned_readers, time)
            );
            let ((written_beside, returned_writer), (read_beside, returned_readers)) = both?;
            (writer, readers) = (returned_writer, returned_readers);
            for (sum, next) in sums.iter_mut().zip([written, read, written_beside, read_beside]) {
                sum.append(next);
            }
        }
        self.check_count(plan.name, &database, numbers.taken()).await?;
        let rates = sums.each_ref().map(Window::rate);
        let rows = BESIDE.iter().zip(sums).enumerate().map(|(index, (plan, window))| {
            let row = row(plan, if index % 2 == 0 { "docs/s" } else { "requests/s" }, window, None);
            match index {
                0 | 1 => row,
                _ => row.compare(
                    "× the rate alone",
                    Some(rates[index] / rates[index - 2]),
                    Bound::AtLeast(SHARE_KEPT),
                ),
            }
        });
        Ok(rows.collect())
    }
}

/// The row of a single client's writes, compared with the sum of one sync and one round trip if they were
/// measured.
fn single_row(plan: &Plan, writes: Window, syncs: &Samples, trips: &Samples) -> Row {
    let of = |of: &dyn Fn(&Samples) -> Option<f64>| Some([of(syncs)?, of(trips)?, of(&writes.latencies)?]);
    let medians = of(&|samples| samples.percentiles([0.5]).map(|[half]| half));
    let (Some([sync, trip, write]), Some(means)) = (medians, of(&Samples::mean)) else {
        return row(plan, "docs/s", writes, None);
    };
    let limit = Limit {
        name: "one raw sync and one bare round trip, by medians".to_owned(),
        // In proportion to the client's own rate, whose mean has its slow syncs.
        rate: writes.rate() * write / (sync + trip),
        cpu_us: None,
    };
    let [mean_sync, mean_trip, mean_write] = means;
    row(plan, "docs/s", writes, Some(limit)).note(format!(
        "one sync {} µs, one bare round trip {} µs; by means {} + {} µs: {:.2} of the limit",
        figure(sync),
        figure(trip),
        figure(mean_sync),
        figure(mean_trip),
        (mean_sync + mean_trip) / mean_write
    ))
}

/// Compares the middle slice (whose last update is the thousandth) and the last one with the first, by the
/// server's processor time. `updates` is the number of updates of a slice.
fn judged_by_history(mut row: Row, slices: &[Window], updates: u64) -> Row {
    let cost = |index: usize| slices[index].server_cpu_us();
    let (middle, last) = (slices.len() / 2 - 1, slices.len() - 1);
    let name =
        |index: usize| format!("updates {} to {}", index as u64 * updates + 1, (index as u64 + 1) * updates);
    for index in [middle, last] {
        let grown = cost(0).zip(cost(index)).map(|(first, later)| later / first);
        let what = format!("× the CPU of the first {updates}: {}", name(index));
        row = row.compare(what, grown, Bound::AtMost(SAME_COST_MAX));
    }
    let figures = [0, middle, last].map(|index| {
        let cpu = cost(index).map_or("–".to_owned(), figure);
        format!("{}: {cpu} µs, {}/s", name(index), figure(slices[index].rate()))
    });
    row.note(format!("{} documents, one after the other; {}", HISTORY_DOCUMENTS, figures.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::PLANS;
    use super::*;
    use crate::stats::Elapsed;

    fn window(operations: u64, cpu_us_each: u64) -> Window {
        let wall = Duration::from_secs(1);
        let server_cpu = Some(Duration::from_micros(operations * cpu_us_each));
        Window::new(operations, Samples::default(), Elapsed { wall, server_cpu, ..Elapsed::default() })
    }

    fn plan(name: &str) -> &'static Plan {
        PLANS.iter().find(|plan| plan.name == name).unwrap()
    }

    #[test]
    fn updates_of_growing_cost_miss_the_aims() {
        let judged = |slices: &[Window]| {
            judged_by_history(row(plan("update-same"), "docs/s", window(1, 1), None), slices, 100)
        };
        let slices: Vec<Window> = (0..20).map(|index| window(100, 100 + 10 * index)).collect();
        let row = judged(&slices);
        let aims: Vec<_> = row.aims().map(|aim| (aim.figure, aim.met)).collect();
        assert_eq!(aims, [(Some(1.9), Some(false)), (Some(2.9), Some(false))]);
        assert!(row.compared[0].what.contains("updates 901 to 1000"), "{}", row.compared[0].what);
        assert!(row.compared[1].what.contains("updates 1901 to 2000"), "{}", row.compared[1].what);
        let even: Vec<Window> = (0..20).map(|_| window(100, 100)).collect();
        assert!(judged(&even).aims().all(|aim| aim.met == Some(true)));
    }

    #[test]
    fn a_single_writers_limit_is_one_sync_and_one_round_trip() {
        let samples = |micros: u64| {
            let mut samples = Samples::default();
            samples.push(Duration::from_micros(micros));
            samples
        };
        let writes = Window { latencies: samples(250), ..window(4000, 1) };
        let row = single_row(plan("put-1"), writes, &samples(150), &samples(50));
        let aim = row.aims().next().unwrap();
        assert_eq!((aim.figure.map(|share| (share * 100.0).round()), aim.met), (Some(80.0), Some(true)));
        assert!(row.notes[0].ends_with("0.80 of the limit"), "{}", row.notes[0]);
    }
}
