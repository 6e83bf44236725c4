//! Fuzzing: what parses other people's bytes is given many that are almost right.
//!
//! A [`Target`] is a function that takes any bytes, checks a property of what was made of them, and
//! tells whether they were accepted. Each execution is named by a seed: from it comes an input, which is
//! made from a grammar or is a real one, changed in some places. `SETTEE_FUZZ` is how many executions a
//! target gets, `SETTEE_SEED_FIRST` the first seed; `SETTEE_SEED` replays one.
//!
//! Invariants:
//! 1. An input depends on the target and the seed alone.
//! 2. A run in which nothing was accepted, or nothing refused, has tried nothing: it fails.

mod json;
mod mutate;

use std::time::{Duration, Instant};

pub use json::{JsonFacts, check_json};
use rustix::time::{ClockId, clock_gettime};

use crate::random::Generator;

/// Bytes of the largest input.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

/// An execution that takes more of its thread's processor time has found something: what is parsed in a
/// request's task holds up others. Time in which the thread does not run is not counted.
const EXECUTION_TIME_MAX: Duration = Duration::from_secs(5);

/// From so many executions on a run must have seen both what is accepted and what is refused.
const COUNT_TO_JUDGE_BY: u64 = 1_000;

/// Of so many inputs one is made from the grammar; the others are real ones, changed.
const GRAMMAR_SHARE: u64 = 3;

/// What is fuzzed.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Checks the property; whether the input was accepted.
    pub check: fn(&[u8]) -> bool,
    /// Real inputs.
    pub corpus: &'static [&'static [u8]],
    /// What real inputs are made of.
    pub words: &'static [&'static str],
    /// Makes an input from a grammar.
    pub generate: fn(&mut Source<'_>) -> Vec<u8>,
}

/// Where a grammar's choices come from.
pub struct Source<'a> {
    random: Generator,
    words: &'a [&'static str],
}

impl Source<'_> {
    /// A number below `count`, which isn't 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.random.index(count)
    }

    /// Whether a coin shows heads.
    pub fn coin(&mut self) -> bool {
        self.random.coin()
    }

    /// One of several.
    pub fn pick<'b, T: ?Sized>(&mut self, from: &[&'b T]) -> &'b T {
        from[self.below(from.len())]
    }

    /// One of the target's words.
    pub fn word(&mut self) -> &'static str {
        self.words[self.random.index(self.words.len())]
    }

    /// Random bytes, of at most that count.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most + 1)];
        self.random.fill(&mut bytes);
        bytes
    }

    /// JSON text of any kind, its names and strings often the target's words; sometimes not quite JSON.
    pub fn json(&mut self) -> String {
        let mut text = String::new();
        json::write_value(self, 0, &mut text);
        text
    }

    /// As [`Source::json`], but an object.
    pub fn json_object(&mut self) -> String {
        let mut text = String::new();
        json::write_object(self, 0, &mut text);
        text
    }
}

impl Target {
    /// The input of a seed.
    pub fn input(&self, seed: u64) -> Vec<u8> {
        let mut source = Source { random: Generator::new(seed, salt(self.name)), words: self.words };
        let mut input = match source.random.within(0..=GRAMMAR_SHARE - 1) {
            0 => (self.generate)(&mut source),
            _ => source.pick(self.corpus).to_vec(),
        };
        // Some stay as they are: what is right must be accepted.
        if source.below(8) > 0 {
            mutate::change(&mut input, self, &mut source);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn timed(&self, input: &[u8]) -> (bool, Duration) {
        let begun = thread_time();
        ((self.check)(input), thread_time() - begun)
    }

    /// Runs the target `count` times, or as the variables say, and prints what came of it.
    ///
    /// # Panics
    /// Where a property doesn't hold: the seed and the input are printed.
    pub fn run(&self, count: u64) {
        let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
        let replayed = number("SETTEE_SEED");
        let count = if replayed.is_some() { 1 } else { number("SETTEE_FUZZ").unwrap_or(count) };
        let first = replayed.or_else(|| number("SETTEE_SEED_FIRST")).unwrap_or(0);
        let start = Instant::now();
        let (mut accepted, mut longest, mut bytes) = (0_u64, Duration::ZERO, 0_u64);
        for seed in first..first.saturating_add(count) {
            let input = self.input(seed);
            bytes += input.len() as u64;
            let shown = Shown { target: self, seed, input: &input, always: replayed.is_some() };
            let (is_accepted, time) = self.timed(&input);
            assert!(time < EXECUTION_TIME_MAX, "an execution took {time:?} of processor time");
            accepted += u64::from(is_accepted);
            longest = longest.max(time);
            drop(shown);
        }
        let elapsed = start.elapsed();
        println!(
            "fuzz {:<12} {count:>10} executions from seed {first}, {:>5.1} % accepted, {:>5} bytes each, \
             longest {longest:?}, {:.0}/s",
            self.name,
            accepted as f64 * 100.0 / count as f64,
            bytes / count,
            count as f64 / elapsed.as_secs_f64(),
        );
        if count >= COUNT_TO_JUDGE_BY {
            assert!(accepted > count / 100, "{}: next to nothing was accepted", self.name);
            assert!(accepted < count, "{}: nothing was refused", self.name);
        }
    }
}

/// Processor time that the calling thread has taken.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it is not negative")
}

/// Shows an execution that fails.
struct Shown<'a> {
    target: &'a Target,
    seed: u64,
    input: &'a [u8],
    always: bool,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if self.always || std::thread::panicking() {
            let Shown { target, seed, input, .. } = self;
            eprintln!("fuzz {}: SETTEE_SEED={seed}, input \"{}\"", target.name, input.escape_ascii());
        }
    }
}

/// Keeps targets' streams apart (FNV-1a).
fn salt(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: Target = Target {
        name: "digits",
        check: |input| !input.is_empty() && input.iter().all(u8::is_ascii_digit),
        corpus: &[b"123", b"7"],
        words: &["0", "x"],
        generate: |source| source.word().into(),
    };

    #[test]
    fn an_input_depends_on_target_and_seed_alone() {
        let other = Target { name: "other", ..DIGITS };
        for seed in 0..200 {
            assert_eq!(DIGITS.input(seed), DIGITS.input(seed));
            assert!(DIGITS.input(seed).len() <= INPUT_BYTES_MAX);
        }
        assert!((0..200).any(|seed| DIGITS.input(seed) != other.input(seed)));
    }

    #[test]
    #[should_panic(expected = "nothing was refused")]
    fn a_run_that_refuses_nothing_fails() {
        Target { check: |_| true, ..DIGITS }.run(COUNT_TO_JUDGE_BY);
    }

    #[test]
    #[should_panic(expected = "no seven")]
    fn what_the_property_forbids_is_found() {
        let check = |input: &[u8]| {
            assert!(!input.contains(&b'7'), "no seven");
            true
        };
        Target { check, ..DIGITS }.run(100);
    }
}
