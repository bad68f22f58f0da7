//! From when until when a certificate is valid: the one field of it that rustls does not tell.
//!
//! It reads certificates that the operator has given, and no further than needed.
//!
//! **Source:** RFC 5280 section 4.1; X.690 section 8.1 (identifiers and lengths).

use crate::clock::Timestamp;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// The version of the certificate, which may be missing.
const VERSION: u8 = 0xa0;

const SECONDS_PER_DAY: u64 = 86_400;

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before this point.
    pub not_before: Timestamp,
    /// Not after this point.
    pub not_after: Timestamp,
}

impl Validity {
    /// The validity of a certificate in DER, or `None` if it is none.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let mut outer = Elements(certificate);
        let mut certificate = Elements(outer.take(SEQUENCE)?);
        let mut signed = Elements(certificate.take(SEQUENCE)?);
        let _missing_in_version_1 = signed.take(VERSION);
        let _serial_number = signed.take(INTEGER)?;
        let _algorithm = signed.take(SEQUENCE)?;
        let _issuer = signed.take(SEQUENCE)?;
        let mut validity = Elements(signed.take(SEQUENCE)?);
        Some(Self { not_before: validity.take_time()?, not_after: validity.take_time()? })
    }
}

/// Elements in DER that are still to be read.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// The contents of the next element, if it has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&[found, length], rest) = self.0.split_first_chunk()?;
        if found != tag {
            return None;
        }
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(contents)
    }

    fn take_time(&mut self) -> Option<Timestamp> {
        if let Some(text) = self.take(UTC_TIME) {
            let (years, rest) = text.split_at_checked(2)?;
            let years = number(years)?;
            return time(if years < 50 { 2000 + years } else { 1900 + years }, rest);
        }
        let (year, rest) = self.take(GENERALIZED_TIME)?.split_at_checked(4)?;
        time(number(year)?, rest)
    }
}

/// A year and `MMDDhhmmssZ`; what is before the epoch is the epoch.
fn time(year: u64, rest: &[u8]) -> Option<Timestamp> {
    let rest = rest.strip_suffix(b"Z").filter(|rest| rest.len() == 10)?;
    let (pairs, _none_left) = rest.as_chunks::<2>();
    let pairs: Option<Vec<u64>> = pairs.iter().map(|pair| number(pair)).collect();
    let &[month, day, hour, minute, second] = pairs?.as_slice() else { return None };
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
    Some(Timestamp::from_millis(seconds * 1000))
}

/// Days from the Unix epoch to a date of the Gregorian calendar; 0 for earlier ones.
///
/// **Source:** Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days(year: u64, month: u64, day: u64) -> u64 {
    const EPOCH: u64 = 719_468;
    // A year of this count begins in March: the day that is leapt is its last.
    let year = year - u64::from(month <= 2);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    (365 * year + year / 4 - year / 100 + year / 400 + day_of_year).saturating_sub(EPOCH)
}

fn number(digits: &[u8]) -> Option<u64> {
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u16::try_from(contents.len()).expect("a short element");
        // Always the long form; the short one is that of the times.
        [&[tag, 0x82], &length.to_be_bytes()[..], contents].concat()
    }

    fn text(tag: u8, text: &str) -> Vec<u8> {
        let length = u8::try_from(text.len()).expect("a short text");
        [&[tag, length], text.as_bytes()].concat()
    }

    fn certificate(version: &[u8], times: &[Vec<u8>; 2]) -> Vec<u8> {
        let issuer = element(SEQUENCE, &[0; 300]);
        let before = [version, &[INTEGER, 1, 7, SEQUENCE, 0], &issuer].concat();
        let signed = [before, element(SEQUENCE, &times.concat())].concat();
        element(SEQUENCE, &element(SEQUENCE, &signed))
    }

    fn seconds(at: Timestamp) -> u64 {
        at.as_millis() / 1000
    }

    #[test]
    fn both_forms_of_time_are_read() {
        let times = [text(UTC_TIME, "700101000000Z"), text(GENERALIZED_TIME, "20500301123456Z")];
        for version in [&[VERSION, 3, INTEGER, 1, 2][..], &[]] {
            let validity = Validity::of(&certificate(version, &times)).expect("a certificate");
            // date -u -d '2050-03-01 12:34:56' +%s
            let told = (seconds(validity.not_before), seconds(validity.not_after));
            assert_eq!(told, (0, 2_529_750_896));
        }
        for (date, expected) in [
            ("000229235959Z", 951_868_799),
            ("491231235959Z", 2_524_607_999),
            ("500101000000Z", 0),
            ("261121164000Z", 1_795_279_200),
        ] {
            let times = [text(UTC_TIME, date), text(UTC_TIME, date)];
            let validity = Validity::of(&certificate(&[], &times)).expect("a certificate");
            assert_eq!(seconds(validity.not_after), expected, "{date}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_validity() {
        let times = [text(UTC_TIME, "261121164000Z"), text(UTC_TIME, "261121164000Z")];
        let whole = certificate(&[], &times);
        for length in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..length]), None, "{length}");
        }
        for wrong in ["", "Z", "261121164000", "2611211640Z", "261321164000Z", "26112116400xZ"] {
            let times = [text(UTC_TIME, "261121164000Z"), text(UTC_TIME, wrong)];
            assert_eq!(Validity::of(&certificate(&[], &times)), None, "{wrong}");
        }
    }
}
