//! Values as messages have them, the same in every protocol: numbers, times and algorithms.

use std::sync::LazyLock;

use rlaas_proto::ratelimit::v1 as proto;

use crate::algorithm::Algorithm;
use crate::clock::{Micros, Timestamp};
use crate::rules::Grant;

/// Returns the units per window, or `u64::MAX` if they are unlimited.
pub(crate) const fn units(grant: Grant) -> u64 {
    match grant {
        Grant::Limited(limit) => limit.units(),
        Grant::Banned => 0,
        Grant::Unlimited => u64::MAX,
    }
}

/// Returns the enum value of an algorithm. It has the canonical name, in the proto's spelling.
pub(crate) fn algorithm(algorithm: Algorithm) -> proto::Algorithm {
    static ON_THE_WIRE: LazyLock<Vec<proto::Algorithm>> = LazyLock::new(|| {
        let name = |algorithm: &Algorithm| algorithm.lua_name().to_uppercase();
        let on_the_wire = |name: String| proto::Algorithm::from_str_name(&name).unwrap_or_default();
        Algorithm::ALL.iter().map(name).map(on_the_wire).collect()
    });
    ON_THE_WIRE[algorithm as usize]
}

/// Converts a span of time.
pub(crate) fn duration(span: Micros) -> prost_types::Duration {
    let micros = span.as_micros();
    prost_types::Duration {
        seconds: int64(micros / 1_000_000),
        nanos: i32::try_from(micros % 1_000_000 * 1_000).expect("less than a second"),
    }
}

/// Converts a number. Numbers above `i64::MAX` become `i64::MAX`.
pub(crate) fn int64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a time.
pub(crate) fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let prost_types::Duration { seconds, nanos } = duration(time.since(Timestamp::EPOCH));
    prost_types::Timestamp { seconds, nanos }
}
