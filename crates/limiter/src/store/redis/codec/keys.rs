//! Names of keys in Redis, and their cluster slots.

use std::fmt::Write;

use crate::fleet::Catalogue;
use crate::rules::Key;
use crate::store::redis::settings::KeyPrefix;

/// Number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Format of key names.
#[derive(Clone, Debug)]
pub(crate) struct KeyFormat {
    prefix: KeyPrefix,
    hash_tag: HashTag,
}

/// Hash tag of a key, which selects its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashTag {
    /// `rlaas:rate_limit:alice`
    None,
    /// `rlaas:rate_limit:{alice}`: in a cluster all state of one id is in one slot.
    Id,
}

impl KeyFormat {
    pub(crate) fn new(prefix: KeyPrefix, hash_tag: HashTag) -> Self {
        Self { prefix, hash_tag }
    }

    /// Writes the name of a key in Redis.
    pub(crate) fn write(&self, key: &Key, text: &mut String) {
        text.extend([self.prefix.as_str(), ":"]);
        match key.rule() {
            "" => text.push_str("rate_limit:"),
            rule => text.extend(["rule:", rule, ":"]),
        }
        match self.hash_tag {
            HashTag::None => text.push_str(key.id()),
            HashTag::Id => text.extend(["{", tag(key), "}"]),
        }
    }

    /// Returns the key, or the channel, of a name of a fleet. Braces are encoded, so that in a
    /// cluster the whole key selects the slot.
    pub(crate) fn fleet_key(&self, name: &str) -> String {
        let mut key = format!("{}:", self.prefix);
        for character in name.chars() {
            if matches!(character, '%' | '{' | '}') || character.is_control() {
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    let _infallible = write!(key, "%{byte:02X}");
                }
            } else {
                key.push(character);
            }
        }
        key
    }

    /// Returns the keys of the catalogue for an operation on a document, all in one slot: see
    /// `lua/catalogue.lua`.
    pub(crate) fn catalogue_keys(&self, document: &str) -> [String; 6] {
        let head = self.fleet_key(Catalogue::TOPIC);
        let below = |name: &str| format!("{{{head}}}:{name}");
        let (document, history) = (format!("document:{document}"), format!("history:{document}"));
        let others = ["revisions", "replaced", "changes", &document, &history].map(below);
        let [ids, replaced, changes, document, history] = others;
        [head, ids, replaced, changes, document, history]
    }

    /// Returns the slot of a key of a fleet; 0 without a cluster.
    pub(crate) fn fleet_slot(&self, key: &str) -> u16 {
        match self.hash_tag {
            HashTag::None => 0,
            HashTag::Id => crc16(key.as_bytes()) % SLOTS,
        }
    }

    /// Writes the name of the hash with the overrides of an id, in the slot of its states.
    pub(crate) fn write_control(&self, key: &Key, text: &mut String) {
        text.push_str(&self.control_prefix());
        match self.hash_tag {
            HashTag::None => text.push_str(key.id()),
            HashTag::Id => text.extend(["{", tag(key), "}"]),
        }
    }

    /// Returns the beginning of the names of hashes with overrides.
    pub(crate) fn control_prefix(&self) -> String {
        format!("{}:control:", self.prefix.as_str())
    }

    /// Returns the id in the name of a hash with overrides.
    pub(crate) fn controlled_id<'n>(&self, name: &'n str) -> Option<&'n str> {
        let id = name.strip_prefix(&self.control_prefix())?;
        match self.hash_tag {
            HashTag::None => Some(id),
            HashTag::Id => match id.strip_prefix('{')?.strip_suffix('}')? {
                EMPTY_TAG => Some(""),
                id => Some(id),
            },
        }
    }

    /// Writes the name of the record of a request id, in the slot of the request's first key.
    pub(crate) fn write_once(&self, first: &Key, id: u128, text: &mut String) {
        text.extend([self.prefix.as_str(), ":once:"]);
        match self.hash_tag {
            HashTag::None => text.push_str(first.id()),
            HashTag::Id => text.extend(["{", tag(first), "}"]),
        }
        write!(text, ":{id:032x}").expect("writing to a string does not fail");
    }

    /// Returns the slot of a key; 0 without a cluster.
    pub(crate) fn slot(&self, key: &Key) -> u16 {
        match self.hash_tag {
            HashTag::None => 0,
            HashTag::Id => crc16(tag(key).as_bytes()) % SLOTS,
        }
    }
}

/// Stands for an empty id in a hash tag.
const EMPTY_TAG: &str = "%%";

/// Returns the hash tag. Redis ignores an empty one, so an empty id becomes `%%`, which no encoded
/// id equals.
fn tag(key: &Key) -> &str {
    if key.id().is_empty() { EMPTY_TAG } else { key.id() }
}

/// CRC-16/XMODEM.
///
/// **Source:** Redis cluster specification, "Hash tags" and appendix A.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_fleet_are_encoded_without_collisions() {
        let format = KeyFormat::new(KeyPrefix::default(), HashTag::Id);
        assert_eq!(format.fleet_key("top:pay"), "rlaas:top:pay");
        assert_eq!(format.fleet_key("{a}%\n\u{85}"), "rlaas:%7Ba%7D%25%0A%C2%85");
        assert_eq!(format.fleet_slot("rlaas:audit"), crc16(b"rlaas:audit") % SLOTS);
        assert_eq!(KeyFormat::new(KeyPrefix::default(), HashTag::None).fleet_slot("a"), 0);
    }

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
    }
}
