//! Makes a response of the object that a design function returns: `code`, `headers`, and the body as `json`, `body`
//! or `base64`.
//!
//! Source: `chttpd_external:parse_external_response` of CouchDB 3.5.0.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::error::ApiError;
use crate::json;
use crate::response::{self, Body};

/// Headers that describe the connection or the message's length: functions don't set them.
const OWN_HEADERS: [HeaderName; 7] = [
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TRAILER,
    header::TE,
    header::SERVER,
];

/// Largest number of headers that a function sets.
const HEADERS_MAX: usize = 100;

/// A function's response.
#[derive(Debug)]
pub(super) struct ResponseObject {
    pub(super) code: Option<StatusCode>,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    content_type: &'static str,
    is_json: bool,
}

impl ResponseObject {
    /// Parses the JSON text that a function returned.
    ///
    /// # Errors
    /// 500 `external_response_error` for an unknown member or a wrong value.
    pub(super) fn parse(text: &str) -> Result<ResponseObject, ApiError> {
        let (content_type, is_json) = ("application/json", false);
        let mut parsed =
            ResponseObject { code: None, headers: Vec::new(), body: Bytes::new(), content_type, is_json };
        json::each_member(text.as_bytes(), |name, value| parsed.set(&name, value))?;
        Ok(parsed)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ApiError> {
        match name {
            "code" => {
                let code = value.parse().ok().and_then(|code| StatusCode::from_u16(code).ok());
                self.code =
                    Some(code.filter(|code| code.as_u16() >= 200).ok_or_else(|| invalid(name, value))?);
            }
            "json" => {
                let mut body = value.as_bytes().to_vec();
                body.push(b'\n');
                (self.body, self.content_type, self.is_json) = (body.into(), "application/json", true);
            }
            "body" => {
                let text = json::string(value).map_or_else(|| value.to_owned(), |text| text.into_owned());
                (self.body, self.content_type) = (text.into(), "text/html; charset=utf-8");
            }
            "base64" => {
                let bytes = json::string(value).and_then(|text| BASE64.decode(text.as_bytes()).ok());
                let bytes = bytes.ok_or_else(|| invalid(name, value))?;
                (self.body, self.content_type) = (bytes.into(), "application/binary");
            }
            "headers" => {
                json::each_member(value.as_bytes(), |name, value| self.add_header(&name, value))?;
            }
            "stop" | "" => {}
            _ => return Err(invalid(name, value)),
        }
        Ok(())
    }

    fn add_header(&mut self, name: &str, value: &str) -> Result<(), ApiError> {
        let text = json::string(value);
        let text = text.as_deref().unwrap_or(value);
        let (Ok(name), Ok(header)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(text))
        else {
            return Err(invalid(name, value));
        };
        if self.headers.len() == HEADERS_MAX {
            return Err(invalid("headers", "too many"));
        }
        if !OWN_HEADERS.contains(&name) {
            self.headers.push((name, header));
        }
        Ok(())
    }

    /// The response, with `code` unless the function chose another.
    pub(super) fn into_response(mut self, code: StatusCode) -> Response<Body> {
        let body = std::mem::take(&mut self.body);
        let mut response = response::with_body(code, Body::Full(body));
        self.apply(&mut response);
        response
    }

    /// Sets the status and the headers of a response.
    pub(super) fn apply(self, response: &mut Response<Body>) {
        if let Some(code) = self.code {
            *response.status_mut() = code;
        }
        let headers = response.headers_mut();
        if !self.is_json {
            headers.remove(header::CACHE_CONTROL);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        for (name, value) in self.headers {
            match name {
                header::SET_COOKIE => drop(headers.append(name, value)),
                name => drop(headers.insert(name, value)),
            }
        }
        let content_type = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        if !is_json(content_type) {
            // Other types may be run by a browser, in the origin of the database.
            headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
        }
    }
}

/// Whether a content type is JSON, whatever its parameters.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

fn invalid(name: &str, value: &str) -> ApiError {
    let reason = format!("Invalid data from external server: {{<<\"{name}\">>,{value}}}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "external_response_error", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_itself_has_no_sandbox() {
        for json in ["application/json", "Application/JSON; charset=utf-8", " application/json ;x"] {
            assert!(is_json(json.as_bytes()), "{json}");
        }
        for other in ["application/jsonp", "application/json-seq", "text/html;application/json", "", ";"] {
            assert!(!is_json(other.as_bytes()), "{other}");
        }
    }

    fn made(text: &str) -> (u16, String, Vec<u8>) {
        let response = ResponseObject::parse(text).unwrap().into_response(StatusCode::OK);
        let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let status = response.status().as_u16();
        match response.into_body() {
            Body::Full(bytes) => (status, kind, bytes.to_vec()),
            _ => panic!("one buffer"),
        }
    }

    #[test]
    fn each_kind_of_body_has_its_type() {
        let html = "text/html; charset=utf-8".to_owned();
        assert_eq!(made(r#"{"body":"x"}"#), (200, html, b"x".to_vec()));
        assert_eq!(made(r#"{"json":{"a":1}}"#), (200, "application/json".into(), b"{\"a\":1}\n".to_vec()));
        assert_eq!(made(r#"{"base64":"eA=="}"#), (200, "application/binary".into(), b"x".to_vec()));
        assert_eq!(made(r#"{"code":404}"#), (404, "application/json".into(), Vec::new()));
        let text = r#"{"headers":{"Content-Type":"text/plain","Content-Length":"7"},"body":"x"}"#;
        assert_eq!(made(text), (200, "text/plain".into(), b"x".to_vec()));
    }

    #[test]
    fn unknown_members_and_wrong_values_are_errors() {
        for text in [r#"{"x":1}"#, r#"{"code":"a"}"#, r#"{"code":100}"#, r#"{"base64":"?"}"#] {
            let failure = ResponseObject::parse(text).unwrap_err();
            assert_eq!((failure.status.as_u16(), failure.error.as_ref()), (500, "external_response_error"));
        }
        assert!(ResponseObject::parse(r#"{"headers":{"a":"x\ny"}}"#).is_err(), "a header has one line");
    }
}
