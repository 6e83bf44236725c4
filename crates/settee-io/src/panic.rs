//! What is to happen where a task panics.

/// Calls a function where it is dropped because its thread panics, and otherwise not: so that what a task
/// has half done doesn't keep others waiting for it.
///
/// Whoever has one must not have been created by code that runs while another panic unwinds.
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
