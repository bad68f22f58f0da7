//! Hashed parts of keys: what names a person need not stand in a store.
//!
//! A keyed hash replaces the values of some parts when keys are made; everything that sees keys
//! (stores, journals, the audit) sees hashes only. The hash is a function that the embedder brings
//! along, since this crate has no cryptography.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::Part;

/// A keyed hash of values: a pseudorandom function, cut to 128 bits.
///
/// ```
/// use rlaas_core::rules::KeyHasher;
///
/// // Not a keyed hash: use HMAC-SHA-256 or the like.
/// let hasher = KeyHasher::new(|value| [value[0]; 16]);
/// assert_eq!(hasher.hash("alice").as_str(), "mfqwcylbmfqwcylbmfqwcylbme");
/// assert_eq!(hasher.shown("alice"), "#mfqwcylbmfqwcylbmfqwcylbme");
/// ```
#[derive(Clone)]
pub struct KeyHasher(Arc<HashFunction>);

type HashFunction = dyn Fn(&[u8]) -> [u8; 16] + Send + Sync;

/// A hashed value: 26 characters, `a` to `z` and `2` to `7`.
///
/// **Source:** RFC 4648 section 6 (base 32), in lower case and without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedValue([u8; Self::LEN]);

/// The parts whose values are hashed in keys.
///
/// An entry of a descriptor is hashed if its key is the name of a part: `user_id`, `resource` or the
/// name of an attribute. Values that come from configuration, as those of shared patterns, are not.
#[derive(Clone, Debug)]
pub struct HashedParts {
    hasher: KeyHasher,
    has_user_id: bool,
    has_resource: bool,
    attributes: HashSet<String>,
}

impl KeyHasher {
    /// Creates a hasher from a pseudorandom function with a secret key.
    pub fn new(function: impl Fn(&[u8]) -> [u8; 16] + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }

    /// Hashes a value.
    pub fn hash(&self, value: &str) -> HashedValue {
        HashedValue::from_bytes((self.0)(value.as_bytes()))
    }

    /// Returns the text for callers who may see hashes only: `#` and the hashed value.
    pub fn shown(&self, value: &str) -> String {
        self.hash(value).shown()
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

impl HashedValue {
    /// Length in characters.
    pub const LEN: usize = 26;

    fn from_bytes(bytes: [u8; 16]) -> Self {
        const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let bits = u128::from_be_bytes(bytes);
        let mut digits = [0; Self::LEN];
        for (position, digit) in digits.iter_mut().enumerate() {
            // The last digit has three bits, and two that are 0.
            let shift = 123_i32 - 5 * i32::try_from(position).unwrap_or_default();
            let value = if shift >= 0 { bits >> shift } else { bits << -shift };
            *digit = DIGITS[(value & 31) as usize];
        }
        Self(digits)
    }

    /// Returns the characters.
    ///
    /// # Panics
    ///
    /// Never: the characters are ASCII.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("the digits are ASCII")
    }

    /// Returns the text for callers: `#` and the characters.
    pub fn shown(self) -> String {
        format!("#{}", self.as_str())
    }

    /// Returns the text for callers of a value that is hashed already, as in a key; `None` if `text`
    /// has not the form of a hashed value.
    pub fn show_hashed(text: &str) -> Option<String> {
        Self::from_text(text).map(Self::shown)
    }

    /// Returns the hashed value that [`HashedValue::shown`] shows; `None` for any other text.
    pub fn from_shown(text: &str) -> Option<Self> {
        Self::from_text(text.strip_prefix('#')?)
    }

    fn from_text(text: &str) -> Option<Self> {
        let digits: [u8; Self::LEN] = text.as_bytes().try_into().ok()?;
        let is_digit = |byte: &u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
        digits.iter().all(is_digit).then_some(Self(digits))
    }
}

impl HashedParts {
    /// Creates the set of parts that `hasher` hashes.
    pub fn new(hasher: KeyHasher, parts: impl IntoIterator<Item = Part>) -> Self {
        let mut all =
            Self { hasher, has_user_id: false, has_resource: false, attributes: HashSet::new() };
        for part in parts {
            match part {
                Part::UserId => all.has_user_id = true,
                Part::Resource => all.has_resource = true,
                Part::Attribute(name) | Part::AttributeOrUserId(name) => {
                    all.attributes.insert(name);
                }
            }
        }
        all
    }

    /// Returns the hasher, by which every hashed part is.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// Returns the hasher of a part of a rule's key; `None` if its values stay readable. A part that
    /// takes the user's value for want of an attribute is hashed if either is.
    pub fn hasher_of(&self, part: &Part) -> Option<&KeyHasher> {
        let is_hashed = match part {
            Part::UserId => self.has_user_id,
            Part::Resource => self.has_resource,
            Part::Attribute(name) => self.attributes.contains(name),
            Part::AttributeOrUserId(name) => self.has_user_id || self.attributes.contains(name),
        };
        is_hashed.then_some(&self.hasher)
    }

