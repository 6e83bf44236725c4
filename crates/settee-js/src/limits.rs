//! What one context may use.

/// Limits of a context: memory, stack and processor time, the last counted in ticks.
///
/// A tick is one call of QuickJS's interrupt handler. The engine calls it after every 10,000 of its poll
/// points (calls of functions and backward jumps) in one realm, and after every 10,000 steps of a regular
/// expression that backtracks. Ticks depend only on the function and the document, never on the machine or its
/// load. Built-in functions that work on much data between two poll points (searching a long string, say) cost
/// time without ticks; the memory limit bounds that data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that the engine may allocate in one context, built-ins included. At least [`MEMORY_BYTES_MIN`].
    pub memory_bytes: usize,
    /// Bytes of the calling thread's stack that the engine may use.
    pub stack_bytes: usize,
    /// Ticks that one function may use for one document, one reduction or one request.
    pub ticks: u64,
}

/// Smallest memory limit: enough for the engine's built-ins and a few functions.
pub const MEMORY_BYTES_MIN: usize = 4 << 20;

/// Largest number of functions in one context. Each has a realm with its own built-ins.
pub const FUNCTION_COUNT_MAX: usize = 200;

impl Default for Limits {
    /// 64 MiB, 512 KiB of stack, and ticks for one to three seconds of an empty loop.
    fn default() -> Self {
        Limits { memory_bytes: 64 << 20, stack_bytes: 512 << 10, ticks: 50_000 }
    }
}
