//! Latencies, rates and processor time.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Maximum number of latencies that one row keeps. Later ones count only for the rate.
pub const SAMPLE_COUNT_MAX: usize = 8 << 20;

/// Latencies in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    nanoseconds: Vec<u64>,
}

impl Samples {
    /// Adds a latency.
    pub fn push(&mut self, latency: Duration) {
        if self.nanoseconds.len() < SAMPLE_COUNT_MAX {
            self.nanoseconds.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Adds all latencies of `other`.
    pub fn append(&mut self, mut other: Samples) {
        let left = SAMPLE_COUNT_MAX - self.nanoseconds.len();
        other.nanoseconds.truncate(left);
        self.nanoseconds.append(&mut other.nanoseconds);
    }

    /// Number of latencies.
    pub fn count(&self) -> usize {
        self.nanoseconds.len()
    }

    /// Number of latencies of at least `time`.
    pub fn count_of_at_least(&self, time: Duration) -> usize {
        self.nanoseconds.iter().filter(|&&taken| u128::from(taken) >= time.as_nanos()).count()
    }

    /// Exact percentiles: for each share in `wanted` (0 to 1) the smallest sample that this share of all
    /// samples doesn't exceed. None if there is no sample.
    pub fn percentiles<const N: usize>(&self, wanted: [f64; N]) -> Option<[Duration; N]> {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some(wanted.map(|share| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            Duration::from_nanos(sorted[rank.saturating_sub(1).min(last)])
        }))
    }

    /// The mean in seconds. None if there is no sample.
    pub fn mean_seconds(&self) -> Option<f64> {
        let sum: f64 = self.nanoseconds.iter().map(|&n| n as f64).sum();
        (!self.nanoseconds.is_empty()).then(|| sum / 1e9 / self.nanoseconds.len() as f64)
    }
}

/// Minimum processor time of another process that is reported if it is known only in ticks of 10 ms.
const SERVER_CPU_MIN: Duration = Duration::from_millis(50);

/// Processor time of another process, user and system together.
#[derive(Debug)]
struct CpuReading {
    /// Time of all threads, in multiples of the system's clock tick: `/proc/PID/stat` (proc(5)).
    ticks: Duration,
    /// Exact time of each live thread: `/proc/PID/task/TID/schedstat`. None if the system doesn't report it.
    threads: Option<HashMap<u64, Duration>>,
}

impl CpuReading {
    /// Reads the time of process `pid`. None if there is no such process.
    fn take(pid: u32) -> Option<CpuReading> {
        let ticks = parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(CpuReading { ticks, threads: thread_times(pid) })
    }

    /// The time used since `then`, if it is exact or at least [`SERVER_CPU_MIN`].
    fn since(&self, then: &CpuReading) -> Option<Duration> {
        let exact = self.threads.as_ref().zip(then.threads.as_ref()).and_then(|(now, then)| {
            // The time of a thread that has ended is included only in the ticks.
            then.keys().all(|thread| now.contains_key(thread)).then(|| {
                let sum = |times: &HashMap<u64, Duration>| times.values().sum::<Duration>();
                sum(now).saturating_sub(sum(then))
            })
        });
        let ticks = self.ticks.saturating_sub(then.ticks);
        exact.or((ticks >= SERVER_CPU_MIN).then_some(ticks))
    }
}

/// The error of reading a thread's file after the thread has ended.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

fn thread_times(pid: u32) -> Option<HashMap<u64, Duration>> {
    let mut times = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let entry = entry.ok()?;
        let thread = entry.file_name().to_str()?.parse().ok()?;
        match fs::read_to_string(entry.path().join("schedstat")) {
            Ok(text) => {
                let nanoseconds = text.split_ascii_whitespace().next()?.parse().ok()?;
                times.insert(thread, Duration::from_nanos(nanoseconds));
            }
            // The thread has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH) => {}
            Err(_) => return None,
        }
    }
    // A kernel without these statistics reports 0 for each thread.
    times.values().any(|time| !time.is_zero()).then_some(times)
}

fn parse_stat(stat: &str) -> Option<Duration> {
    // The second field is the program's name in parentheses, which may contain any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_secs_f64((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The exact processor time of this process.
fn own_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Measures wall clock time, this process's processor time and the server's.
#[derive(Debug)]
pub struct Stopwatch {
    server: Option<u32>,
    started: Instant,
    client_cpu: Duration,
    server_cpu: Option<CpuReading>,
}

/// The times that a [`Stopwatch`] has measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct Elapsed {
    /// Wall clock time.
    pub wall: Duration,
    /// Processor time of this process.
    pub client_cpu: Duration,
    /// Processor time of the server's process, if it is known and the time long enough to be measured.
    pub server_cpu: Option<Duration>,
}

