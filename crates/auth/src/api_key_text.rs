//! The text of an API key: `rlaas_live_`, 43 random characters, and a checksum of 6.
//!
//! The prefix and the checksum are for secret scanners, which find keys in code and logs without
//! false alarms. The service refuses a text with a wrong checksum without looking it up.

use thiserror::Error;

/// The digits of base 62, in the order of their values.
pub const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Begins each API key. The environment follows.
pub const PREFIX: &str = "rlaas_";
/// Random characters: 256 bits.
pub const RANDOM_LEN: usize = 43;
/// Characters of the checksum.
pub const CHECKSUM_LEN: usize = 6;
/// Most characters of an environment.
pub const MAX_ENVIRONMENT_LEN: usize = 16;

/// A text that has the form of an API key, with a right checksum. Borrowed from the request, and
/// never shown.
#[derive(Clone, Copy)]
pub struct ApiKeyText<'a> {
    text: &'a str,
    random: &'a str,
}

/// The reason why a text is no API key.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MalformedApiKey {
    /// It does not have the form of one.
    #[error("must be rlaas_, an environment, _ and 49 letters and digits")]
    Form,
    /// The checksum is wrong: the key was cut, or mistyped.
    #[error("has a wrong checksum")]
    Checksum,
}

impl<'a> ApiKeyText<'a> {
    /// Length of an id.
    pub const ID_LEN: usize = 8;

    /// Returns `true` if a text begins as API keys do.
    pub fn has_prefix(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Checks form and checksum.
    ///
    /// # Errors
    ///
    /// [`MalformedApiKey`].
    pub fn parse(text: &'a str) -> Result<Self, MalformedApiKey> {
        let rest = text.strip_prefix(PREFIX).ok_or(MalformedApiKey::Form)?;
        let (environment, digits) = rest.split_once('_').ok_or(MalformedApiKey::Form)?;
        let is_digits = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_environment(environment) || digits.len() != RANDOM_LEN + CHECKSUM_LEN || !is_digits {
            return Err(MalformedApiKey::Form);
        }
        let (covered, checksum) = text.split_at(text.len() - CHECKSUM_LEN);
        if checksum.as_bytes() != checksum_of(covered) {
            return Err(MalformedApiKey::Checksum);
        }
        Ok(Self { text, random: &digits[..RANDOM_LEN] })
    }

    /// Returns the whole text: a secret.
    pub fn as_str(&self) -> &'a str {
        self.text
    }

    /// Returns the id: the first characters of the random part.
    pub fn id(&self) -> &'a str {
        &self.random[..Self::ID_LEN]
    }
}

/// Returns `true` for the name of an environment: 1 to 16 lower case letters or digits.
pub fn is_environment(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=MAX_ENVIRONMENT_LEN).contains(&text.len()) && text.bytes().all(is_valid)
}

/// Returns the checksum of all that comes before it: the CRC-32 in base 62, with leading zeros.
///
/// **Source:** ISO 3309 (the CRC-32 of zlib); the form is that of GitHub's tokens.
pub fn checksum_of(covered: &str) -> [u8; CHECKSUM_LEN] {
    let mut rest = crc32fast::hash(covered.as_bytes()) as usize;
    let mut digits = [DIGITS[0]; CHECKSUM_LEN];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[rest % DIGITS.len()];
        rest /= DIGITS.len();
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(environment: &str, random: &str) -> String {
        let covered = format!("rlaas_{environment}_{random}");
        let checksum = checksum_of(&covered);
        covered + str::from_utf8(&checksum).expect("digits")
    }

    #[test]
    fn checksum_is_crc_32_in_base_62() {
        // The check value of CRC-32 is 0xCBF43926 = 3421780262 = 3*62^5 + ...
        let digits = checksum_of("123456789");
        let value = digits.iter().fold(0_u64, |value, digit| {
            let position = DIGITS.iter().position(|of| of == digit).expect("a digit");
            value * 62 + position as u64
        });
        assert_eq!(value, 0xcbf4_3926);
    }

    #[test]
    fn key_has_an_id_and_a_checksum() {
        let random = "a".repeat(8) + &"B7".repeat(17) + "z";
        let whole = text("live", &random);
        let key = ApiKeyText::parse(&whole).expect("a key");
        assert_eq!((key.id(), key.as_str()), ("aaaaaaaa", whole.as_str()));
        assert_eq!(whole.len(), "rlaas_live_".len() + 49);
    }

    #[test]
    fn other_texts_are_no_keys() {
        let whole = text("live", &"x".repeat(43));
        for wrong in [
            "",
            "rlaas_",
            "rlaas_live_",
            &whole[1..],
            &whole[..whole.len() - 1],
            &format!("{whole}0"),
            &format!(" {whole}"),
            &text("", &"x".repeat(43)),
            &text("Live", &"x".repeat(43)),
            &text("a_b", &"x".repeat(43)),
            &text("aaaaaaaaaaaaaaaaa", &"x".repeat(43)),
            &text("live", &"x".repeat(44)),
            &text("live", &("é".repeat(21) + "x")),
        ] {
            assert_eq!(ApiKeyText::parse(wrong).err(), Some(MalformedApiKey::Form), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn one_wrong_character_is_noticed(at in 0..43_usize, other in "[0-9A-Za-z]") {
            let whole = text("test", &"0aZ9".repeat(11)[..43]);
            let at = "rlaas_test_".len() + at;
            let changed = whole[..at].to_owned() + &other + &whole[at + 1..];
            let parsed = ApiKeyText::parse(&changed).err();
            let expected = (changed != whole).then_some(MalformedApiKey::Checksum);
            prop_assert_eq!(parsed, expected);
        }
    }
}
