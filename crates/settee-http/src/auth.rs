//! Who may send a request: the administrator and their sessions, the rules of signing in, and the web pages
//! that may read responses.

mod caller;
pub(crate) mod cors;
pub(crate) mod sign_in;

pub use self::caller::Admin;
pub(crate) use self::caller::{Auth, Caller};
