//! Whether callers must sign in, and the challenge of a 401.

use hyper::Method;
use hyper::header::HeaderValue;

use crate::error::ApiError;
use crate::query::Segments;

/// The default challenge if a user is required.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"server\"");

/// The configuration of signing in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignIn {
    /// Whether every request except `POST /_session` needs a user.
    is_required: bool,
    /// Whether `_up` is exempt from that.
    is_up_open: bool,
    /// `WWW-Authenticate` of each 401, unless the client chooses another.
    pub(crate) challenge: Option<HeaderValue>,
}

impl SignIn {
    /// Parses the configuration; `value` returns the value of a key of a section, also under the section's
    /// older name.
    ///
    /// # Errors
    /// The allowed values of an invalid key.
    pub(crate) fn parse<'a>(value: impl Fn(&str, &str) -> Option<&'a str>) -> Result<SignIn, String> {
        let is_true = |section: &str, key: &str| match value(section, key) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(format!("{section}/{key} must be true or false")),
        };
        let requires = is_true("chttpd", "require_valid_user")?;
        let is_up_open = is_true("chttpd", "require_valid_user_except_for_up")?;
        // CouchDB uses this key only for the challenge.
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

    /// Refuses an anonymous request if it needs a user.
    ///
    /// # Errors
    /// 401.
    pub(crate) fn check_anonymous(&self, method: &Method, path: &str) -> Result<(), ApiError> {
        if !self.is_required {
            return Ok(());
        }
        // Neither of the two paths has a `+`.
        let mut path = Segments::new(path, false);
        let first = path.next()?;
        match first.as_deref().filter(|_| path.at_end()) {
            Some("_session") if *method == Method::POST => Ok(()),
            Some("_up") if self.is_up_open => Ok(()),
            _ => Err(ApiError::unauthorized("Authentication required.")),
        }
    }
}
