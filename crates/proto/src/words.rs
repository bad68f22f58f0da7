//! Grants, keys and waits in words, the same on pages, on a terminal and in messages.

use std::collections::BTreeSet;

use prost_types::Duration;

use crate::ratelimit::admin::v1::api_key::State;
use crate::ratelimit::admin::v1::{ApiKey, AuditEntry, KeyPart, KeyRef, KeyState};
use crate::ratelimit::v1::grant::Kind;
use crate::ratelimit::v1::{Algorithm, Grant, Rule, WindowFrom};

const NANOS_PER_SECOND: i128 = 1_000_000_000;

impl Algorithm {
    /// Returns `true` if its limits have a burst.
    pub fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket | Self::Gcra)
    }
}

impl WindowFrom {
    /// Returns what follows the length of a window.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Unspecified | Self::Epoch => "",
            Self::FirstUse => " from the first use",
        }
    }
}

impl Rule {
    /// Returns what the rule grants in each window.
    pub fn grant(&self) -> Grant {
        Grant::of_limit(self.max_requests, self.burst)
    }
}

impl Grant {
    /// Creates the grant of a limit, of which 0 is nothing and the largest number everything.
    pub fn of_limit(limit: i64, burst: i64) -> Self {
        let kind = match limit {
            0 => Kind::Banned(true),
            i64::MAX => Kind::Unlimited(true),
            units => Kind::Limit(units),
        };
        Self { kind: Some(kind), burst }
    }

    /// Returns the burst, unless it is that of the limit.
    pub fn own_burst(&self) -> Option<i64> {
        let is_own = |burst: &i64| *burst > 0 && self.kind != Some(Kind::Limit(*burst));
        Some(self.burst).filter(is_own)
    }

    /// Returns the grant in words, such as `limit 100, burst 20`; `-` if none is set.
    pub fn words(&self, number: impl Fn(i64) -> String) -> String {
        let burst = self.own_burst().map(|burst| format!(", burst {}", number(burst)));
        match self.kind {
            None => "-".to_owned(),
            Some(Kind::Banned(_)) => "banned".to_owned(),
            Some(Kind::Unlimited(_)) => "unlimited".to_owned(),
            Some(Kind::Limit(units)) => {
                format!("limit {}{}", number(units), burst.unwrap_or_default())
            }
        }
    }
}

impl KeyRef {
    /// Returns the parts of the key, or its id where only that is known, such as `user_id=alice, no resource`.
    /// `show` returns a text of somebody as it is shown.
    pub fn words(&self, show: impl Fn(&str) -> String) -> String {
        if self.parts.is_empty() {
            return format!("id {}", show(&self.id));
        }
        let part = |KeyPart { name, value }: &KeyPart| match value {
            Some(value) => format!("{}={}", show(name), show(value)),
            None => format!("no {}", show(name)),
        };
        self.parts.iter().map(part).collect::<Vec<_>>().join(", ")
    }
}

/// Returns units per window; the wire has 0 for a ban and the largest number for no limit.
pub fn limit_words(units: i64, number: impl Fn(i64) -> String) -> String {
    match units {
        0 => "banned".to_owned(),
        i64::MAX => "unlimited".to_owned(),
        units => number(units),
    }
}

impl KeyState {
    /// Returns what has changed since another state of the key, such as `30 → 60`: the limit, or else the
    /// burst, or else the units in use. `None` if nothing of it has.
    pub fn change_words(&self, before: &Self, number: impl Fn(i64) -> String) -> Option<String> {
        let [old, new] = [before, self].map(|state| limit_words(state.limit, &number));
        if old != new {
            return Some(format!("{old} → {new}"));
        }
        let counts = |state: &Self| [(state.capacity(), "at once"), (state.used, "used")];
        let mut both = counts(before).into_iter().zip(counts(self));
        let ((old, unit), (new, _)) = both.find(|(old, new)| old != new)?;
        Some(format!("{} → {} {unit}", number(old), number(new)))
    }

    /// Returns the units that may be in use at once: the burst, or else the limit.
    pub fn capacity(&self) -> i64 {
        let in_use = self.used.saturating_add(self.held);
        let is_bucket = self.limit > 0 && self.algorithm().has_burst();
        if is_bucket { in_use.saturating_add(self.remaining) } else { self.limit }
    }
}

