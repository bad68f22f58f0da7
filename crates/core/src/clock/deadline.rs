//! Deadlines of callers.

use std::time::{Duration, Instant};

/// When an answer must be there, by the machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Nobody waits.
    pub const NEVER: Self = Self(None);

    /// `timeout` from now; a point that no clock can show is never.
    #[expect(clippy::disallowed_methods, reason = "how long somebody waits is no decision's time")]
    pub fn within(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// This one, or `timeout` from now if that is sooner.
    #[must_use]
    pub fn or_within(self, timeout: Duration) -> Self {
        self.earlier(Self::within(timeout))
    }

    /// The sooner one.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(another)) => Self(Some(one.min(another))),
            (one, another) => Self(one.or(another)),
        }
    }

    /// Time that is left; zero when it is over.
    #[expect(clippy::disallowed_methods, reason = "how long somebody waits is no decision's time")]
    pub fn remaining(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Is nobody waiting any more?
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}
