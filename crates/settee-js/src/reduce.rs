//! Reduce functions.

use crate::answer::Answer;
use crate::elements::Elements;
use crate::engine::{Engine, Failure, Role};
use crate::error::{Error, Stop};
use crate::limits::{FUNCTION_COUNT_MAX, Limits};

/// Characters up to which a reduction is never too large.
const REDUCE_SIZE_FREE: usize = 4096;

/// What `loop.js` answers if a function was left with null.
const AMBIGUOUS: &str = r#"["ambiguous"]"#;

/// What it answers for a reduction that is null.
const NULL: &str = r#"["ok",null]"#;

/// The reduce functions of one design document, compiled. Not for other design documents or databases.
///
/// Their globals are those of map functions without `emit` and `require`. Keys and values are not frozen.
pub struct ReduceContext {
    functions: Vec<String>,
    limits: Limits,
    engine: Option<Engine>,
}

impl ReduceContext {
    /// Compiles `functions`.
    ///
    /// # Errors
    /// The first function that does not compile. There is no context then.
    pub fn new(functions: &[&str], limits: Limits) -> Result<ReduceContext, Error> {
        if functions.len() > FUNCTION_COUNT_MAX {
            return Err(Error::FunctionCount { count: functions.len() });
        }
        let functions = functions.iter().map(|&f| f.to_owned()).collect();
        let mut context = ReduceContext { functions, limits, engine: None };
        context.engine = Some(context.build()?);
        Ok(context)
    }

    /// Reduces rows. `keys` is the JSON text `[[key,id],…]`, `values` is `[value,…]`, of the same length.
    /// Returns JSON text: `null` if the function raised an exception or returned undefined.
    ///
    /// # Errors
    /// [`Error::Stopped`] if it exceeded a limit or raised `"fatal_error"`; [`Error::ReduceOverflow`] if the
    /// result is too large; [`Error::NotJson`]. The context stays usable.
    ///
    /// # Panics
    /// If there is no such function.
    pub fn reduce(&mut self, function: usize, keys: &str, values: &str) -> Result<String, Error> {
        self.run(function, Some(keys), values)
    }

    /// Reduces reductions: `keys` is null for the function. Else as [`ReduceContext::reduce`].
    ///
    /// # Errors
    /// As [`ReduceContext::reduce`].
    ///
    /// # Panics
    /// If there is no such function.
    pub fn rereduce(&mut self, function: usize, values: &str) -> Result<String, Error> {
        self.run(function, None, values)
    }

    /// What the functions passed to `log` since the last call.
    pub fn take_logs(&mut self) -> Vec<String> {
        let logs = self.engine.as_ref().map(|engine| engine.call_internal::<_, String>("takeLogs", ()));
        logs.and_then(Result::ok).and_then(|logs| serde_json::from_str(&logs).ok()).unwrap_or_default()
    }

    fn build(&self) -> Result<Engine, Error> {
        let mut engine = Engine::new(&self.limits)?;
        for source in &self.functions {
            engine.add_function(Role::Reduce, None, source)?;
        }
        Ok(engine)
    }

    fn run(&mut self, function: usize, keys: Option<&str>, values: &str) -> Result<String, Error> {
        assert!(function < self.functions.len());
        if self.engine.is_none() {
            self.engine = Some(self.build()?);
        }
        let result = self.run_once(function, keys, values);
        if matches!(result, Err(Error::Engine(_) | Error::Stopped(Stop::Ticks { .. } | Stop::Memory { .. })))
        {
            self.engine = None;
        }
        let output = result?;
        let output_size = utf16_len(&output) + "[]".len();
        if output_size > REDUCE_SIZE_FREE {
            let input_size = self.input_size(function, keys, values);
            if output_size * 2 > input_size {
                return Err(Error::ReduceOverflow { input_size, output_size });
            }
        }
        Ok(output)
    }

    fn run_once(&self, function: usize, keys: Option<&str>, values: &str) -> Result<String, Error> {
        let engine = self.engine.as_ref().expect("the caller built it");
        let limits = &self.limits;
        let arguments = [keys.unwrap_or("null"), values];
        let mut answer = engine.call_counted("reduce", function, &arguments);
        if matches!(&answer, Ok(answer) if answer == AMBIGUOUS) {
            let mut null_count = 0;
            let settled = engine.settle_null(function, |engine| {
                let answer = engine.call_json("reduce", function, &arguments)?;
                let usable = answer != AMBIGUOUS && (null_count == 0 || answer == NULL);
                null_count += u32::from(!usable);
                Ok(usable.then_some(answer))
            });
            answer = settled.and_then(|answer| answer.ok_or(Failure::Memory));
        }
        let answer = match answer {
            Ok(answer) => answer,
            // Only the arguments are parsed outside of the entry point, which raises nothing.
            Err(Failure::Other(message)) => return Err(Error::NotJson(message)),
            Err(failure) => return Err(failure.into_error(limits)),
        };
        if let Some(output) = answer.strip_prefix(r#"["ok","#).and_then(|rest| rest.strip_suffix(']')) {
            return Ok(output.to_owned());
        }
        Answer::parse(&answer, limits).map(|_| "null".to_owned()).map_err(|error| match error {
            Error::Raised { error, reason } => Stop::Raised { error, reason }.into(),
            other => other,
        })
    }

    /// The length of the command that CouchDB would send to its query server for this call.
    fn input_size(&self, function: usize, keys: Option<&str>, values: &str) -> usize {
        let source = serde_json::to_string(&self.functions[function]).expect("a string is JSON");
        let source_size = utf16_len(&source);
        match keys {
            None => r#"["rereduce",[],]"#.len() + source_size + utf16_len(values),
            Some(keys) => {
                let row_count = Elements::of(keys).count();
                let rows_size = (utf16_len(keys) + utf16_len(values) + 2 * row_count).saturating_sub(1);
                r#"["reduce",[],]"#.len() + source_size + rows_size
            }
        }
    }
}

/// The length in UTF-16 code units, as JavaScript counts.
fn utf16_len(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}
