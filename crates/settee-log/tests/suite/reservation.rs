//! Goal: background work (reserving space, zero-filling, preallocating, removing truncated segments)
//! never harms acknowledged data, whichever operation fails.
//! Method: each file below provokes one kind of failure or bad timing.

mod late_background_jobs;
mod preallocation;
mod streams;
mod sync_errors;
mod truncation;
mod zeros;
