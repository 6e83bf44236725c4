//! Latencies, and the time and processor time of a measurement.
//!
//! The peers' program compiles this file too.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Maximum number of latencies that are kept. Later ones count only for the rate.
const SAMPLE_COUNT_MAX: usize = 8 << 20;

/// Latencies in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<u64>);

impl Samples {
    /// Adds a latency.
    pub fn push(&mut self, latency: Duration) {
        if self.0.len() < SAMPLE_COUNT_MAX {
            self.0.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Adds all latencies of `other`.
    pub fn append(&mut self, mut other: Samples) {
        other.0.truncate(SAMPLE_COUNT_MAX - self.0.len());
        self.0.append(&mut other.0);
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Number of latencies of at least this many microseconds.
    pub fn count_of_at_least(&self, us: f64) -> usize {
        self.0.iter().filter(|&&taken| taken as f64 >= us * 1e3).count()
    }

    /// Exact percentiles in microseconds: for each share in `wanted` (0 to 1) the smallest sample that this
    /// share of all samples doesn't exceed. None if there is no sample.
    pub fn percentiles<const N: usize>(&self, wanted: [f64; N]) -> Option<[f64; N]> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some(wanted.map(|share| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted[rank.saturating_sub(1).min(last)] as f64 / 1e3
        }))
    }

    /// The mean in microseconds. None if there is no sample.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.0.iter().map(|&nanoseconds| nanoseconds as f64).sum();
        (!self.0.is_empty()).then(|| sum / 1e3 / self.0.len() as f64)
    }
}

impl FromIterator<Samples> for Samples {
    fn from_iter<I: IntoIterator<Item = Samples>>(all: I) -> Samples {
        all.into_iter().fold(Samples::default(), |mut sum, samples| {
            sum.append(samples);
            sum
        })
    }
}

/// The number after `name`, a line's beginning with its colon, in a file of proc(5). None if the system doesn't
/// report it.
pub fn proc_field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// Voluntary context switches of this process's threads.
fn switch_count() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?.flatten();
    let status = |task: fs::DirEntry| task.path().join("status").to_string_lossy().into_owned();
    Some(tasks.filter_map(|task| proc_field(&status(task), "voluntary_ctxt_switches:")).sum())
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

fn thread_times(pid: u32) -> Option<HashMap<u64, Duration>> {
    let mut times = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let entry = entry.ok()?;
        // A thread that has just ended has no time.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
        let nanoseconds = text.split_ascii_whitespace().next()?.parse().ok()?;
        times.insert(entry.file_name().to_str()?.parse().ok()?, Duration::from_nanos(nanoseconds));
    }
    // A kernel without these statistics reports none, or 0 for each thread.
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

/// Measures wall clock time, this process's processor time and sleeps, and the server's processor time.
#[derive(Debug)]
pub struct Stopwatch {
    server: Option<u32>,
    switches: Option<u64>,
    server_cpu: Option<CpuReading>,
    client_cpu: Duration,
    started: Instant,
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
    /// Voluntary context switches of this process, if known.
    pub switches: Option<u64>,
}

impl Stopwatch {
    /// Starts a stopwatch. `server` is the server's process.
    pub fn start(server: Option<u32>) -> Stopwatch {
        let (switches, server_cpu) = (switch_count(), server.and_then(CpuReading::take));
        Stopwatch { server, switches, server_cpu, client_cpu: own_cpu_time(), started: Instant::now() }
    }

    /// Returns the times since the start.
    pub fn read(&self) -> Elapsed {
        let wall = self.started.elapsed();
        let client_cpu = own_cpu_time().saturating_sub(self.client_cpu);
        let server_now = self.server.and_then(CpuReading::take);
        let server_cpu = server_now.zip(self.server_cpu.as_ref()).and_then(|(now, then)| now.since(then));
        let switches = switch_count().zip(self.switches).map(|(now, then)| now.saturating_sub(then));
        Elapsed { wall, client_cpu, server_cpu, switches }
    }
}

impl Elapsed {
    /// Adds the times of another slice. What isn't known of both is unknown of the sum.
    pub(crate) fn add(&mut self, other: Elapsed) {
        self.wall += other.wall;
        self.client_cpu += other.client_cpu;
        self.server_cpu = self.server_cpu.zip(other.server_cpu).map(|(own, other)| own + other);
        self.switches = self.switches.zip(other.switches).map(|(own, other)| own + other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(Duration::from_micros(value)));
        samples
    }

    #[test]
    fn percentiles_are_exact_ranks_in_any_order() {
        let hundred = samples((1..=100).rev());
        assert_eq!(hundred.percentiles([0.0, 0.5, 0.99, 1.0]), Some([1.0, 50.0, 99.0, 100.0]));
        assert_eq!(samples([7]).percentiles([0.5, 0.99]), Some([7.0, 7.0]));
        assert_eq!(samples([30, 10, 20]).percentiles([0.5, 0.99]), Some([20.0, 30.0]));
        assert_eq!(hundred.count_of_at_least(99.0), 2);
    }

    #[test]
    fn no_samples_give_no_percentiles_and_no_mean() {
        assert_eq!(Samples::default().percentiles([0.5]), None);
        assert_eq!(Samples::default().mean(), None);
    }

    #[test]
    fn appended_samples_count_like_pushed_ones() {
        let both: Samples = [samples([1, 2]), samples([3])].into_iter().collect();
        assert_eq!(both.count(), 3);
        assert_eq!(both.mean(), Some(2.0));
    }

    #[test]
    fn processor_time_increases_with_work() {
        let stopwatch = Stopwatch::start(Some(std::process::id()));
        while stopwatch.read().server_cpu.is_none_or(|time| time < SERVER_CPU_MIN) {
            std::hint::black_box(samples(0..1000));
        }
        assert!(stopwatch.read().client_cpu >= SERVER_CPU_MIN / 2);
    }

    #[test]
    fn sleeping_threads_are_counted() {
        let stopwatch = Stopwatch::start(None);
        (0..5).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        assert!(stopwatch.read().switches.unwrap() >= 5);
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

    #[test]
    fn fields_of_proc_are_numbers_or_unknown() {
        assert!(proc_field("/proc/self/status", "VmRSS:").is_some_and(|kib| kib > 0));
        assert_eq!(proc_field("/proc/self/status", "Nothing:"), None);
    }
}
