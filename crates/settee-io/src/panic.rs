//! Cleanup after a panic.

/// Calls a function when it is dropped by a panicking thread, and not otherwise, so that a half-done
/// operation doesn't leave others waiting for it.
///
/// Must not be created by code that runs while another panic unwinds: it would then take that panic for its
/// own.
pub struct OnPanic<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

impl<F: FnMut()> std::fmt::Debug for OnPanic<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnPanic")
    }
}
