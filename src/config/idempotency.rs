//! The section `idempotency`.

use std::time::Duration;

use super::section::Section;
use super::setting::Setting;
use super::values;
use crate::clock::Micros;

/// Settings of request ids.
#[derive(Clone, Copy, Debug)]
pub struct IdempotencySettings {
    /// Time for which the reply to a request, or a change, with a request id is remembered.
    pub ttl: Micros,
    /// Maximum number of replies that the memory store remembers.
    pub max_keys: u32,
}

const IDEMPOTENCY: Setting = Setting::new(
    "idempotency",
    "Requests with a request_id: the same request with the same id takes its units once, and the same \
     change by an administrator is made once.",
);
const TTL: Setting = Setting::new(
    "ttl",
    "Time for which the reply to such a request or change is remembered. Changes are reloaded.",
);
const MAX_KEYS: Setting = Setting::new(
    "max-keys",
    "Maximum number of replies in the memory store. Beyond it the oldest are forgotten.",
);

pub(super) fn read(root: &mut Section<'_>) -> IdempotencySettings {
    const VALID_TTL: &str = "must be a duration from 1s to 1d, such as 60s";
    let mut section = root.section(IDEMPOTENCY);
    let ttl = section.read(TTL, "60s", |value| {
        let range = Duration::from_secs(1)..=Duration::from_hours(24);
        values::duration(value, range, VALID_TTL)
    });
    let max_keys = section.read(MAX_KEYS, "100000", values::count(100_000_000));
    section.close();
    IdempotencySettings { ttl: ttl.into(), max_keys }
}
