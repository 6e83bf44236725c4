//! Documents: one or many of them, their revisions, and their attachments.
//!
//! [`options`] says how a document is read and [`inline`] writes it; [`whole`] reads large bodies where they are
//! needed as a whole; [`matching`] matches documents with selectors. [`revision_arg`] reads revisions as clients name them; [`edited_revision`] finds the one
//! that an edit replaces. [`parts`] and [`related`] read and write documents with attachments as multipart. The
//! other modules are handlers.

pub(crate) mod attachment;
pub(crate) mod bulk;
pub(crate) mod bulk_get;
mod copy;
mod edited_revision;
mod form;
mod handler;
pub(crate) mod inline;
pub(crate) mod local;
pub(crate) mod matching;
mod open_revs;
pub(crate) mod options;
mod parts;
mod related;
pub(crate) mod revision_arg;
pub(crate) mod revisions;
mod saved;
mod spooled;
pub(crate) mod whole;

pub(crate) use self::edited_revision::check_leaf;
pub(crate) use self::handler::handle;
pub(crate) use self::saved::saved;
