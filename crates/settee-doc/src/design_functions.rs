//! The functions of design documents that writes need, as the server implements them.
//!
//! This crate runs no functions and knows no language: without an implementation, design documents are stored
//! uncompiled and documents unvalidated.

use std::pin::Pin;
use std::sync::Arc;

use crate::Result;
use crate::documents::Revision;

/// The future of a call. The call may go on after it is dropped.
pub type FunctionFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A JavaScript function of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewFunction {
    /// The view's name.
    pub view: String,
    /// Whether it is the view's reduce function, else its map function.
    pub is_reduce: bool,
    /// The source.
    pub source: String,
}

/// A design document that has a function `validate_doc_update`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatingDesign {
    /// Its id.
    pub id: String,
    /// Its revision.
    pub revision: Revision,
    /// Its JSON text.
    pub json: String,
}

/// A write to be validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedWrite {
    /// JSON text of the document as it would be stored. An edit has the revision and the history of the revision
    /// that it replaces, a replicated edit its own, a new document none.
    pub document: String,
    /// JSON text of the stored revision that it replaces, with its history; `None` for a new document.
    pub previous: Option<String>,
}

/// Compiles and runs the functions of design documents.
pub trait DesignFunctions: Send + Sync {
    /// Compiles functions in order, until one fails.
    ///
    /// # Errors
    /// `Uncompilable`, or `NotFound` for an empty source: the error of the write.
    fn compile(&self, functions: Vec<ViewFunction>) -> FunctionFuture<()>;

    /// The validation functions of a database's design documents, which are sorted by their ids. Called once per
    /// change of the database's design documents.
    fn validator(
        &self,
        database: &str,
        incarnation: [u8; 16],
        designs: Vec<ValidatingDesign>,
    ) -> Arc<dyn Validator>;
}

/// The validation functions of a database.
pub trait Validator: Send + Sync {
    /// Runs the functions in order for each write, until one refuses it. Returns the outcomes of the writes in
    /// order, at least the first one's: it may end early, and should after an error
    /// [of a stopped function](crate::Error::of_stopped_function).
    ///
    /// # Errors
    /// Inner: `Forbidden`, `Unauthorized` or `FunctionFailed`, the error of the write. Outer: no function ran.
    fn validate(&self, writes: Vec<ProposedWrite>) -> FunctionFuture<Vec<Result<()>>>;
}
