//! Progress bars of the commands on stderr.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two updates of a progress bar on the terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Returns a progress bar that stays hidden until [`show_progress`] is called with a total.
pub(crate) fn progress_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::hidden();
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    bar
}

/// Sets the position and the length of a bar. The first call with a length draws it on stderr if that is a
/// terminal.
pub(crate) fn show_progress(bar: &ProgressBar, done: u64, total: u64) {
    bar.set_length(total);
    bar.set_position(done);
    if bar.is_hidden() && total > 0 && std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar.enable_steady_tick(DRAW_INTERVAL);
    }
}
