//! Whether callers must say who they are, and how a 401 asks them to.

use hyper::Method;
use hyper::header::HeaderValue;

use crate::error::Failure;
use crate::query::Segments;

/// The challenge of a server that requires a user and has none configured.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"server\"");

/// What the configuration says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignIn {
    /// Every request is a user's, but `POST /_session`.
    is_required: bool,
    /// `_up` is for everyone even so.
    is_up_open: bool,
    /// `WWW-Authenticate` of each 401, where the client asks for no other.
    pub(crate) challenge: Option<HeaderValue>,
}

impl SignIn {
    /// Reads the configuration; `value` gives the value of a key of a section, an older name of the
    /// section included.
    ///
    /// # Errors
    /// What a key may be.
    pub(crate) fn parse<'a>(value: impl Fn(&str, &str) -> Option<&'a str>) -> Result<SignIn, String> {
        let is_true = |section: &str, key: &str| match value(section, key) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(format!("{section}/{key} must be true or false")),
        };
        let requires = is_true("chttpd", "require_valid_user")?;
        let is_up_open = is_true("chttpd", "require_valid_user_except_for_up")?;
        // CouchDB reads this one for the challenge alone.
        let asks = is_true("chttpd_auth", "require_valid_user")?;
        let challenge = match value("chttpd", "WWW-Authenticate") {
            Some(text) => Some(
                HeaderValue::from_str(text)
                    .map_err(|_| "chttpd/WWW-Authenticate must be the value of a header".to_owned())?,
            ),
            None => (requires || asks).then_some(CHALLENGE),
        };
        Ok(SignIn { is_required: requires || is_up_open, is_up_open, challenge })
    }

    /// Whether anonymous callers are refused.
    pub(crate) fn is_required(&self) -> bool {
        self.is_required
    }

    /// Refuses an anonymous caller's request where a user is required for it.
    ///
    /// # Errors
    /// 401.
    pub(crate) fn check_anonymous(&self, method: &Method, path: &str) -> Result<(), Failure> {
        if !self.is_required {
            return Ok(());
        }
        // Neither of the two names has a `+`.
        let mut path = Segments::new(path, false);
        let first = path.next()?;
        match first.as_deref().filter(|_| path.at_end()) {
            Some("_session") if *method == Method::POST => Ok(()),
            Some("_up") if self.is_up_open => Ok(()),
            _ => Err(Failure::unauthorized("Authentication required.")),
        }
    }
}
