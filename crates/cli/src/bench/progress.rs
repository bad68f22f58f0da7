//! Progress on standard error, once a second: on a terminal one line that is overwritten.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rlaas_client::load::{Load, LoadStats};

use super::report::{format_nanos, per_second};

#[derive(Debug)]
pub(super) struct Progress {
    warm_up: Duration,
    is_shown: bool,
    is_terminal: bool,
    /// Time of the last line.
    last: Duration,
}

impl Progress {
    pub(super) fn new(is_forced: bool, warm_up: Duration) -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { warm_up, is_shown: is_forced || is_terminal, is_terminal, last: Duration::ZERO }
    }

    /// Shows the calls since the last line.
    pub(super) fn show(&mut self, load: &Load, stats: &LoadStats) {
        let now = load.elapsed();
        let since = now.saturating_sub(self.last);
        self.last = now;
        if !self.is_shown {
            return;
        }
        let rate = per_second(stats.warm_up.calls + stats.measured.calls, since);
        let line = if now < self.warm_up {
            format!("warm-up: {rate:.0} calls/s")
        } else {
            let at = |quantile| format_nanos(stats.answered.value_at_quantile(quantile));
            let (p50, p99) = (at(0.5), at(0.99));
            let errors: u64 = stats.measured.errors().map(|(_, requests)| requests).sum();
            let left = load.measured_until().map(|until| until.saturating_sub(now).as_secs_f64());
            let left = left.map(|seconds| format!("; {seconds:.0}s left")).unwrap_or_default();
            format!("{rate:.0} calls/s, p50 {p50}, p99 {p99}, {errors} errors{left}")
        };
        // A closed standard error must not stop the run.
        let _unread = if self.is_terminal {
            write!(io::stderr(), "\r\x1b[2K{line}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }

    /// Clears the line.
    pub(super) fn clear(&self) {
        if self.is_shown && self.is_terminal {
            let _unread = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}
