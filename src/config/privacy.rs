//! The section `privacy`: the parts of keys that are hashed, and the key of the hash.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use figment::value::Value;

use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, Read};
use super::watch::FileSnapshot;
use crate::rules::{HashedParts, KeyHasher, Part, Request, RuleSet};
use rlaas_telemetry::keyed;

/// Number of bytes of a key.
const MIN_KEY: usize = 32;
const MAX_KEY: usize = 4096;
/// Maximum number of parts.
const MAX_PARTS: usize = 100;

const PRIVACY: Setting =
    Setting::new("privacy", "Hashed ids: what names a person need not stand in the store.");
const HASH: Setting = Setting::new(
    "hash",
    "Parts of keys whose values are hashed in Redis, the journal, the audit and in top keys: \
     user_id, resource or attributes.NAME. Entries of Envoy's descriptors with the key NAME are \
     hashed, too. Requires key-file. Names of rules stay readable. Reloaded; a change starts the \
     state of these keys afresh.",
);
const KEY_FILE: Setting = Setting::new(
    "key-file",
    "File with the secret key of the hash, 32 to 4096 bytes, the same for all instances: openssl \
     rand -hex 32. Reloaded when it changes; a new key starts the state of hashed keys afresh. \
     Without it the audit hashes by a random key that is kept in the store.",
)
.example("/etc/rlaas/privacy.key");

/// The settings of the section.
#[derive(Clone, Debug, Default)]
pub struct PrivacySettings {
    /// Parts whose values are hashed in keys.
    pub parts: Vec<Part>,
    /// The hash by the key of the file, if there is one.
    pub hasher: Option<KeyHasher>,
}

impl PrivacySettings {
    /// Sets the hashed parts of the rules.
    pub(super) fn apply(&self, rules: RuleSet) -> RuleSet {
        match &self.hasher {
            Some(hasher) if !self.parts.is_empty() => {
                rules.with_hashed_parts(HashedParts::new(hasher.clone(), self.parts.clone()))
            }
            _ => rules,
        }
    }

    /// Returns `true` if these settings make other keys than `other`.
    pub fn makes_other_keys(&self, other: &Self) -> bool {
        let parts = |settings: &Self| {
            let mut parts = settings.parts.clone();
            parts.sort();
            parts.dedup();
            parts
        };
        let hash = |settings: &Self| settings.hasher.as_ref().map(|hasher| hasher.hash(""));
        parts(self) != parts(other) || !self.parts.is_empty() && hash(self) != hash(other)
    }
}

/// Reads the section. Also returns a snapshot of the file, taken before it was read.
pub(super) fn read(root: &mut Section<'_>) -> (PrivacySettings, Option<FileSnapshot>) {
    let mut section = root.section(PRIVACY);
    let parts = section.read(HASH, "", parts);
    let file = section.optional(KEY_FILE, values::path);
    let snapshot = file.as_deref().map(FileSnapshot::take);
    let hasher = file.and_then(|file| {
        let key = key_in(&file).map_err(|invalid| section.refuse(KEY_FILE.key, invalid));
        key.ok().map(|key| keyed(&key))
    });
    if !parts.is_empty() && !section.has(KEY_FILE.key) {
        section.refuse(HASH.key, Invalid::new("requires privacy.key-file"));
    }
    section.close();
    (PrivacySettings { parts, hasher }, snapshot)
}

pub(super) fn parts(value: &Value) -> Read<Vec<Part>> {
    const VALID: &str = "must be a list of user_id, resource and attributes.NAME";
    let texts = values::any_listed(value).map_err(|_| Invalid::new(VALID))?;
    let part = |text: &String| match (text.as_str(), text.strip_prefix("attributes.")) {
        ("user_id", _) => Some(Part::UserId),
        ("resource", _) => Some(Part::Resource),
        (_, Some(name)) if (1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len()) => {
            Some(Part::Attribute(name.to_owned()))
        }
        _ => None,
    };
    let parts: Option<Vec<Part>> = texts.iter().map(part).collect();
    let parts = parts.filter(|parts| parts.len() <= MAX_PARTS).ok_or(Invalid::new(VALID))?;
    Ok((parts, format!("[{}]", texts.join(", "))))
}

/// Reads the key in a file, without white space at its end.
fn key_in(file: &Path) -> Result<Vec<u8>, Invalid> {
    let mut key = Vec::new();
    // One more than fits, to tell a key that is too long.
    let most = MAX_KEY as u64 + 1;
    let read = File::open(file).and_then(|file| file.take(most).read_to_end(&mut key));
    read.map_err(|_| Invalid::new("must be the path of a file that can be read"))?;
    let key = if key.len() <= MAX_KEY { key.trim_ascii_end() } else { &key };
    if (MIN_KEY..=MAX_KEY).contains(&key.len()) {
        Ok(key.to_owned())
    } else {
        Err(Invalid::new("must be a file of 32 to 4096 bytes: openssl rand -hex 32"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_hmac_sha_256() {
        // RFC 4231 section 4.3: the first 128 bits, 5bdcc146bf60754e6a042426089575c7.
        let hash = keyed(b"Jefe").hash("what do ya want for nothing?");
        assert_eq!(hash.as_str(), "lpomcrv7mb2u42qeeqtarflvy4");
    }

    #[test]
    fn other_parts_and_another_key_make_other_keys() {
        let settings = |parts: &[Part], key: Option<&[u8]>| PrivacySettings {
            parts: parts.to_vec(),
            hasher: key.map(keyed),
        };
        let users = settings(&[Part::UserId], Some(b"one"));
        assert!(!users.makes_other_keys(&settings(&[Part::UserId, Part::UserId], Some(b"one"))));
        assert!(users.makes_other_keys(&settings(&[Part::UserId], Some(b"two"))));
        assert!(users.makes_other_keys(&settings(&[Part::Resource], Some(b"one"))));
        assert!(users.makes_other_keys(&settings(&[], None)));
        // A key that hashes nothing makes no difference.
        assert!(!settings(&[], Some(b"one")).makes_other_keys(&settings(&[], None)));
    }
}
