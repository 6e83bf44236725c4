//! Figures of the server: requests, connections, and what the engine reports.
//!
//! Requests are counted where they are handled, each with one atomic operation; the engine's figures
//! (`settee_doc::Stats`) are collected when the metrics are scraped.

mod counters;
pub(crate) mod endpoint;
mod engine;
mod process;
mod registry;
mod series;

pub(crate) use self::registry::Metrics;
