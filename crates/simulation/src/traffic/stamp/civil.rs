//! Stamps as texts, read by hand: the common log's, and those of RFC 3339.

use rlaas_core::clock::Micros;

/// A date and a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CivilStamp {
    /// Microseconds from 1970 on, as if the zone were UTC.
    pub(super) micros: i64,
    /// Seconds that the zone is ahead of UTC, if the stamp says so.
    pub(super) offset: Option<i32>,
}

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Reads `10/Oct/2000:13:55:36 -0700`; `None` if it is not written exactly so.
pub(super) fn common_log(text: &[u8]) -> Option<CivilStamp> {
    if text.len() != 26
        || text[2] != b'/'
        || text[6] != b'/'
        || text[11] != b':'
        || text[20] != b' '
    {
        return None;
    }
    let month = MONTHS.iter().position(|month| **month == text[3..6])?;
    let month = i64::try_from(month + 1).ok()?;
    let date = days(digits(&text[7..11])?, month, digits(&text[..2])?)?;
    let micros = date * 86_400_000_000 + time_of_day(&text[12..20])?;
    let offset = Some(offset(text[21], &text[22..24], &text[24..26])?);
    Some(CivilStamp { micros, offset })
}

/// Reads `2000-10-10T13:55:36.123Z`, also with a space and without a zone; `None` if it is not
/// written exactly so.
pub(super) fn rfc3339(text: &[u8]) -> Option<CivilStamp> {
    if text.len() < 19 || text[4] != b'-' || text[7] != b'-' || !matches!(text[10], b'T' | b' ') {
        return None;
    }
    let date = days(digits(&text[..4])?, digits(&text[5..7])?, digits(&text[8..10])?)?;
    let mut micros = date * 86_400_000_000 + time_of_day(&text[11..19])?;
    let mut rest = &text[19..];
    if let [b'.', fraction @ ..] = rest {
        let length = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=9).contains(&length) {
            return None;
        }
        let kept = length.min(6);
        let power = u32::try_from(6 - kept).ok()?;
        micros += digits(&fraction[..kept])? * 10_i64.pow(power);
        rest = &fraction[length..];
    }
    let offset = match rest {
        [] => None,
        b"Z" => Some(0),
        [sign, hours @ .., b':', a, b] if hours.len() == 2 => {
            Some(offset(*sign, hours, &[*a, *b])?)
        }
        _ => return None,
    };
    Some(CivilStamp { micros, offset })
}

/// Reads `13:55:36`.
fn time_of_day(text: &[u8]) -> Option<i64> {
    let [_, _, b':', _, _, b':', _, _] = text else { return None };
    let (hour, minute, second) = (digits(&text[..2])?, digits(&text[3..5])?, digits(&text[6..8])?);
    // jiff decides about leap seconds.
    (hour < 24 && minute < 60 && second < 60)
        .then_some(((hour * 60 + minute) * 60 + second) * 1_000_000)
}

/// Returns the seconds that a zone is ahead of UTC.
fn offset(sign: u8, hours: &[u8], minutes: &[u8]) -> Option<i32> {
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    let seconds = i32::try_from((hours * 60 + minutes) * 60).ok()?;
    match sign {
        _ if hours > 24 || minutes > 59 => None,
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |number, byte| match byte {
        b'0'..=b'9' => Some(number * 10 + i64::from(byte - b'0')),
        _ => None,
    })
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar; `None` if there is no such
/// date.
///
/// **Source:** Howard Hinnant, "chrono-compatible low-level date algorithms", `days_from_civil`.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// Returns the coarsest of the usual steps that both lengths of time are multiples of.
pub(super) fn finest_step(micros: u64) -> Micros {
    let steps = [1_000_000, 1_000].into_iter().find(|step| micros.is_multiple_of(*step));
    Micros::from_micros(steps.unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use jiff::fmt::strtime;
    use jiff::tz::{Offset, TimeZone};
    use proptest::prelude::*;

    use super::*;

    fn instant(stamp: CivilStamp) -> Option<i64> {
        Some(stamp.micros - i64::from(stamp.offset?) * 1_000_000)
    }

    #[test]
    fn usual_stamps_are_read_by_hand() {
        let stamp = common_log(b"10/Oct/2000:13:55:36 -0700").expect("a stamp");
        assert_eq!(instant(stamp), Some(971_211_336_000_000));
        for (text, expected) in [
            ("2000-10-10T13:55:36-07:00", Some(971_211_336_000_000)),
            ("2000-10-10 13:55:36.5-07:00", Some(971_211_336_500_000)),
            ("2000-10-10T20:55:36.123456789Z", Some(971_211_336_123_456)),
            ("2000-10-10T20:55:36", None),
        ] {
            let stamp = rfc3339(text.as_bytes()).expect(text);
            assert_eq!(instant(stamp), expected, "{text}");
            assert!(stamp.micros > 971_000_000_000_000, "{text}");
        }
    }

    #[test]
    fn other_texts_are_not() {
        for text in ["", "1", "30/Feb/2000:13:55:36 -0700", "10/Oct/2000:13:55:60 -0700"] {
            assert_eq!(common_log(text.as_bytes()), None, "{text}");
        }
        for text in
            ["2000-10-10", "2000-13-10T13:55:36Z", "2000-10-10T13:55:36.Z", "2001-02-29T00:00:00Z"]
        {
            assert_eq!(rfc3339(text.as_bytes()), None, "{text}");
        }
    }

    /// A text that is a stamp, or nearly one.
    fn nearly(stamp: String) -> impl Strategy<Value = String> {
        let length = stamp.len();
        let digit = proptest::option::weighted(0.3, (0..length, "[0-9 :/.+-]"));
        digit.prop_map(move |change| {
            let mut stamp = stamp.clone();
            if let Some((at, by)) = change {
                stamp.replace_range(at..=at, &by);
            }
            stamp
        })
    }

    fn written(pattern: &'static str) -> impl Strategy<Value = String> {
        let times = (0..253_000_000_000_i64, 0..1_000_000_000_i32, -1_439..1_440_i32);
        times.prop_flat_map(move |(second, nano, minutes)| {
            let offset = Offset::from_seconds(minutes * 60).expect("an offset");
            let time = jiff::Timestamp::new(second, nano).expect("a time");
            let zoned = time.to_zoned(TimeZone::fixed(offset));
            nearly(strtime::format(pattern, &zoned).expect("a pattern"))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn common_log_stamps_are_those_of_jiff(text in written("%d/%b/%Y:%H:%M:%S %z")) {
            if let Some(stamp) = common_log(text.as_bytes()) {
                let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", &text).and_then(|it| it.to_timestamp());
                prop_assert_eq!(instant(stamp), time.ok().map(jiff::Timestamp::as_microsecond), "{}", text);
            }
        }

        #[test]
        fn rfc_3339_stamps_are_those_of_jiff(
            text in prop_oneof![written("%Y-%m-%dT%H:%M:%S%.f%:z"), written("%F %T%.3f%:z"), written("%FT%TZ")]
        ) {
            if let Some(stamp) = rfc3339(text.as_bytes()) {
                let time = text.parse::<jiff::Timestamp>();
                let expected = time.ok().map(jiff::Timestamp::as_microsecond);
                if stamp.offset.is_some() {
                    prop_assert_eq!(instant(stamp), expected, "{}", text);
                } else {
                    prop_assert_eq!(None, expected, "{}", text);
                }
            }
        }
    }
}
