//! What a design function or a context can fail with.

/// Why a source is not a function. No state: each check has an engine of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The source is empty. CouchDB: `not_found`.
    #[error("missing function")]
    Empty,
    /// The source's value is not a function. CouchDB: `compilation_error`.
    #[error("Expression does not eval to a function. ({source_text})")]
    NotFunction {
        /// The source.
        source_text: String,
    },
    /// The engine rejected the source, or its evaluation raised. CouchDB: `compilation_error`.
    #[error("{message} ({source_text})")]
    Rejected {
        /// The engine's message.
        message: String,
        /// The source.
        source_text: String,
    },
    /// The source used all ticks or memory before it had a value. CouchDB: `compilation_error`.
    #[error("{stop} ({source_text})")]
    Stopped {
        /// What it ran out of.
        stop: Stop,
        /// The source.
        source_text: String,
    },
}

impl CompileError {
    /// The `error` member of CouchDB's answer.
    pub fn error(&self) -> &'static str {
        match self {
            CompileError::Empty => "not_found",
            CompileError::NotFunction { .. }
            | CompileError::Rejected { .. }
            | CompileError::Stopped { .. } => "compilation_error",
        }
    }
}

/// Why a function is not run any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// It used all ticks for one document.
    #[error("function exceeded {limit} ticks")]
    Ticks {
        /// [`crate::Limits::ticks`].
        limit: u64,
    },
    /// It used all memory for one document, in a new context.
    #[error("function exceeded {limit} bytes of memory")]
    Memory {
        /// [`crate::Limits::memory_bytes`].
        limit: usize,
    },
    /// It raised an error that is meant to stop it, such as `throw "fatal_error"`.
    #[error("{reason}")]
    Raised {
        /// CouchDB's `error`, such as `map_runtime_error`.
        error: String,
        /// CouchDB's `reason`.
        reason: String,
    },
}

impl Stop {
    /// The `error` member of CouchDB's answer.
    pub fn error(&self) -> &str {
        match self {
            Stop::Ticks { .. } => "os_process_error",
            Stop::Memory { .. } => "InternalError",
            Stop::Raised { error, .. } => error,
        }
    }
}

/// Why a call failed. The context stays usable; after [`Stop::Ticks`], [`Stop::Memory`] and [`Error::Engine`]
/// the next call begins with a new engine, so free variables are lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A source is not a function.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The function exceeded a limit or stopped itself.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// The function raised, or CouchDB's server answers for it: `error` and `reason` of the answer.
    #[error("{error}: {reason}")]
    Raised {
        /// CouchDB's `error`, such as `render_error`, `not_found` or `TypeError`.
        error: String,
        /// CouchDB's `reason`.
        reason: String,
    },
    /// The reduction is larger than 4,096 characters and more than half of its input.
    #[error("Reduce output must shrink more rapidly: input size: {input_size} output size: {output_size}")]
    ReduceOverflow {
        /// Characters of CouchDB's `reduce` or `rereduce` command.
        input_size: usize,
        /// Characters of its answer.
        output_size: usize,
    },
    /// More functions than [`crate::FUNCTION_COUNT_MAX`].
    #[error("{count} functions exceed {max}", max = crate::FUNCTION_COUNT_MAX)]
    FunctionCount {
        /// The number of functions.
        count: usize,
    },
    /// An argument is not JSON text.
    #[error("argument is not JSON: {0}")]
    NotJson(String),
    /// The engine failed outside of any function.
    #[error("JavaScript engine: {0}")]
    Engine(String),
}

impl Error {
    /// The `error` member of CouchDB's answer; [`ToString`] gives the `reason`, but for [`Error::Raised`],
    /// which has its own.
    pub fn error(&self) -> &str {
        match self {
            Error::Compile(e) => e.error(),
            Error::Stopped(stop) => stop.error(),
            Error::Raised { error, .. } => error,
            Error::ReduceOverflow { .. } => "reduce_overflow_error",
            Error::FunctionCount { .. } => "invalid_design_doc",
            Error::NotJson(_) => "bad_request",
            Error::Engine(_) => "internal_error",
        }
    }

    /// The `reason` member of CouchDB's answer.
    pub fn reason(&self) -> String {
        match self {
            Error::Raised { reason, .. } => reason.clone(),
            Error::Stopped(Stop::Ticks { .. }) => "OS process timed out.".to_owned(),
            Error::Stopped(Stop::Memory { .. }) => "out of memory".to_owned(),
            other => other.to_string(),
        }
    }
}
