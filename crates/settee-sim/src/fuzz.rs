//! Fuzzing of parsers of untrusted bytes, with many inputs that are almost valid.
//!
//! A [`Target`] is a function that takes arbitrary bytes, checks a property of the result, and returns
//! whether the input was accepted. A seed determines each execution's input: it is generated from a grammar,
//! or is a real input, and is then mutated in some places. `SETTEE_FUZZ` is the number of executions per
//! target, `SETTEE_SEED_FIRST` the first seed; `SETTEE_SEED` replays a single one.
//!
//! Invariants:
//! 1. An input depends on the target and the seed alone.
//! 2. A run that accepted nothing, or refused nothing, has tested nothing and fails.

mod json;
mod mutate;
mod source;

use std::time::{Duration, Instant};

pub use json::{JsonFacts, check_json};
use rustix::time::{ClockId, clock_gettime};
pub use source::{INPUT_BYTES_MAX, Source};

use crate::random::Generator;
use crate::variable;

/// Most processor time of one execution; a longer one fails, since parsing in a request's task delays other
/// requests. Time in which the thread does not run is not counted.
const EXECUTION_TIME_MAX: Duration = Duration::from_secs(5);

/// Least number of executions after which a run must have accepted and refused inputs.
const VERDICT_COUNT_MIN: u64 = 1_000;

/// One of this many inputs is generated from the grammar; the others are mutated real inputs.
const GRAMMAR_INTERVAL: u64 = 3;

/// A parser to fuzz.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name for output, and salt of the target's random stream.
    pub name: &'static str,
    /// Checks the property, and returns whether the input was accepted.
    pub check: fn(&[u8]) -> bool,
    /// Real inputs, which are mutated.
    pub corpus: &'static [&'static [u8]],
    /// Words that occur in real inputs.
    pub words: &'static [&'static str],
    /// Generates an input from a grammar.
    pub generate: fn(&mut Source<'_>) -> Vec<u8>,
}

impl Target {
    /// Returns the input of a seed.
    pub fn input(&self, seed: u64) -> Vec<u8> {
        let mut source = Source { random: Generator::new(seed, salt(self.name)), words: self.words };
        let mut input = match source.random.within(0..=GRAMMAR_INTERVAL - 1) {
            0 => (self.generate)(&mut source),
            _ => source.pick(self.corpus).to_vec(),
        };
        // Some stay unchanged: valid inputs must be accepted.
        if source.below(8) > 0 {
            mutate::mutate(&mut input, self.corpus, &mut source);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn timed(&self, input: &[u8]) -> (bool, Duration) {
        let begun = thread_time();
        ((self.check)(input), thread_time() - begun)
    }

    /// Runs the target `count` times, or as the environment variables say, and prints a summary.
    ///
    /// # Panics
    /// If the property doesn't hold; the seed and the input are printed.
    pub fn run(&self, count: u64) {
        let replayed = variable("SETTEE_SEED");
        let count = if replayed.is_some() { 1 } else { variable("SETTEE_FUZZ").unwrap_or(count) };
        let first = replayed.or_else(|| variable("SETTEE_SEED_FIRST")).unwrap_or(0);
        let start = Instant::now();
        let (mut accepted, mut longest, mut bytes) = (0_u64, Duration::ZERO, 0_u64);
        for seed in first..first.saturating_add(count) {
            let input = self.input(seed);
            bytes += input.len() as u64;
            let printer = InputPrinter { target: self, seed, input: &input, always: replayed.is_some() };
            let (is_accepted, time) = self.timed(&input);
            assert!(time < EXECUTION_TIME_MAX, "an execution took {time:?} of processor time");
            accepted += u64::from(is_accepted);
            longest = longest.max(time);
            drop(printer);
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
        if count >= VERDICT_COUNT_MIN {
            assert!(accepted > count / 100, "{}: almost nothing was accepted", self.name);
            assert!(accepted < count, "{}: nothing was refused", self.name);
        }
    }
}

/// Returns the processor time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("processor time is not negative")
}

/// Prints the input of an execution that fails.
struct InputPrinter<'a> {
    target: &'a Target,
    seed: u64,
    input: &'a [u8],
    /// Whether to print it also if the execution succeeds.
    always: bool,
}

impl Drop for InputPrinter<'_> {
    fn drop(&mut self) {
        if self.always || std::thread::panicking() {
            let InputPrinter { target, seed, input, .. } = self;
            eprintln!("fuzz {}: SETTEE_SEED={seed}, input \"{}\"", target.name, input.escape_ascii());
        }
    }
}

/// Returns a salt that makes the targets' random streams differ (FNV-1a).
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
        Target { check: |_| true, ..DIGITS }.run(VERDICT_COUNT_MIN);
    }

    #[test]
    #[should_panic(expected = "no seven")]
    fn a_violated_property_is_found() {
        let check = |input: &[u8]| {
            assert!(!input.contains(&b'7'), "no seven");
            true
        };
        Target { check, ..DIGITS }.run(100);
    }
}
