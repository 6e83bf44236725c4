//! The limits of a server that settings change, and how a setting reads and changes its field.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use settee_doc::DatabasesOptions;
use settee_http::Limits;
use settee_io::{PoolOptions, ThreadOptions};
use settee_view::ViewsOptions;

/// The limits of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerLimits {
    pub(crate) http: Limits,
    /// The options of the databases, their logs and stores included.
    pub(crate) databases: DatabasesOptions,
    pub(crate) views: ViewsOptions,
    pub(crate) buffers: PoolOptions,
    pub(crate) threads: ThreadOptions,
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Bool(bool),
    Number(u64),
    Text(String),
    Path(PathBuf),
}

/// As in a settings file, except that texts aren't quoted.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Number(value) => value.fmt(f),
            Value::Text(value) => value.fmt(f),
            Value::Path(value) => value.display().fmt(f),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Number(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Value {
        Value::Number(value as u64)
    }
}

/// Assigns the value of a setting to a field of the same kind.
pub(super) trait Assign {
    fn assign(&mut self, value: &Value);
}

impl Assign for bool {
    fn assign(&mut self, value: &Value) {
        let Value::Bool(value) = value else { panic!("{value:?} isn't a boolean") };
        *self = *value;
    }
}

impl Assign for u64 {
    fn assign(&mut self, value: &Value) {
        let Value::Number(value) = value else { panic!("{value:?} isn't a number") };
        *self = *value;
    }
}

impl Assign for usize {
    fn assign(&mut self, value: &Value) {
        let Value::Number(value) = value else { panic!("{value:?} isn't a number") };
        *self = usize::try_from(*value).unwrap_or(usize::MAX);
    }
}

/// A field of [`ServerLimits`].
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) get: fn(&ServerLimits) -> Value,
    pub(super) set: fn(&mut ServerLimits, &Value),
}

/// The [`Field`] at a path of [`ServerLimits`].
macro_rules! field {
    ($($path:ident).+) => {
        Field {
            get: |limits| limits.$($path).+.into(),
            set: |limits, value| limits.$($path).+.assign(value),
        }
    };
}
pub(super) use field;

/// What a number counts, which determines its largest plausible value. A larger one is a typing error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Ms,
    S,
    Percent,
    Count,
}

/// Largest size that a limit accepts, in bytes: 16 TiB.
pub(super) const BYTES_MAX: u64 = 16 << 40;

/// Longest time that a limit accepts, in seconds: ten years.
pub(super) const SECONDS_MAX: u64 = 10 * 366 * 24 * 3600;

/// Largest count that a limit accepts.
pub(super) const COUNT_MAX: u64 = 1 << 40;

impl Unit {
    /// Largest value of a limit that has no smaller one of its own.
    pub(super) const fn max(self) -> u64 {
        match self {
            Unit::Bytes => BYTES_MAX,
            Unit::Ms => SECONDS_MAX * 1000,
            Unit::S => SECONDS_MAX,
            Unit::Percent => 100,
            Unit::Count => COUNT_MAX,
        }
    }
}

/// A numeric limit.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) field: Field,
    pub(super) unit: Unit,
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Limit {
    /// A limit of 1 to the largest value of its unit.
    pub(super) const fn new(unit: Unit, field: Field) -> Limit {
        Limit { field, unit, min: 1, max: unit.max() }
    }

    pub(super) const fn within(self, range: RangeInclusive<u64>) -> Limit {
        Limit { min: *range.start(), max: *range.end(), ..self }
    }

    /// Returns the bounds as a sentence, or nothing if they are those of the unit.
    pub(super) fn bounds(&self) -> Option<String> {
        // The help says what 0 means.
        match (self.min <= 1, self.max == self.unit.max()) {
            (true, true) => None,
            (false, true) => Some(format!("At least {}.", self.min)),
            (true, false) => Some(format!("At most {}.", self.max)),
            (false, false) => Some(format!("From {} to {}.", self.min, self.max)),
        }
    }

    /// # Errors
    /// The value is out of its bounds.
    pub(super) fn check(&self, name: &str, limits: &ServerLimits) -> Result<(), String> {
        let Value::Number(value) = (self.field.get)(limits) else { panic!("`{name}` isn't a number") };
        match value {
            _ if value < self.min => Err(format!("the limit `{name}` must be at least {}", self.min)),
            _ if value > self.max => {
                Err(format!("the limit `{name}` is {value}: it must be at most {}", self.max))
            }
            _ => Ok(()),
        }
    }
}
