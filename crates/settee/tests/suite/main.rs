//! The command line's tests, in one program: each module's head gives its goal and its method.

mod bench_store;
mod commands;
mod config;
mod descriptors;
mod dump;
mod log;
mod maintenance;
mod memory;
mod output;
mod private;
mod start;
mod support;
