//! Failpoints: faults that tests enable in order to check that the tests detect them.
//!
//! Each one does, at the place where it could happen, something that a log must never do. The switch is a
//! field of [`crate::LogOptions`] that exists only with the feature `failpoints`, which only this crate's own
//! tests enable. Without the feature, `LogOptions::is_enabled` is `const` false, and the faults are not
//! compiled into the program. A fault that needs code of its own has it in `tests/failpoints/`.
//!
//! Two more faults, an omitted file sync and an omitted directory sync, are implemented by the simulated
//! disk.

/// The fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "failpoints"), expect(unreachable_pub, reason = "public where it can be enabled"))]
pub enum Failpoint {
    /// Callers that wait for a sync are notified when the write has completed.
    EarlyAcknowledgement,
    /// A completed write moves the watermark past earlier writes that have not completed.
    WatermarkPastGap,
    /// Recovery continues in the segment in which it found a torn tail, after that tail.
    AppendAfterTornTail,
    /// Recovery accepts any whole frame, independent of the segment and epoch for which it was written.
    RecycledFrame,
    /// A failed sync is retried.
    SyncRetried,
    /// Recovery treats a failed read as the end of the written bytes.
    ErrorAsEnd,
    /// A buffer's memory is reused while its write is in flight.
    #[cfg(feature = "failpoints")]
    BufferFreedInFlight,
    /// A read takes a buffer from the pool first.
    ReaderWaits,
}
