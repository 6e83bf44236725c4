//! Indexes that follow writes: the rate of batches with and without three views, and how far the views are behind.
//!
//! Clients write for a time, by turns to a database without views and to one with a design document of three
//! views, which the server keeps up in the background. Meanwhile, and until the views have caught up, `_info`
//! is sampled. By count, the views are behind by `updates_pending`; by time, they are behind by the
//! age of the oldest acknowledged change that they don't have.
//!
//! Rather too few documents count as indexed than too many: the design document and writes that aren't acknowledged
//! yet are pending changes too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use settee_client::{Answer, Couch, Request, parse};

use super::bench::{Bench, row, total_rows};
use crate::api::bench::directory;
use crate::api::clients::{Documents, Loader, NumberRange};
use crate::drive::{Client, drive};
use crate::error::{Error, Result};
use crate::report::{Bound, Row};
use crate::rounds::Window;

/// Number of clients, and documents of a batch.
const CLIENT_COUNT: u64 = 10;
const BATCH: u64 = 100;

/// Aims: smallest ratio of the rate with views to the rate without, and longest time in seconds by which they
/// may be behind.
const RATE_SHARE_MIN: f64 = 0.5;
const BEHIND_SECONDS_MAX: f64 = 5.0;

/// Interval between two samples; shorter in a short run.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait, after the last write, for views that follow.
const CATCH_UP_WAIT_MAX: Duration = Duration::from_secs(120);

/// Number of messages of the archive from which documents are taken: more than a run writes.
const MESSAGE_COUNT: u64 = 1 << 30;

/// Largest number of acknowledged batches that are remembered.
const ACKNOWLEDGED_COUNT_MAX: usize = 4 << 20;

/// The design document's path, and the map functions of its views, by name.
const DESIGN: &str = "_design/follow";
const MAPS: [(&str, &str); 3] = [
    ("by_list", "function (doc) { emit([doc.list, doc.date.day], doc.lines); }"),
    ("by_sender", "function (doc) { emit(doc.from, null); }"),
    ("by_serial", "function (doc) { if (doc.lines > 0) { emit(doc.serial, doc.subject); } }"),
];

/// When how many documents were acknowledged.
#[derive(Debug, Default)]
struct Acknowledged(Mutex<Vec<(Instant, u64)>>);

impl Acknowledged {
    /// Adds documents that were acknowledged now.
    fn add(&self, count: u64) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = list.last().map_or(0, |(_, sum)| *sum) + count;
        assert!(list.len() < ACKNOWLEDGED_COUNT_MAX, "a run has fewer batches");
        list.push((Instant::now(), sum));
    }

    /// Number of all acknowledged documents.
    fn sum(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last().map_or(0, |(_, sum)| *sum)
    }

    /// The age at `now` of the oldest acknowledged change behind the first `indexed`.
    fn age_behind(&self, indexed: u64, now: Instant) -> Duration {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = list.partition_point(|(_, sum)| *sum <= indexed);
        list.get(next).map_or(Duration::ZERO, |(at, _)| now.saturating_duration_since(*at))
    }
}

/// How far views are behind.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    pending: u64,
    behind: Duration,
}

/// The samples of views that follow, and how long after the last write they had caught up.
#[derive(Debug, Default)]
struct Followed {
    samples: Vec<Sample>,
    catch_up: Option<Duration>,
}

impl Bench<'_> {
    pub(super) async fn follow(&mut self, each: &mut (dyn FnMut(Row) + Send)) -> Result<()> {
        let (mut without, mut with, mut followed) =
            (Window::default(), Window::default(), Followed::default());
        let mut catch_ups = Vec::new();
        // Both come first once, so that what changes slowly affects both alike.
        for with_views in [false, true, true, false] {
            self.settle().await;
            let (window, half) = self.write(with_views).await?;
            if !with_views {
                without.append(window);
                continue;
            }
            with.append(window);
            followed.samples.extend(half.samples);
            catch_ups.push(half.catch_up);
        }
        followed.catch_up =
            catch_ups.into_iter().collect::<Option<Vec<Duration>>>().and_then(|all| all.into_iter().max());
        let (base, rate) = (without.rate(), with.rate());
        let batches = format!("batches of {BATCH} by {CLIENT_COUNT} clients");
        each(row(&format!("{batches}, no views"), "docs/s", without));
        let row = row(&format!("{batches}, three views follow"), "docs/s", with);
        each(row.compare("× without views", Some(rate / base), Bound::AtLeast(RATE_SHARE_MIN)));
        each(behind_row(&followed));
        Ok(())
    }

    /// Writes half of the time to a new database, with views or without, and deletes it. Views must have all
    /// documents at the end.
    async fn write(&mut self, with_views: bool) -> Result<(Window, Followed)> {
        const NAME: &str = "writes that views follow";
        let database = self.create().await?;
        let path = directory(&database);
        if with_views {
            let views: serde_json::Map<_, _> =
                MAPS.iter().map(|(name, map)| ((*name).to_owned(), json!({ "map": map }))).collect();
            let design = json!({ "language": "javascript", "views": views }).to_string();
            self.couch.call("PUT", &format!("{path}/{DESIGN}"), Some(design.as_bytes())).await?;
        }
        let time = Duration::from_secs_f64(self.config.follow_seconds / 2.0);
        let (acknowledged, is_written) = (Arc::<Acknowledged>::default(), Arc::new(AtomicBool::new(false)));
        let sampler = with_views.then(|| {
            let couch = Couch::new(self.target.server.clone());
            let info = format!("{path}/{DESIGN}/_info");
            let interval = SAMPLE_INTERVAL.min(time / 4);
            tokio::spawn(sample(couch, info, interval, acknowledged.clone(), is_written.clone()))
        });
        let documents = Documents::Mail { count: MESSAGE_COUNT };
        let numbers = NumberRange::new(0..MESSAGE_COUNT);
        let loaders = Loader::group(&self.bulk_target(&path), CLIENT_COUNT, &numbers, BATCH, documents);
        let writers = loaders.into_iter().map(|loader| Writer { loader, acknowledged: acknowledged.clone() });
        let driven = drive(NAME, self.target, writers.collect(), Some(time)).await;
        is_written.store(true, Ordering::Relaxed);
        let mut followed = Followed::default();
        if let Some(sampler) = sampler {
            followed = sampler.await.map_err(|_| Error::wrong(NAME, "the sampler panicked"))??;
        }
        let (window, _) = driven?;
        for (name, _) in MAPS.iter().filter(|_| with_views) {
            let rows = total_rows(&mut self.couch, &format!("{path}/{DESIGN}/_view/{name}?limit=1")).await?;
            if rows != acknowledged.sum() {
                let reason = format!("{name} has {rows} rows of {}", acknowledged.sum());
                return Err(Error::wrong(NAME, reason));
            }
        }
        self.delete(&database).await?;
        Ok((window, followed))
    }
}

