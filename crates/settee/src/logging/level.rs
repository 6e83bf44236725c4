//! Log levels: which events are logged.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Target of the line that each start logs at every level.
pub(crate) const START_TARGET: &str = "settee::start";

/// Targets that are logged at every level: the line of each start, and the access log, which has its own
/// setting.
const ALWAYS: [&str; 2] = [START_TARGET, settee_http::ACCESS_TARGET];

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The default level, and the levels of single crates and modules.
#[derive(Debug, Clone)]
pub(crate) struct LogLevel {
    targets: Targets,
}

impl LogLevel {
    /// Parses a level, or a list of levels as in `warn,settee_http=debug`. The default level is `info`.
    ///
    /// # Errors
    /// The part that is not a level, with the valid levels.
    pub(crate) fn parse(text: &str) -> Result<LogLevel, String> {
        let mut targets = Targets::new().with_default(LevelFilter::INFO);
        for part in text.split(',').map(str::trim) {
            let (target, name) = match part.split_once('=') {
                Some((target, name)) => (Some(target.trim()), name.trim()),
                None => (None, part),
            };
            let level = LEVELS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            let (_, level) = level.ok_or_else(|| unknown(name))?;
            targets = match target {
                None => targets.with_default(*level),
                Some(target) if is_path(target) => targets.with_target(target, *level),
                Some(target) => return Err(format!("{target:?} is not the name of a crate or module")),
            };
        }
        for target in ALWAYS {
            targets = targets.with_target(target, LevelFilter::INFO);
        }
        Ok(LogLevel { targets })
    }

    pub(super) fn targets(&self) -> Targets {
        self.targets.clone()
    }
}

/// Whether `target` has the form of a Rust path.
fn is_path(target: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    target.split("::").all(|name| !name.is_empty() && name.bytes().all(is_word))
}

fn unknown(name: &str) -> String {
    let known = LEVELS.map(|(known, _)| known).join(", ");
    format!(
        "{name:?} is not one of the levels {known} (a list names crates, as in \"warn,settee_http=debug\")"
    )
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn an_invalid_level_is_refused_with_the_valid_levels() {
        for (text, part) in [
            ("warning", "\"warning\" is not one of the levels off, error, warn, info, debug, trace"),
            ("settee_http", "\"settee_http\" is not one"),
            ("", "\"\" is not one"),
            ("info,", "\"\" is not one"),
            ("settee_http=verbose", "\"verbose\" is not one"),
            ("=debug", "\"\" is not the name of a crate"),
            ("settee http=debug", "\"settee http\" is not the name of a crate"),
            ("settee_http[x]=debug", "is not the name of a crate"),
        ] {
            let error = LogLevel::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_crates_level_affects_only_that_crate_and_the_start_is_always_logged() {
        let level = LogLevel::parse("settee_http=debug").unwrap();
        assert!(level.targets.would_enable("settee_http::server", &Level::DEBUG));
        assert!(level.targets.would_enable("settee_doc", &Level::INFO));
        assert!(!level.targets.would_enable("settee_doc", &Level::DEBUG));
        let quiet = LogLevel::parse("OFF").unwrap();
        assert!(!quiet.targets.would_enable("settee_doc", &Level::ERROR));
        assert!(ALWAYS.iter().all(|target| quiet.targets.would_enable(target, &Level::INFO)));
    }
}
