//! Responses: their bodies, the headers common to all of them, and the memory that unread ones take.
//!
//! A handler returns a [`HandlerResult`]. A response of bounded size is one buffer ([`json`] and its like);
//! any other is written by a producer through [`writer`], at most some chunks ahead of its client.
//! [`compress`] runs after the handler.

pub(crate) mod body;
mod buffered;
pub(crate) mod compress;
mod gzip;
pub(crate) mod memory;
pub(crate) mod writer;

pub(crate) use self::body::{Aborted, Body, HandlerResult};
pub(crate) use self::buffered::{empty, error, json, ok, saved, set_header, with_body};
