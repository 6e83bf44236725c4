//! What the larger failpoints do, and access to the store's inner state for tests.
//!
//! Part of the crate, with the feature `failpoints` alone. The switches are in `src/failpoints.rs`.

mod files;
mod live;

pub use live::LiveTable;
