//! Progress on standard error while traffic is read, once a second: on a terminal one line that is
//! overwritten.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rlaas_simulation::simulation::length_text;

use crate::clock::{Micros, SystemClock, Timestamp};

/// Time between two lines.
const INTERVAL: Micros = Micros::from_secs(1);

/// Progress of reading traffic.
#[derive(Debug)]
pub(in crate::cli) struct TrafficProgress {
    is_shown: bool,
    is_terminal: bool,
    clock: SystemClock,
    started: Timestamp,
    last: Timestamp,
}

impl TrafficProgress {
    /// Starts to count the time. Progress is shown on a terminal, or if it `is_forced`.
    pub(in crate::cli) fn new(is_forced: bool) -> Self {
        let (clock, is_terminal) = (SystemClock::new(), io::stderr().is_terminal());
        let started = clock.now();
        Self { is_shown: is_forced || is_terminal, is_terminal, clock, started, last: started }
    }

    /// Shows how many requests were decided, and how many bytes were read of how many, if the last
    /// line is old enough.
    pub(in crate::cli) fn show(&mut self, requests: u64, (read, all): (u64, Option<u64>)) {
        let started = self.started;
        self.show_text(|now| line(requests, now.since(started), read, all));
    }

    /// Shows a text, if the last line is old enough. The text is given the time.
    pub(in crate::cli) fn show_text(&mut self, text: impl FnOnce(Timestamp) -> String) {
        let now = self.clock.now();
        if !self.is_shown || now.since(self.last) < INTERVAL {
            return;
        }
        self.last = now;
        let line = text(now);
        // A closed standard error must not stop the run.
        let _unread = if self.is_terminal {
            write!(io::stderr(), "\r\x1b[2K{line}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }

    /// Clears the line.
    pub(in crate::cli) fn clear(&self) {
        if self.is_shown && self.is_terminal {
            let _unread = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

fn line(requests: u64, elapsed: Micros, read: u64, all: Option<u64>) -> String {
    let elapsed_us = elapsed.as_micros().max(1);
    let rate = u128::from(requests) * 1_000_000 / u128::from(elapsed_us);
    let text = format!("{requests} requests, {rate}/s");
    match all.filter(|all| *all > 0 && read > 0) {
        None => text,
        Some(all) => {
            let left = u128::from(elapsed_us) * u128::from(all.saturating_sub(read));
            let left = u64::try_from(left / u128::from(read)).unwrap_or(u64::MAX);
            let left = Micros::from(Duration::from_secs(left.div_ceil(1_000_000)));
            let percent = u128::from(read.min(all)) * 100 / u128::from(all);
            format!("{text}, {percent} %, {} left", length_text(left))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_bytes_that_were_read() {
        let elapsed = Micros::from_secs(10);
        let shown = line(5_000, elapsed, 100, Some(400));
        assert_eq!(shown, "5000 requests, 500/s, 25 %, 30s left");
        assert_eq!(line(5_000, elapsed, 100, None), "5000 requests, 500/s");
        assert_eq!(line(5_000, elapsed, 0, Some(400)), "5000 requests, 500/s");
        let shown = line(1, elapsed, 500, Some(400));
        assert_eq!(shown, "1 requests, 0/s, 100 %, 0µs left");
    }
}
