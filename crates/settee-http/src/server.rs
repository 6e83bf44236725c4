//! The server above the handlers: it accepts connections, and answers their requests through the router.
//!
//! [`listener`] accepts connections and shuts down; [`connections`] limits their number; [`connection`] serves
//! one of them over HTTP/1 or HTTP/2; [`answer`] answers a request; [`router`] maps its path to a handler.

mod access;
mod answer;
mod connection;
mod connections;
mod framing;
mod head;
mod http1;
mod http2;
mod listener;
mod router;
mod socket;

pub use self::access::ACCESS_TARGET;
pub use self::listener::{ServeError, check_listener, serve};
