//! What a handler sees: the request, and the state that all requests of a server share.
//!
//! Handlers take a [`RequestContext`]; the router, which calls them, and the server are above them.

mod conditional;
mod location;
mod request;
mod shared;
mod write_concern;

pub(crate) use self::conditional::{etag, matches_tag, not_modified, set_etag, tagged_by_content};
pub(crate) use self::location::{location, location_of_attachment, origin};
pub(crate) use self::request::{RequestContext, RewrittenRequest};
pub(crate) use self::shared::{Server, Shared, stopped};
pub(crate) use self::write_concern::WriteConcern;
