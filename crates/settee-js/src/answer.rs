//! The JSON text that `loop.js`'s entry points return.

use serde_json::value::RawValue;

use crate::error::{Error, Stop};
use crate::limits::Limits;

/// A successful answer: a status, and values as JSON text.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: String,
    pub(crate) values: Vec<String>,
}

impl Answer {
    /// Splits `[status, value, …]`.
    pub(crate) fn parse(text: &str, limits: &Limits) -> Result<Answer, Error> {
        let malformed = |e: serde_json::Error| Error::Engine(format!("malformed answer: {e}"));
        let parts: Vec<&RawValue> = serde_json::from_str(text).map_err(malformed)?;
        let mut parts = parts.into_iter().map(RawValue::get);
        let status: String = serde_json::from_str(parts.next().unwrap_or("null")).map_err(malformed)?;
        let values: Vec<String> = parts.map(str::to_owned).collect();
        match status.as_str() {
            "memory" => Err(Stop::Memory { limit: limits.memory_bytes }.into()),
            "error" => {
                let text = |at: usize| values.get(at).map_or("null", String::as_str);
                Err(Error::Raised { error: plain(text(0)), reason: plain(text(1)) })
            }
            _ => Ok(Answer { status, values }),
        }
    }

    /// The value at `index`, `null` if there is none.
    pub(crate) fn take(&mut self, index: usize) -> String {
        self.values.get_mut(index).map(std::mem::take).unwrap_or_else(|| "null".to_owned())
    }
}

/// A string's content, or the JSON text of another value. An error object has no members in JSON; CouchDB
/// shows an empty object as `{[]}`.
fn plain(json: &str) -> String {
    match serde_json::from_str::<String>(json) {
        Ok(text) => text,
        Err(_) if json == "{}" => "{[]}".to_owned(),
        Err(_) => json.to_owned(),
    }
}
