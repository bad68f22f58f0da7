//! Values as messages have them, the same in every protocol: numbers, times and algorithms.

use std::sync::LazyLock;
use std::time::Duration;

use rlaas_core::algorithm::Algorithm;
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::rules::{Grant, InvalidRequest, Request, RequestFields, Unmatched};

use crate::ratelimit::v1 as proto;

/// Returns the units per window, or `u64::MAX` if they are unlimited.
pub const fn units(grant: Grant) -> u64 {
    match grant {
        Grant::Limited(limit) => limit.units(),
        Grant::Banned => 0,
        Grant::Unlimited => u64::MAX,
    }
}

/// Returns the enum value of an algorithm. It has the canonical name, in the proto's spelling.
pub fn algorithm(algorithm: Algorithm) -> proto::Algorithm {
    static ON_THE_WIRE: LazyLock<Vec<proto::Algorithm>> = LazyLock::new(|| {
        let name = |algorithm: &Algorithm| algorithm.lua_name().to_uppercase();
        let on_the_wire = |name: String| proto::Algorithm::from_str_name(&name).unwrap_or_default();
        Algorithm::ALL.iter().map(name).map(on_the_wire).collect()
    });
    ON_THE_WIRE[algorithm as usize]
}

/// Converts a span of time.
///
/// # Panics
///
/// Never: the rest of a second is less than a second.
pub fn duration(span: Micros) -> prost_types::Duration {
    let micros = span.as_micros();
    prost_types::Duration {
        seconds: int64(micros / 1_000_000),
        nanos: i32::try_from(micros % 1_000_000 * 1_000).expect("less than a second"),
    }
}

/// Converts the duration of a message, without parts of a microsecond. `None` if it is negative, or
/// its nanoseconds are not valid.
///
/// The conversion of `prost_types` panics for `i64::MIN` seconds where overflows are checked.
pub fn micros(message: &prost_types::Duration) -> Option<Micros> {
    let seconds = u64::try_from(message.seconds).ok()?;
    let nanos = u32::try_from(message.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos).into())
}

/// Converts a number. Numbers above `i64::MAX` become `i64::MAX`.
pub fn int64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a time.
pub fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let prost_types::Duration { seconds, nanos } = duration(time.since(Timestamp::EPOCH));
    prost_types::Timestamp { seconds, nanos }
}

/// Returns the message of the policy for requests that no rule matches.
pub const fn unmatched(policy: Unmatched) -> proto::UnmatchedPolicy {
    match policy {
        Unmatched::DefaultRule => proto::UnmatchedPolicy::DefaultRule,
        Unmatched::Allow => proto::UnmatchedPolicy::Allow,
        Unmatched::Deny => proto::UnmatchedPolicy::Deny,
    }
}

/// Validates the fields of a request.
///
/// # Errors
///
/// [`InvalidRequest`] for the first field that is not valid.
pub fn check_request(request: &proto::CheckRequest) -> Result<Request<'_>, InvalidRequest> {
    let proto::CheckRequest {
        user_id,
        resource,
        attributes,
        cost,
        dry_run,
        request_id,
        costs,
        at_least,
    } = request;
    let (cost, dry_run) = (*cost, *dry_run);
    Request::new(RequestFields { user_id, resource, attributes, cost, dry_run })?
        .with_costs(costs)?
        .with_at_least(*at_least)?
        .with_request_id(request_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_messages_are_converted_or_refused() {
        let converted = |seconds, nanos| micros(&prost_types::Duration { seconds, nanos });
        assert_eq!(converted(0, 0), Some(Micros::ZERO));
        assert_eq!(converted(2, 999_999_999), Some(Micros::from_micros(2_999_999)));
        assert!(converted(i64::MAX, 0) >= Some(Micros::from_secs(1 << 40)));
        for (seconds, nanos) in [
            (i64::MIN, 0),
            (i64::MIN, i32::MIN),
            (i64::MIN, i32::MAX),
            (i64::MAX, i32::MAX),
            (-1, 0),
            (0, -1),
            (1, -1),
            (0, 1_000_000_000),
        ] {
            assert_eq!(converted(seconds, nanos), None, "{seconds} s {nanos} ns");
        }
    }
}
