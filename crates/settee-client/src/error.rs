//! The errors of addresses and exchanges.

use std::io;

/// Largest body in bytes that [`Connection::exchange`](crate::Connection::exchange) returns.
pub const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// The result of an exchange with a server.
pub(crate) type Result<T, E = HttpError> = std::result::Result<T, E>;

/// Why an exchange failed. The connection can't be used afterwards.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL is invalid or not supported.
    #[error("{url}: {reason}")]
    Url {
        /// The URL without its user and password.
        url: String,
        /// The URL's fault.
        reason: &'static str,
    },

    /// No connection to the address could be established.
    #[error("no connection to {address}: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// The system's error.
        source: io::Error,
    },

    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),

    /// The server closed the connection before the end of the response.
    #[error("the server closed the connection {0}")]
    Cut(&'static str),

    /// The response isn't HTTP/1 or uses an unsupported feature of it.
    #[error("the response is malformed: {0}")]
    Malformed(&'static str),

    /// The response exceeds [`RESPONSE_BYTES_MAX`].
    #[error("the response exceeds {max} bytes", max = RESPONSE_BYTES_MAX)]
    TooLarge,
}