impl ApiKey {
    /// Returns the state in a word.
    pub fn state_word(&self) -> &'static str {
        match self.state() {
            State::Active => "active",
            State::Expired => "expired",
            State::Revoked => "revoked",
            State::Unspecified => "unknown",
        }
    }

    /// Returns the attributes by name, as `daily=500, plan=pro`; empty without any.
    pub fn attribute_words(&self) -> String {
        let pair = |(name, value): (&String, &String)| format!("{name}={value}");
        let all: BTreeSet<String> = self.attributes.iter().map(pair).collect();
        all.into_iter().collect::<Vec<_>>().join(", ")
    }
}

impl AuditEntry {
    /// Returns what has changed of its keys, each change once; empty if that is not known.
    pub fn old_and_new(&self, number: impl Fn(i64) -> String) -> String {
        let both = self.before.iter().zip(&self.after);
        let changes = both.filter_map(|(old, new)| new.change_words(old, &number));
        changes.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
    }
}

/// Returns a time to wait, of up to two units and rounded up: `57.216s`, `2m 5s`, `3h 20m`, `2d 1h`.
pub fn wait_words(wait: &Duration) -> String {
    let all = i128::from(wait.seconds) * NANOS_PER_SECOND + i128::from(wait.nanos);
    let up_to = |nanos: i128| (all + nanos - 1) / nanos;
    let two = |count: i128, unit: i128, large: &str, small: &str| match (count / unit, count % unit)
    {
        (large_units, 0) => format!("{large_units}{large}"),
        (large_units, small_units) => format!("{large_units}{large} {small_units}{small}"),
    };
    let (millis, seconds) = (up_to(1_000_000), up_to(NANOS_PER_SECOND));
    let (minutes, hours) = (up_to(60 * NANOS_PER_SECOND), up_to(3600 * NANOS_PER_SECOND));
    if millis <= 120_000 {
        let text = format!("{}.{:03}", millis / 1000, millis % 1000);
        format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
    } else if seconds <= 7_200 {
        two(seconds, 60, "m", "s")
    } else if minutes <= 2 * 24 * 60 {
        two(minutes, 60, "h", "m")
    } else {
        two(hours, 24, "d", "h")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_have_up_to_two_units_and_are_rounded_up() {
        for (seconds, nanos, expected) in [
            (0, 0, "0s"),
            (0, 1_000, "0.001s"),
            (59, 998_000_001, "59.999s"),
            (59, 999_287_000, "60s"),
            (120, 0, "120s"),
            (124, 1, "2m 5s"),
            (7_200, 0, "120m"),
            (7_201, 0, "2h 1m"),
            (12_000, 0, "3h 20m"),
            (172_801, 0, "2d 1h"),
            (31_622_400, 0, "366d"),
        ] {
            assert_eq!(wait_words(&Duration { seconds, nanos }), expected);
        }
    }

    #[test]
    fn grants_name_a_burst_of_their_own() {
        let words = |limit, burst| Grant::of_limit(limit, burst).words(|units| units.to_string());
        for (limit, burst, expected) in [
            (0, 0, "banned"),
            (i64::MAX, 7, "unlimited"),
            (7, 0, "limit 7"),
            (7, 7, "limit 7"),
            (7, 9, "limit 7, burst 9"),
        ] {
            assert_eq!(words(limit, burst), expected);
        }
        assert_eq!(Grant::default().words(|units| units.to_string()), "-");
    }

    #[test]
    fn absent_and_empty_parts_differ() {
        let part = |name: &str, value: Option<&str>| KeyPart {
            name: name.to_owned(),
            value: value.map(str::to_owned),
        };
        let parts =
            vec![part("user_id", Some("a")), part("plan", None), part("resource", Some(""))];
        let by_parts = KeyRef { parts, ..KeyRef::default() };
        let quoted = |text: &str| format!("'{text}'");
        assert_eq!(by_parts.words(quoted), "'user_id'='a', no 'plan', 'resource'=''");
        let by_id = KeyRef { id: "a%3Ab".to_owned(), ..KeyRef::default() };
        assert_eq!(by_id.words(str::to_owned), "id a%3Ab");
    }
}
