//! The rows of a view for a list function: they are taken from the view's response, which has one row per line.
//!
//! Invariant: at most [`ROWS_AHEAD`] rows and one part of the response are in memory besides the row that is read.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::response::Body;

/// Rows that are read ahead of the function.
pub(super) const ROWS_AHEAD: usize = 64;

/// Largest row in bytes: a larger one wouldn't fit a function's memory.
const ROW_BYTES_MAX: usize = 64 << 20;

/// Splits a view's response into lines.
pub(super) struct ListRows {
    body: Body,
    part: Bytes,
    line: Vec<u8>,
}

impl ListRows {
    pub(super) fn new(body: Body) -> ListRows {
        ListRows { body, part: Bytes::new(), line: Vec::new() }
    }

    /// Reads the line before the rows, and returns the object `head`: the members before `rows`.
    ///
    /// # Errors
    /// 500 if the response broke off.
    pub(super) async fn head(&mut self) -> Result<String, ApiError> {
        let line = self.next_line().await?.ok_or_else(broken)?;
        let head = line.strip_suffix("\"rows\":[").ok_or_else(broken)?;
        Ok(format!("{}}}", head.trim_end_matches(',')))
    }

    /// Sends the rows, until the function takes no more.
    ///
    /// # Errors
    /// 500 if the response broke off.
    pub(super) async fn send_to(mut self, rows: mpsc::Sender<String>) -> Result<(), ApiError> {
        while let Some(line) = self.next_line().await? {
            if line.starts_with("]}") {
                return Ok(());
            }
            let row = line.strip_suffix(',').map(str::to_owned).unwrap_or(line);
            if rows.send(row).await.is_err() {
                return Ok(());
            }
        }
        Err(broken())
    }

    /// The next line that isn't empty, without its end.
    async fn next_line(&mut self) -> Result<Option<String>, ApiError> {
        loop {
            match memchr::memchr(b'\n', &self.part) {
                Some(end) => {
                    self.line.extend_from_slice(&self.part.split_to(end + 1));
                    let line = std::mem::take(&mut self.line);
                    if !line.trim_ascii().is_empty() {
                        let line = String::from_utf8(line).map_err(|_| broken())?;
                        return Ok(Some(line.trim_end().to_owned()));
                    }
                }
                None => {
                    self.line.extend_from_slice(&self.part);
                    if self.line.len() > ROW_BYTES_MAX {
                        return Err(ApiError::new(
                            StatusCode::INTERNAL_SERVER_ERROR,
                            "list_error",
                            format!("A row exceeds {ROW_BYTES_MAX} bytes."),
                        ));
                    }
                    match self.body.frame().await {
                        Some(frame) => {
                            self.part = frame.map_err(|_| broken())?.into_data().unwrap_or_default()
                        }
                        None if self.line.trim_ascii().is_empty() => return Ok(None),
                        None => self.part = Bytes::from_static(b"\n"),
                    }
                }
            }
        }
    }
}

fn broken() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "list_error", "The view's rows broke off.")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn rows(text: &'static str) -> (Result<String, ApiError>, Vec<String>, bool) {
        let mut rows = ListRows::new(Body::Full(Bytes::from_static(text.as_bytes())));
        let head = rows.head().await;
        let (sender, mut taken) = mpsc::channel(ROWS_AHEAD);
        let ended = rows.send_to(sender).await.is_ok();
        let mut found = Vec::new();
        while let Some(row) = taken.recv().await {
            found.push(row);
        }
        (head, found, ended)
    }

    #[tokio::test]
    async fn rows_are_the_lines_of_a_views_response() {
        let (head, found, ended) =
            rows("{\"total_rows\":2,\"offset\":0,\"rows\":[\r\n{\"id\":\"a\"},\r\n{\"id\":\"b\"}\r\n]}\n")
                .await;
        assert_eq!(head.unwrap(), "{\"total_rows\":2,\"offset\":0}");
        assert_eq!(found, ["{\"id\":\"a\"}", "{\"id\":\"b\"}"]);
        assert!(ended);
        let (head, found, ended) = rows("{\"rows\":[\r\n]}\n").await;
        assert_eq!((head.unwrap().as_str(), found.len(), ended), ("{}", 0, true));
    }

    #[tokio::test]
    async fn a_response_that_breaks_off_is_an_error() {
        let (_, found, ended) = rows("{\"rows\":[\r\n{\"id\":\"a\"}\r\n").await;
        assert_eq!((found.len(), ended), (1, false));
        assert!(rows("{\"error\":1}\n").await.0.is_err());
    }
}
