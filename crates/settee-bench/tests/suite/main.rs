//! The tests of the benchmarks, in one program. Each module's head has its goal and method.

mod files;
mod workloads;
