//! Counters of requests by the methods and status codes that CouchDB counts, for `_stats`.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::{Method, StatusCode};

/// The status codes that CouchDB counts, sorted.
const CODES: [u16; 27] = [
    200, 201, 202, 204, 206, 301, 302, 304, 400, 401, 403, 404, 405, 406, 408, 409, 412, 413, 414, 415, 416,
    417, 431, 500, 501, 503, 507,
];

/// The methods that CouchDB counts, sorted.
const METHODS: [&str; 7] = ["COPY", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"];

/// Counters of requests.
#[derive(Default)]
pub(crate) struct Counters {
    codes: [AtomicU64; CODES.len()],
    methods: [AtomicU64; METHODS.len()],
    /// Requests refused because `requests_in_flight_max` requests were in progress.
    refused: AtomicU64,
}

impl Counters {
    /// Counts a response.
    pub(crate) fn count(&self, method: &Method, status: StatusCode) {
        if let Ok(at) = CODES.binary_search(&status.as_u16()) {
            self.codes[at].fetch_add(1, Ordering::Relaxed);
        }
        if let Ok(at) = METHODS.binary_search(&method.as_str()) {
            self.methods[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a request refused because of `requests_in_flight_max`.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Each method with its number of responses.
    pub(crate) fn by_method(&self) -> impl Iterator<Item = (&'static str, u64)> {
        METHODS.into_iter().zip(self.methods.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Each status code with its number of responses.
    pub(crate) fn by_code(&self) -> impl Iterator<Item = (u16, u64)> {
        CODES.into_iter().zip(self.codes.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_for_binary_search_are_sorted() {
        assert!(CODES.is_sorted() && METHODS.is_sorted());
    }

    #[test]
    fn responses_are_counted_by_method_and_status() {
        let counters = Counters::default();
        counters.count(&Method::GET, StatusCode::OK);
        counters.count(&Method::GET, StatusCode::IM_A_TEAPOT);
        counters.count(&Method::PATCH, StatusCode::NOT_FOUND);
        let found: Vec<_> = counters.by_method().filter(|(_, count)| *count > 0).collect();
        assert_eq!(found, [("GET", 2)]);
        let codes = counters.by_code().map(|(_, count)| count).sum::<u64>();
        assert_eq!(codes, 2);
    }
}