impl Stopwatch {
    /// Starts a stopwatch. `server` is the server's process.
    pub fn start(server: Option<u32>) -> Stopwatch {
        let server_cpu = server.and_then(CpuReading::take);
        Stopwatch { server, started: Instant::now(), client_cpu: own_cpu_time(), server_cpu }
    }

    /// Returns the times since the start.
    pub fn read(&self) -> Elapsed {
        let wall = self.started.elapsed();
        let client_cpu = own_cpu_time().saturating_sub(self.client_cpu);
        let server_now = self.server.and_then(CpuReading::take);
        let server_cpu = server_now.zip(self.server_cpu.as_ref()).and_then(|(now, then)| now.since(then));
        Elapsed { wall, client_cpu, server_cpu }
    }
}

impl Elapsed {
    /// Adds the times of another slice. The server's processor time is known only if it is known for both.
    pub(crate) fn add(&mut self, other: Elapsed) {
        self.wall += other.wall;
        self.client_cpu += other.client_cpu;
        self.server_cpu = self.server_cpu.zip(other.server_cpu).map(|(own, other)| own + other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(Duration::from_nanos(value)));
        samples
    }

    #[test]
    fn percentiles_are_exact_ranks_in_any_order() {
        let hundred = samples((1..=100).rev());
        let found = hundred.percentiles([0.0, 0.5, 0.99, 1.0]).unwrap();
        assert_eq!(found.map(|d| d.as_nanos()), [1, 50, 99, 100]);
        let one = samples([7]);
        assert_eq!(one.percentiles([0.5, 0.99]).unwrap().map(|d| d.as_nanos()), [7, 7]);
        let three = samples([30, 10, 20]);
        assert_eq!(three.percentiles([0.5, 0.99]).unwrap().map(|d| d.as_nanos()), [20, 30]);
    }

    #[test]
    fn no_samples_give_no_percentiles_and_no_mean() {
        assert_eq!(Samples::default().percentiles([0.5]), None);
        assert_eq!(Samples::default().mean_seconds(), None);
    }

    #[test]
    fn appended_samples_count_like_pushed_ones() {
        let mut both = samples([1, 2]);
        both.append(samples([3]));
        assert_eq!(both.count(), 3);
        assert_eq!(both.mean_seconds(), Some(2e-9));
    }

    #[test]
    fn processor_time_increases_with_work() {
        let stopwatch = Stopwatch::start(Some(std::process::id()));
        while stopwatch.read().server_cpu.is_none_or(|time| time < SERVER_CPU_MIN) {
            std::hint::black_box(samples(0..1000));
        }
        assert!(stopwatch.read().client_cpu >= SERVER_CPU_MIN / 2);
    }

    fn reading(ticks_ms: u64, threads: Option<&[(u64, u64)]>) -> CpuReading {
        let times = |threads: &[(u64, u64)]| {
            threads.iter().map(|&(thread, ns)| (thread, Duration::from_nanos(ns))).collect()
        };
        CpuReading { ticks: Duration::from_millis(ticks_ms), threads: threads.map(times) }
    }

    #[test]
    fn processor_time_is_exact_unless_a_thread_ended() {
        let then = reading(100, Some(&[(1, 500), (2, 700)]));
        let now = reading(180, Some(&[(1, 600), (2, 700), (3, 11)]));
        assert_eq!(now.since(&then), Some(Duration::from_nanos(111)), "a new thread counts whole");
        let ended = reading(180, Some(&[(1, 600)]));
        assert_eq!(ended.since(&then), Some(Duration::from_millis(80)));
        assert_eq!(reading(130, None).since(&then), None, "too few ticks to tell");
    }

    #[test]
    fn times_add_up_and_an_unknown_one_makes_the_sum_unknown() {
        let known = Elapsed {
            wall: Duration::from_secs(1),
            server_cpu: Some(Duration::from_secs(2)),
            ..Elapsed::default()
        };
        let mut sum = known;
        sum.add(known);
        assert_eq!((sum.wall.as_secs(), sum.server_cpu), (2, Some(Duration::from_secs(4))));
        sum.add(Elapsed::default());
        assert_eq!(sum.server_cpu, None);
    }

    #[test]
    fn processor_time_is_parsed_after_any_program_name() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(parse_stat(stat), Some(Duration::from_secs_f64(200.0 / ticks)));
        assert_eq!(parse_stat("12 (a) S 1 2"), None);
    }
}
