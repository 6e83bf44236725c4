//! The error of sources that have no plan.

use oxc_span::Span;

/// Why a function has no plan. The engine runs it, or reports what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {position}")]
pub struct Outside {
    /// What the subset lacks, in a few words.
    pub reason: String,
    /// Where in the source, in bytes.
    pub position: u32,
}

pub(crate) type Compiled<T> = Result<T, Outside>;

pub(crate) fn outside<T>(span: Span, reason: impl Into<String>) -> Compiled<T> {
    // The source is parsed in parentheses, so that it is an expression.
    Err(Outside { reason: reason.into(), position: span.start.saturating_sub(1) })
}
