//! The use of a key in words: what is used or left, when it passes, and when it is whole again.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};
use prost_types::Duration;

use crate::ratelimit::admin::v1::KeyState;
use crate::ratelimit::v1::Algorithm;
use crate::wait_words;

/// Longest wait that is shown as a length of time; a longer one is shown by the moment when it ends.
const MAX_WAIT: SignedDuration = SignedDuration::from_hours(1);
/// What a moment is rounded up by: it is shown to the minute, and never too early.
const ALMOST_A_MINUTE: SignedDuration = SignedDuration::new(59, 999_999_999);

impl KeyState {
    /// Returns what is used of a limit, such as `2,500 of 2,500 used, 12 of debt`; of a bucket what is left of
    /// its burst, such as `0 of 50 left at once, 300 per min`; of slots those that are held, `5 of 5 in use`.
    pub fn use_words(&self, number: impl Fn(i64) -> String) -> String {
        let at_once = number(self.capacity());
        // What is held is not left, and is no debt.
        let owed = self.remaining.saturating_add(self.held).min(0).saturating_neg();
        let debt = if owed > 0 { format!(", {} of debt", number(owed)) } else { String::new() };
        if self.algorithm() == Algorithm::Concurrency {
            return format!("{} of {at_once} in use", number(self.held));
        }
        if !self.algorithm().has_burst() {
            return format!("{} of {at_once} used{debt}", number(self.used.min(self.limit)));
        }
        let window = self.window.as_ref().map(window_words);
        let rate = window.map(|window| format!(", {} per {window}", number(self.limit)));
        let left = number(self.remaining.max(0));
        format!("{left} of {at_once} left at once{}{debt}", rate.unwrap_or_default())
    }

    /// Returns when a cost of 1 passes, or `never`; see [`KeyState::end_words`].
    pub fn retry_words(&self) -> String {
        match &self.retry_after {
            None if self.limit == 0 => "never".to_owned(),
            wait => self.end_words(wait.as_ref()),
        }
    }

    /// Returns when the whole quota is available again; see [`KeyState::end_words`].
    pub fn reset_words(&self) -> String {
        self.end_words(self.reset_after.as_ref())
    }

    /// Returns the end of a wait that began when the state was read: `now`, `in 57s`, or if it takes more than
    /// an hour the moment in the zone of the rule, such as `1 Dec, 00:00 Europe/Berlin`.
    pub fn end_words(&self, wait: Option<&Duration>) -> String {
        let wait = wait.copied().unwrap_or_default();
        let now = self.reset_at.as_ref().and_then(|at| {
            let at = Timestamp::new(at.seconds, at.nanos).ok()?;
            at.checked_sub(signed(self.reset_after.unwrap_or_default())).ok()
        });
        let end = now.and_then(|now| moment_words(now, signed(wait), &self.zone));
        match end.filter(|_| signed(wait) > MAX_WAIT) {
            Some(end) => end,
            None if wait.seconds < 1 => "now".to_owned(),
            None => format!("in {}", wait_words(&wait)),
        }
    }
}

/// Returns a window as it follows `per`.
fn window_words(window: &Duration) -> String {
    let units = [(1, "s"), (60, "min"), (3_600, "h"), (86_400, "day")];
    let whole =
        units.into_iter().find(|(seconds, _)| (*seconds, 0) == (window.seconds, window.nanos));
    whole.map_or_else(|| wait_words(window), |(_, unit)| unit.to_owned())
}

/// Returns the end of a wait in a zone, with its year if it is another one; `None` after the last of times.
fn moment_words(now: Timestamp, wait: SignedDuration, zone: &str) -> Option<String> {
    let known = TimeZoneDatabase::bundled().get(zone).ok();
    let (zone, name) = known.map_or((TimeZone::UTC, "UTC"), |known| (known, zone));
    let end = now.checked_add(wait).and_then(|end| end.checked_add(ALMOST_A_MINUTE)).ok()?;
    let (now, end) = (now.to_zoned(zone.clone()), end.to_zoned(zone));
    let format = if now.year() == end.year() { "%-d %b, %H:%M" } else { "%-d %b %Y, %H:%M" };
    Some(format!("{} {name}", end.strftime(format)))
}

fn signed(duration: Duration) -> SignedDuration {
    let nanos = SignedDuration::from_nanos(duration.nanos.into());
    SignedDuration::from_secs(duration.seconds).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(limit: i64, used: i64, remaining: i64) -> KeyState {
        KeyState { limit, used, remaining, ..KeyState::default() }
    }

    fn seconds(seconds: i64) -> Duration {
        Duration { seconds, nanos: 0 }
    }

    #[test]
    fn windows_say_what_is_used_and_buckets_what_is_left_at_once() {
        let bucket = |state: KeyState| KeyState {
            algorithm: Algorithm::TokenBucket.into(),
            window: Some(seconds(60)),
            ..state
        };
        for (state, expected) in [
            (state(2_500, 7, 2_493), "7 of 2500 used"),
            // An earlier version counts attempts.
            (state(2_500, 8_728, 0), "2500 of 2500 used"),
            (state(10, 22, -12), "10 of 10 used, 12 of debt"),
            (KeyState { held: 4, ..state(10, 8, -2) }, "8 of 10 used"),
            (bucket(state(300, 50, 0)), "0 of 50 left at once, 300 per min"),
            (
                bucket(KeyState { held: 5, ..state(300, 1, 44) }),
                "44 of 50 left at once, 300 per min",
            ),
            (bucket(state(300, 53, -3)), "0 of 50 left at once, 300 per min, 3 of debt"),
            (
                KeyState { held: 5, algorithm: Algorithm::Concurrency.into(), ..state(5, 0, 0) },
                "5 of 5 in use",
            ),
            (
                KeyState { window: Some(seconds(90)), ..bucket(state(5, 0, 9)) },
                "9 of 9 left at once, 5 per 90s",
            ),
            (KeyState { window: None, ..bucket(state(5, 0, 9)) }, "9 of 9 left at once"),
        ] {
            assert_eq!(state.use_words(|units| units.to_string()), expected);
        }
    }

    #[test]
    fn ends_are_now_or_soon_or_moments_of_a_zone() {
        // 2026-11-30 21:59:30 in UTC, one hour later in Berlin.
        let reset_at =
            |wait: i64| Some(prost_types::Timestamp { seconds: 1_796_075_970 + wait, nanos: 0 });
        for (wait, zone, expected) in [
            (0, "", "now"),
            (1, "", "in 1s"),
            (3_600, "", "in 60m"),
            (3_601, "", "30 Nov, 23:00 UTC"),
            (3_630, "Europe/Berlin", "1 Dec, 00:00 Europe/Berlin"),
            (3_630, "Mars/Olympus", "30 Nov, 23:00 UTC"),
            (31 * 86_400, "", "31 Dec, 22:00 UTC"),
            (32 * 86_400, "Europe/Berlin", "1 Jan 2027, 23:00 Europe/Berlin"),
        ] {
            let (reset_after, zone) = (Some(seconds(wait)), zone.to_owned());
            let state =
                KeyState { reset_at: reset_at(wait), reset_after, zone, ..KeyState::default() };
            assert_eq!(state.reset_words(), expected, "{wait}");
        }
        assert_eq!(KeyState::default().retry_words(), "never");
        let almost = Some(Duration { seconds: 0, nanos: 999_999_000 });
        let state = KeyState {
            retry_after: almost,
            reset_after: Some(seconds(7_201)),
            ..KeyState::default()
        };
        assert_eq!((&*state.retry_words(), &*state.reset_words()), ("now", "in 2h 1m"));
    }
}
