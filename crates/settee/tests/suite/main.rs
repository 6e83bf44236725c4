//! Tests of the command line, in one binary. The head of each module states its goal and method.

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
mod upgrade;
