//! Numbers with a unit of time.

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
}

impl Unit {
    /// Returns how many places the point moves to the right, so that the number is microseconds.
    const fn shift(self) -> isize {
        match self {
            Self::Seconds => 6,
            Self::Millis => 3,
            Self::Micros => 0,
            Self::Nanos => -3,
        }
    }

    /// Reads a number, such as `1700000000.123`, as whole microseconds, rounded down; `None` if it
    /// is no number or below zero, or if it is more than `u64` holds.
    pub(crate) fn micros(self, text: &[u8]) -> Option<u64> {
        let is_plain = text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        if !is_plain {
            return self.exponential(text);
        }
        let point = text.iter().position(|byte| *byte == b'.');
        let (whole, fraction) = match point {
            Some(point) => (&text[..point], &text[point + 1..]),
            None => (text, &[][..]),
        };
        if whole.is_empty() && fraction.is_empty() || fraction.contains(&b'.') {
            return None;
        }
        let digits = whole.iter().chain(fraction).chain(std::iter::repeat(&b'0'));
        let count = whole.len().checked_add_signed(self.shift()).unwrap_or_default();
        let mut digits = digits.take(count);
        digits.try_fold(0_u64, |number, digit| {
            number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        })
    }

    /// Reads `1.7e9`, as some write numbers in JSON.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "checked to be in range; such numbers are not exact as they are written"
    )]
    fn exponential(self, text: &[u8]) -> Option<u64> {
        if !text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) {
            return None;
        }
        let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
        let micros = number * 10_f64.powi(i32::try_from(self.shift()).ok()?);
        (0.0..u64::MAX as f64).contains(&micros).then_some(micros as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_become_microseconds() {
        for (unit, text, expected) in [
            (Unit::Seconds, "1700000000", Some(1_700_000_000_000_000)),
            (Unit::Seconds, "1700000000.1234567", Some(1_700_000_000_123_456)),
            (Unit::Seconds, "0.001", Some(1_000)),
            (Unit::Seconds, ".5", Some(500_000)),
            (Unit::Seconds, "5.", Some(5_000_000)),
            (Unit::Millis, "1.5", Some(1_500)),
            (Unit::Micros, "17", Some(17)),
            (Unit::Nanos, "1999", Some(1)),
            (Unit::Nanos, "9", Some(0)),
            (Unit::Seconds, "1.7e9", Some(1_700_000_000_000_000)),
            (Unit::Millis, "1E3", Some(1_000_000)),
            (Unit::Seconds, "", None),
            (Unit::Seconds, ".", None),
            (Unit::Seconds, "1.2.3", None),
            (Unit::Seconds, "-1", None),
            (Unit::Seconds, "0.1, 0.2", None),
            (Unit::Seconds, "nan", None),
            (Unit::Seconds, "1e400", None),
            (Unit::Seconds, "18446744073709.551615", Some(u64::MAX)),
            (Unit::Seconds, "18446744073709.551616", None),
            (Unit::Nanos, "99999999999999999999999999", None),
        ] {
            assert_eq!(unit.micros(text.as_bytes()), expected, "{text} {unit:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn each_unit_reads_what_it_wrote(micros in 0..u64::MAX / 1_000) {
            let written = |unit: u64, places: usize| {
                format!("{}.{:0places$}", micros / unit, micros % unit)
            };
            prop_assert_eq!(Unit::Seconds.micros(written(1_000_000, 6).as_bytes()), Some(micros));
            prop_assert_eq!(Unit::Millis.micros(written(1_000, 3).as_bytes()), Some(micros));
            prop_assert_eq!(Unit::Micros.micros(micros.to_string().as_bytes()), Some(micros));
            prop_assert_eq!(Unit::Nanos.micros(format!("{micros}999").as_bytes()), Some(micros));
        }

        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>) {
            let _ = Unit::Seconds.micros(&bytes);
        }
    }
}
