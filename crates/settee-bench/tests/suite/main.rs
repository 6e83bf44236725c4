//! The benchmarks' tests, in one program: each module's head gives its goal and its method.

mod files;
mod workloads;
