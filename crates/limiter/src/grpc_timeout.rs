//! Parses the header `grpc-timeout`, by which a gRPC client limits its wait.
//!
//! **Source:** gRPC over HTTP/2, "Requests", Timeout.

use std::time::Duration;

use crate::clock::Deadline;

/// Time reserved for the response: timers fire up to 2 ms late, and the way back takes about as
/// long. A timeout shorter than twice this margin is halved instead.
const MARGIN: Duration = Duration::from_millis(4);

/// Returns the time by which a response must be sent to reach the client before the timeout in this
/// header. An invalid value sets no deadline, as in tonic.
pub fn deadline(header: &str) -> Deadline {
    parse(header).map_or(Deadline::NEVER, |timeout| {
        Deadline::within(timeout.saturating_sub(MARGIN.min(timeout / 2)))
    })
}

/// Parses 1 to 8 digits and a unit.
fn parse(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        assert_eq!(parse("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parse("20m"), Some(Duration::from_millis(20)));
        assert_eq!(parse("5u"), Some(Duration::from_micros(5)));
        assert_eq!(parse("0n"), Some(Duration::ZERO));
        for invalid in ["", "m", "20", "20 m", "-1m", "1.5S", "123456789m", "20ms", "1é"] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }
}
