//! Deadlines of callers.

use std::time::{Duration, Instant};

/// The latest time for an answer, by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline.
    pub const NEVER: Self = Self(None);

    /// Creates a deadline `timeout` from now, or none if that time cannot be represented.
    #[expect(clippy::disallowed_methods, reason = "a timeout does not affect decisions")]
    pub fn within(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// Returns `self`, or a deadline `timeout` from now if that is earlier.
    #[must_use]
    pub fn or_within(self, timeout: Duration) -> Self {
        self.earlier(Self::within(timeout))
    }

    /// Returns the earlier one of two deadlines.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(own), Some(other)) => Self(Some(own.min(other))),
            (own, other) => Self(own.or(other)),
        }
    }

    /// Returns the time until the deadline: zero if it has passed, [`Duration::MAX`] if there is
    /// none.
    #[expect(clippy::disallowed_methods, reason = "a timeout does not affect decisions")]
    pub fn remaining(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns `true` if the deadline has passed.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}
