//! Progress of long operations on a terminal: count, rate and remaining time.
//!
//! **Invariant:** an interruption reports the progress (`interrupt`).

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    interrupt::{self, Doing},
    output::is_quiet,
};

/// Work of fewer parts than this shows nothing.
const PARTS_MIN: usize = 1000;
/// The default message about the rest after an interruption.
const REST: &str = "run the same command again to continue";

/// A progress bar on stderr; nothing if that is not a terminal.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// An operation of so many parts, which the same command can resume.
    pub(super) fn new(total: usize, unit: &str) -> Self {
        Self::with_rest(total, unit, REST)
    }

    /// An operation of so many parts, and the message about the rest after an interruption.
    pub(super) fn with_rest(total: usize, unit: &str, rest: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total as u64), target(total >= PARTS_MIN));
        let template =
            format!("{{bar:30}} {{human_pos}} of {{human_len}} {unit}, {{per_sec:0}}, {{eta}} left");
        // The template is ours; without a style a plain bar is drawn.
        bar.set_style(
            ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.enable_steady_tick(Duration::from_millis(200));
        interrupt::now(Doing::Long { bar: bar.clone(), unit: unit.into(), rest: rest.into() });
        Self(bar)
    }

    /// A download of unknown size.
    pub(super) fn of_bytes(rest: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, target(true));
        let template = "{spinner} {bytes}, {bytes_per_sec}, {elapsed}";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_millis(200));
        interrupt::now(Doing::Long { bar: bar.clone(), unit: "bytes".into(), rest: rest.into() });
        Self(bar)
    }

    /// So many more parts are done.
    pub(super) fn add(&self, parts: usize) {
        self.0.inc(parts as u64);
    }

    /// So many parts of so many are done.
    pub(super) fn set(&self, parts: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(parts);
    }
}

fn target(is_shown: bool) -> ProgressDrawTarget {
    if is_shown && !is_quiet() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
        interrupt::now(Doing::Reading);
    }
}