    /// Returns the hasher of the entries of descriptors with this key; `None` if their values stay
    /// readable.
    pub fn hasher_of_entry(&self, key: &str) -> Option<&KeyHasher> {
        let is_hashed = match key {
            "user_id" if self.has_user_id => true,
            "resource" if self.has_resource => true,
            key => self.attributes.contains(key),
        };
        is_hashed.then_some(&self.hasher)
    }
}

/// How values become parts of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hashing<'a> {
    /// They stay readable.
    Off,
    /// Values of requests are hashed where the parts say so, whatever they look like.
    Values(&'a HashedParts),
    /// As before, except that a value which is shown as a hash is one: the parts of a key that
    /// somebody names.
    Shown(&'a HashedParts),
}

impl<'a> Hashing<'a> {
    pub(crate) fn parts(self) -> Option<&'a HashedParts> {
        match self {
            Self::Off => None,
            Self::Values(parts) | Self::Shown(parts) => Some(parts),
        }
    }

    /// Returns the hash of a value that is to be hashed.
    pub(super) fn hash(self, hasher: &KeyHasher, value: &str) -> HashedValue {
        let named = match self {
            Self::Off | Self::Values(_) => None,
            Self::Shown(_) => HashedValue::from_shown(value),
        };
        named.unwrap_or_else(|| hasher.hash(value))
    }

    /// Returns the hash of an entry's value; `None` if it stays readable.
    pub(super) fn hash_entry(self, key: &str, value: &str) -> Option<HashedValue> {
        let hasher = self.parts()?.hasher_of_entry(key)?;
        Some(self.hash(hasher, value))
    }

    /// Returns `true` if the value of an entry is shown as a hash.
    pub(crate) fn names_hash(self, key: &str, value: &str) -> bool {
        let Self::Shown(parts) = self else { return false };
        parts.hasher_of_entry(key).is_some() && HashedValue::from_shown(value).is_some()
    }

    /// Returns the text of a part's value for callers.
    pub(crate) fn show(self, part: &Part, value: &str) -> String {
        match self.parts().and_then(|parts| parts.hasher_of(part)) {
            Some(hasher) => self.hash(hasher, value).shown(),
            None => value.to_owned(),
        }
    }
}

/// Two sets are equal if they hash the same parts by the same hasher, not by an equal one.
impl PartialEq for HashedParts {
    fn eq(&self, other: &Self) -> bool {
        let parts = |set: &Self| (set.has_user_id, set.has_resource, set.attributes.clone());
        Arc::ptr_eq(&self.hasher.0, &other.hasher.0) && parts(self) == parts(other)
    }
}

impl Eq for HashedParts {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_value_is_base_32() {
        // RFC 4648 section 10 for the first bytes, then zeros.
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(b"foobar");
        assert_eq!(HashedValue::from_bytes(bytes).as_str(), "mzxw6ytboiaaaaaaaaaaaaaaaa");
        assert_eq!(HashedValue::from_bytes([0xff; 16]).as_str(), "77777777777777777777777774");
        let hashed = HashedValue::from_bytes([1; 16]);
        assert_eq!(HashedValue::show_hashed(hashed.as_str()), Some(hashed.shown()));
        assert_eq!(HashedValue::from_shown(&hashed.shown()), Some(hashed));
        assert_eq!(HashedValue::from_shown(hashed.as_str()), None);
        for other in ["", "alice", "MZXW6YTBOIAAAAAAAAAAAAAAAA", "mzxw6ytboiaaaaaaaaaaaaaaa1"] {
            assert_eq!(HashedValue::show_hashed(other), None, "{other}");
            assert_eq!(HashedValue::from_shown(other), None, "{other}");
        }
    }

    #[test]
    fn parts_are_hashed_by_name() {
        let attribute = |name: &str| Part::Attribute(name.to_owned());
        let or_user = |name: &str| Part::AttributeOrUserId(name.to_owned());
        let hasher = KeyHasher::new(|_| [0; 16]);
        let parts = HashedParts::new(hasher.clone(), [attribute("api_key")]);
        assert!(parts.hasher_of(&attribute("api_key")).is_some());
        assert!(parts.hasher_of(&or_user("api_key")).is_some());
        assert!(parts.hasher_of_entry("api_key").is_some());
        for part in [Part::UserId, Part::Resource, attribute("ip"), or_user("ip")] {
            assert!(parts.hasher_of(&part).is_none(), "{part:?}");
        }
        assert!(parts.hasher_of_entry("user_id").is_none());
        let users = HashedParts::new(hasher, [Part::UserId]);
        assert!(users.hasher_of(&or_user("ip")).is_some());
        assert!(users.hasher_of_entry("user_id").is_some());
        assert!(users.hasher_of_entry("user").is_none());
    }
}