/// Samples `_info` at the interval, until the views have caught up after the last write.
async fn sample(
    mut couch: Couch,
    info: String,
    interval: Duration,
    acknowledged: Arc<Acknowledged>,
    is_written: Arc<AtomicBool>,
) -> Result<Followed> {
    let mut followed = Followed::default();
    let mut ended = None;
    loop {
        tokio::time::sleep(interval).await;
        if ended.is_none() && is_written.load(Ordering::Relaxed) {
            ended = Some(Instant::now());
        }
        let sum = acknowledged.sum();
        let pending = pending(&mut couch, &info).await?;
        let indexed = sum.saturating_sub(pending);
        let behind =
            if pending == 0 { Duration::ZERO } else { acknowledged.age_behind(indexed, Instant::now()) };
        followed.samples.push(Sample { pending, behind });
        let Some(ended) = ended else { continue };
        if pending == 0 {
            followed.catch_up = Some(ended.elapsed());
            return Ok(followed);
        }
        if ended.elapsed() > CATCH_UP_WAIT_MAX {
            return Ok(followed);
        }
    }
}

/// Number of changes that the design document's views don't have.
async fn pending(couch: &mut Couch, info: &str) -> Result<u64> {
    #[derive(Deserialize)]
    struct Info {
        view_index: Index,
    }
    #[derive(Deserialize)]
    struct Index {
        updates_pending: Pending,
    }
    #[derive(Deserialize)]
    struct Pending {
        total: u64,
    }
    let reply = couch.call("GET", info, None).await?;
    Ok(parse::<Info>(info, &reply.body)?.view_index.updates_pending.total)
}

/// The row of how far views are behind.
fn behind_row(followed: &Followed) -> Row {
    let samples = &followed.samples;
    let seconds = samples.iter().map(|sample| sample.behind).max().unwrap_or_default().as_secs_f64();
    let pending = samples.iter().map(|sample| sample.pending).max().unwrap_or_default();
    let mut row = Row::figure("three views behind the writes at most", "s", seconds);
    row.operations = samples.len() as u64;
    let mean =
        samples.iter().map(|sample| sample.behind.as_secs_f64()).sum::<f64>() / samples.len().max(1) as f64;
    let row = row
        .compare("s behind at most", Some(seconds), Bound::AtMost(BEHIND_SECONDS_MAX))
        .compare("s behind in the mean", Some(mean), None)
        .compare("changes behind at most", Some(pending as f64), None)
        .compare("s until the views had all", followed.catch_up.map(|time| time.as_secs_f64()), None);
    match followed.catch_up {
        Some(_) => row,
        None => row.note(format!(
            "the views hadn't caught up {} s after the last write",
            CATCH_UP_WAIT_MAX.as_secs()
        )),
    }
}

/// Loads documents and notes when they were acknowledged.
struct Writer {
    loader: Loader,
    acknowledged: Arc<Acknowledged>,
}

impl Client for Writer {
    fn next(&mut self) -> Option<Request<'_>> {
        self.loader.next()
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let stored = self.loader.check(answer)?;
        self.acknowledged.add(stored);
        Ok(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_behind_by_the_age_of_the_oldest_change_that_they_lack() {
        let acknowledged = Acknowledged::default();
        assert_eq!(acknowledged.age_behind(0, Instant::now()), Duration::ZERO);
        acknowledged.add(100);
        acknowledged.add(50);
        let times: Vec<Instant> = acknowledged.0.lock().unwrap().iter().map(|(at, _)| *at).collect();
        let now = times[1] + Duration::from_secs(3);
        assert_eq!(acknowledged.age_behind(99, now), now - times[0]);
        assert_eq!(acknowledged.age_behind(100, now), Duration::from_secs(3));
        assert_eq!(acknowledged.age_behind(150, now), Duration::ZERO);
        assert_eq!(acknowledged.sum(), 150);
    }

    #[test]
    fn views_that_are_too_far_behind_or_never_catch_up_are_a_miss() {
        let sample = |seconds| Sample { pending: 7, behind: Duration::from_secs(seconds) };
        let followed = |longest, catch_up| Followed { samples: vec![sample(1), sample(longest)], catch_up };
        let row = behind_row(&followed(5, Some(Duration::from_secs(1))));
        assert_eq!((row.compared[0].met, row.notes.len()), (Some(true), 0));
        let row = behind_row(&followed(6, None));
        assert_eq!((row.compared[0].met, row.notes.len()), (Some(false), 1));
    }
}
