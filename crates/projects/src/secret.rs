//! New API keys.

use std::fmt;
use std::str::FromStr;

use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_auth::ApiKeyText;
use rlaas_auth::api_key_text::{DIGITS, PREFIX, RANDOM_LEN, checksum_of, is_environment};

use super::{InvalidProject, KeyDigest};

/// The environment that is part of an API key, such as `live` or `test`: 1 to 16 lower case letters
/// or digits. For people and secret scanners; the service does not compare it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment(String);

/// A new API key. Only its digest is stored, so it is shown once. Its `Debug` hides it.
pub struct ApiKeySecret(String);

impl Environment {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self("live".to_owned())
    }
}

impl FromStr for Environment {
    type Err = InvalidProject;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid = is_environment(text);
        is_valid.then(|| Self(text.to_owned())).ok_or(InvalidProject::Environment)
    }
}

impl ApiKeySecret {
    /// Generates a key.
    ///
    /// # Errors
    ///
    /// [`Unspecified`] if the system has no random numbers.
    pub fn generate(environment: &Environment) -> Result<Self, Unspecified> {
        let mut text = format!("{PREFIX}{}_", environment.as_str());
        let begin = text.len();
        let random = SystemRandom::new();
        let mut bytes = [0; 64];
        while text.len() < begin + RANDOM_LEN {
            random.fill(&mut bytes)?;
            // The largest multiple of 62 in a byte: what is above would make some digits likelier.
            let fair = bytes.iter().filter(|byte| usize::from(**byte) < 4 * DIGITS.len());
            let digits = fair.map(|byte| char::from(DIGITS[usize::from(*byte) % DIGITS.len()]));
            text.extend(digits.take(begin + RANDOM_LEN - text.len()));
        }
        let checksum = checksum_of(&text);
        text.extend(checksum.map(char::from));
        Ok(Self(text))
    }

    /// Returns the text, to show it once.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the id: the first characters of the random part.
    pub fn id(&self) -> &str {
        self.parsed().id()
    }

    /// Returns the digest, which is stored.
    pub fn digest(&self) -> KeyDigest {
        KeyDigest::from_key(&self.parsed())
    }

    fn parsed(&self) -> ApiKeyText<'_> {
        ApiKeyText::parse(&self.0).expect("a generated key has the form of one")
    }
}

impl fmt::Debug for ApiKeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn generated_keys_are_different_and_well_formed() {
        let environment: Environment = "test".parse().expect("an environment");
        let mut keys = HashSet::new();
        let mut digits = HashSet::new();
        for _ in 0..200 {
            let secret = ApiKeySecret::generate(&environment).expect("random numbers");
            let text = secret.expose();
            assert!(text.starts_with("rlaas_test_"), "{text}");
            let parsed = ApiKeyText::parse(text).expect("a key");
            assert!(secret.digest().matches(&parsed));
            digits.extend(text["rlaas_test_".len()..].bytes());
            assert!(keys.insert(text.to_owned()));
            assert_eq!(format!("{secret:?}"), "***");
        }
        assert_eq!(digits.len(), DIGITS.len(), "each digit occurs");
    }

    #[test]
    fn environment_is_lower_case() {
        for wrong in ["", "Live", "a b", "a_b", "ä", "aaaaaaaaaaaaaaaaa"] {
            assert_eq!(wrong.parse::<Environment>(), Err(InvalidProject::Environment), "{wrong}");
        }
        assert_eq!(Environment::default().as_str(), "live");
    }
}
