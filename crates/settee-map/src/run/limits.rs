//! Limits of a run. A document that exceeds one is mapped by the engine.

/// Steps of a run: statements, iterations and calls, and the bytes and members that they look at.
pub const STEPS_MAX: u32 = 1 << 20;

/// Rows of a document.
pub const ROWS_MAX: usize = 1 << 16;

/// Bytes of the strings that a run makes.
pub const MADE_BYTES_MAX: usize = 4 << 20;

/// Arrays and objects that a run makes, and their elements and members.
pub const MADE_VALUES_MAX: usize = 1 << 18;

/// Bytes of a document's rows.
pub const ROW_BYTES_MAX: usize = 32 << 20;

/// Bytes of a string that are looked at in a step.
pub(super) const BYTES_PER_STEP: usize = 1024;

/// Members that are looked at in a step.
pub(super) const MEMBERS_PER_STEP: usize = 16;
