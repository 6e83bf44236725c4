//! Measurements: a window is one run of a workload, a series its windows in the rounds of a benchmark.
//!
//! Workloads that are compared run once per round, one after the other, so that other load on the machine
//! affects all alike; a ratio is the median of the ratios of the same round.

use std::time::Duration;

use tokio::task::{self, JoinSet};

use crate::stats::{Elapsed, Samples};
use crate::{Error, Result};

/// The result of running a workload once.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// Number of operations.
    pub operations: u64,
    /// The operations in units of the rate: their number, or megabytes.
    pub units: f64,
    /// The times.
    pub elapsed: Elapsed,
    /// The latency of each request.
    pub latencies: Samples,
    /// Median and 99th percentile in microseconds, where the latencies themselves aren't known.
    pub percentiles: Option<[f64; 2]>,
}

impl Window {
    pub(crate) fn new(operations: u64, latencies: Samples, elapsed: Elapsed) -> Window {
        Window { operations, units: operations as f64, elapsed, latencies, percentiles: None }
    }

    /// The window of a workload whose every latency is that of one operation.
    pub(crate) fn of(latencies: Samples, elapsed: Elapsed) -> Window {
        Window::new(latencies.count(), latencies, elapsed)
    }

    /// Adds a later slice of the same workload.
    pub(crate) fn append(&mut self, other: Window) {
        match self.operations {
            0 => *self = other,
            _ => {
                self.operations += other.operations;
                self.units += other.units;
                self.latencies.append(other.latencies);
                self.elapsed.add(other.elapsed);
            }
        }
    }

    /// Units per second.
    pub(crate) fn rate(&self) -> f64 {
        self.units / self.elapsed.wall.as_secs_f64().max(1e-9)
    }

    /// A value per operation.
    fn each(&self, value: f64) -> Option<f64> {
        (self.operations > 0).then(|| value / self.operations as f64)
    }

    /// This process's processor time per operation in microseconds.
    pub(crate) fn client_cpu_us(&self) -> Option<f64> {
        self.each(micros(self.elapsed.client_cpu))
    }

    /// The server's processor time per operation in microseconds, if it is known.
    pub(crate) fn server_cpu_us(&self) -> Option<f64> {
        self.each(micros(self.elapsed.server_cpu?))
    }

    pub(crate) fn sleeps(&self) -> Option<f64> {
        self.each(self.elapsed.switches? as f64)
    }

    /// Median and 99th percentile of the latencies in microseconds.
    pub(crate) fn percentiles(&self) -> Option<[f64; 2]> {
        self.percentiles.or_else(|| self.latencies.percentiles([0.5, 0.99]))
    }
}

/// The windows of one workload, one per round.
#[derive(Debug, Clone, Default)]
pub struct Series(pub Vec<Window>);

impl Series {
    /// The median over the rounds of `of`. None if no round has a value.
    pub(crate) fn median(&self, of: impl Fn(&Window) -> Option<f64>) -> Option<f64> {
        median(self.0.iter().filter_map(of))
    }

    /// The median rate.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.median(|window| Some(window.rate()))
    }

    /// The median over the rounds of the rate divided by the peer's in the same round.
    pub(crate) fn ratio_to(&self, peer: &Series) -> Option<f64> {
        median(self.0.iter().zip(&peer.0).map(|(ours, peer)| ours.rate() / peer.rate().max(1e-9)))
    }

    /// Like [`Series::ratio_to`], for operations per second of processor time, which other load affects less.
    pub(crate) fn per_cpu_ratio_to(&self, peer: &Series) -> Option<f64> {
        let cost = |window: &Window| window.client_cpu_us().filter(|cost| *cost > 0.0);
        median(self.0.iter().zip(&peer.0).filter_map(|(ours, peer)| Some(cost(peer)? / cost(ours)?)))
    }

    /// The latencies of all rounds.
    pub(crate) fn latencies(&self) -> Samples {
        self.0.iter().map(|window| window.latencies.clone()).collect()
    }
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// A time in microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A workload with a name, and its series or the reason why it couldn't be measured.
pub(crate) struct Measured<W> {
    pub(crate) workload: W,
    pub(crate) series: Result<Series, String>,
}

/// Measures each workload once per round; each round begins with another one. A workload that fails with a
/// reason has no series, and isn't measured again.
pub(crate) async fn measure_rounds<W>(
    rounds: usize,
    workloads: Vec<W>,
    mut measure: impl AsyncFnMut(&W, usize) -> Result<Result<Window, String>>,
) -> Result<Vec<Measured<W>>> {
    let all = workloads.into_iter().map(|workload| Measured { workload, series: Ok(Series::default()) });
    let mut all: Vec<Measured<W>> = all.collect();
    for round in 0..rounds {
        for turn in 0..all.len() {
            let index = (turn + round) % all.len();
            let Measured { workload, series } = &mut all[index];
            let Ok(windows) = series else { continue };
            match measure(workload, round).await? {
                Ok(window) => windows.0.push(window),
                Err(reason) => *series = Err(reason),
            }
        }
    }
    Ok(all)
}

/// Runs futures as concurrent tasks and returns their results, in any order.
pub(crate) async fn join_all<T: Send + 'static>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
) -> Result<Vec<T>> {
    let mut tasks: JoinSet<Result<T>> = futures.into_iter().collect();
    let mut results = Vec::with_capacity(tasks.len());
    while let Some(joined) = tasks.join_next().await {
        results.push(joined.map_err(failed)??);
    }
    Ok(results)
}

/// Runs blocking work in a separate thread, so that the command can be interrupted.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    task::spawn_blocking(work).await.map_err(failed)?
}

/// Converts an error of the engine, a file, the log or a task.
pub(crate) fn failed(error: impl std::fmt::Display) -> Error {
    Error::wrong("measuring", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(operations: u64, seconds: u64) -> Window {
        let server_cpu = Some(Duration::from_millis(operations));
        let client_cpu = Duration::from_millis(1);
        let wall = Duration::from_secs(seconds);
        Window::new(operations, Samples::default(), Elapsed { wall, client_cpu, server_cpu, switches: None })
    }

    #[test]
    fn slices_add_up_to_one_window() {
        let mut sum = Window::default();
        sum.append(window(10, 1));
        sum.append(window(50, 3));
        assert_eq!((sum.operations, sum.rate(), sum.server_cpu_us()), (60, 15.0, Some(1000.0)));
    }

    #[test]
    fn ratios_are_medians_of_pairs_from_the_same_round() {
        let ours = Series(vec![window(100, 2), window(10, 2), window(90, 2)]);
        let peer = Series(vec![window(100, 2), window(100, 2), window(100, 2)]);
        assert_eq!(ours.ratio_to(&peer), Some(0.9));
        assert_eq!(ours.per_cpu_ratio_to(&peer), Some(0.9));
        assert_eq!(ours.rate(), Some(45.0));
    }

    #[test]
    fn each_round_begins_with_another_workload_and_a_failed_one_has_no_series() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut order = Vec::new();
        let measured = runtime.block_on(measure_rounds(3, vec!['a', 'b', 'c'], async |name, round| {
            order.push((*name, round));
            Ok(if *name == 'b' { Err("refused".to_owned()) } else { Ok(window(1, 1)) })
        }));
        let measured = measured.unwrap();
        assert_eq!(order, [('a', 0), ('b', 0), ('c', 0), ('c', 1), ('a', 1), ('c', 2), ('a', 2)]);
        let counts = measured.iter().map(|one| one.series.as_ref().ok().map(|series| series.0.len()));
        assert_eq!(counts.collect::<Vec<_>>(), [Some(3), None, Some(3)]);
    }
}
