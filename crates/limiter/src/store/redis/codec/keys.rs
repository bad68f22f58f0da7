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
    /// `rlaas:rate_limit:alice`, or `rlaas:p:shop:rate_limit:alice` in a project.
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
        self.write_project(key, text);
        match key.rule() {
            "" => text.push_str("rate_limit:"),
            rule => text.extend(["rule:", rule, ":"]),
        }
        self.write_id(key, text);
    }

    /// Writes the beginning of all names of a key's project.
    fn write_project(&self, key: &Key, text: &mut String) {
        text.extend([self.prefix.as_str(), ":"]);
        match key.project() {
            "" => {}
            project => text.extend([PROJECT, project, ":"]),
        }
    }

    fn write_id(&self, key: &Key, text: &mut String) {
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

    /// Returns the key of the log that a project has of its own, beside that of all projects. In a
    /// cluster the key of that one is its hash tag, so that one script writes both.
    pub(crate) fn project_log_key(&self, log: &str, project: &str) -> String {
        let project = Key::encoded_project(project);
        let own = self.fleet_key(log);
        let log = &own[self.prefix.as_str().len() + 1..];
        let tag = match self.hash_tag {
            HashTag::None => String::new(),
            HashTag::Id => format!(":{{{own}}}"),
        };
        format!("{}:{PROJECT}{project}:{log}{tag}", self.prefix)
    }

    /// Returns the keys of the catalogue for an operation on a document, all in one slot: see
    /// `lua/catalogue.lua`.
    /// `generation` is empty for the first one.
    pub(crate) fn catalogue_keys(&self, generation: &str, document: &str) -> [String; 11] {
        let head = self.fleet_key(Catalogue::TOPIC);
        let below = |name: &str| format!("{{{head}}}:{name}");
        let separator = if generation.is_empty() { "" } else { ":" };
        let of_generation = |name: &str| below(&format!("{generation}{separator}{name}"));
        [
            head.clone(),
            below("revisions"),
            of_generation("changes"),
            of_generation("documents"),
            of_generation(&format!("document:{document}")),
            below(&format!("history:{document}")),
            below("conflict"),
            below("unused"),
            below("removed"),
            below("ended"),
            below("ended-ids"),
        ]
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
        self.write_project(key, text);
        text.push_str(CONTROL);
        self.write_id(key, text);
    }

    /// Returns the beginning and the rest of a pattern that matches the names of all hashes with
    /// overrides. It also matches others: see [`KeyFormat::controlled`].
    pub(crate) fn control_pattern(&self) -> (String, String) {
        (format!("{}:", self.prefix.as_str()), format!("*{CONTROL}*"))
    }

    /// Returns the project and the id in the name of a hash with overrides. `None` if it is another
    /// name.
    pub(crate) fn controlled<'n>(&self, name: &'n str) -> Option<(&'n str, &'n str)> {
        let name = name.strip_prefix(self.prefix.as_str())?.strip_prefix(':')?;
        let (project, name) = match name.strip_prefix(PROJECT) {
            // Encoded ids of projects have no colon.
            Some(rest) => rest.split_once(':')?,
            None => ("", name),
        };
        let id = name.strip_prefix(CONTROL)?;
        match self.hash_tag {
            HashTag::None => Some((project, id)),
            HashTag::Id => match id.strip_prefix('{')?.strip_suffix('}')? {
                EMPTY_TAG => Some((project, "")),
                id => Some((project, id)),
            },
        }
    }

    /// Writes the name of the record of a request id, in the slot of the request's first key.
    pub(crate) fn write_once(&self, first: &Key, id: u128, text: &mut String) {
        self.write_project(first, text);
        text.push_str("once:");
        self.write_id(first, text);
        write!(text, ":{id:032x}").expect("writing to a string does not fail");
    }

    /// Writes the name of the settlement of a reservation, in the slot of the first key that it holds.
    pub(crate) fn write_reservation(&self, first: &Key, number: u128, text: &mut String) {
        self.write_project(first, text);
        text.push_str("reservation:");
        self.write_id(first, text);
        write!(text, ":{number:032x}").expect("writing to a string does not fail");
    }

    /// Returns the slot of a key; 0 without a cluster.
    pub(crate) fn slot(&self, key: &Key) -> u16 {
        match self.hash_tag {
            HashTag::None => 0,
            HashTag::Id => crc16(tag(key).as_bytes()) % SLOTS,
        }
    }
}

/// Names of a project begin with this after the prefix, then its id and a colon.
const PROJECT: &str = "p:";

/// Names of hashes with overrides have this before the id.
const CONTROL: &str = "control:";

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
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, Limit};
    use crate::clock::Micros;
    use crate::plan::Plan;
    use crate::rules::{Part, Request, Rule, RuleSet};

    #[test]
    fn names_of_a_fleet_are_encoded_without_collisions() {
        let format = KeyFormat::new(KeyPrefix::default(), HashTag::Id);
        assert_eq!(format.fleet_key("top:pay"), "rlaas:top:pay");
        assert_eq!(format.fleet_key("{a}%\n\u{85}"), "rlaas:%7Ba%7D%25%0A%C2%85");
        assert_eq!(format.fleet_slot("rlaas:audit"), crc16(b"rlaas:audit") % SLOTS);
        assert_eq!(KeyFormat::new(KeyPrefix::default(), HashTag::None).fleet_slot("a"), 0);
    }

    #[test]
    fn log_of_a_project_is_in_the_slot_of_that_of_all() {
        let [one, cluster] =
            [HashTag::None, HashTag::Id].map(|tag| KeyFormat::new(KeyPrefix::default(), tag));
        assert_eq!(one.project_log_key("audit", "shop"), "rlaas:p:shop:audit");
        assert_eq!(one.project_log_key("a:b", "c:d"), "rlaas:p:c%3Ad:a:b");
        let own = cluster.project_log_key("audit", "shop");
        assert_eq!(own, "rlaas:p:shop:audit:{rlaas:audit}");
        // A hash tag stands for the whole name.
        assert_eq!(cluster.fleet_slot("rlaas:audit"), crc16(b"rlaas:audit") % SLOTS);
    }

    #[test]
    fn name_of_overrides_has_project_and_id() {
        for tag in [HashTag::None, HashTag::Id] {
            let format = KeyFormat::new(KeyPrefix::default(), tag);
            for (project, id) in
                [("", "alice"), ("", ""), ("shop", ""), ("shop", "control:x"), ("control", "a:b")]
            {
                let key = Key::from_encoded_in(project, "pay", id);
                let (mut control, mut state) = (String::new(), String::new());
                format.write_control(&key, &mut control);
                format.write(&key, &mut state);
                assert_eq!(format.controlled(&control), Some((project, id)), "{control}");
                assert_eq!(format.controlled(&state), None, "{state}");
            }
        }
    }

    /// A project, the user and the resource of a request, and whether the default rule decides.
    type Given = (String, String, String, bool);

    fn given() -> impl Strategy<Value = Given> {
        let text = || {
            let part = prop_oneof![
                "[a:/%{}p]",
                Just("shop".to_owned()),
                Just("rlaas:p:shop:".to_owned()),
                Just("p/shop/".to_owned()),
                Just("control:".to_owned()),
                Just("once:".to_owned()),
                Just("rate_limit:".to_owned()),
                Just("rule:pay:".to_owned()),
                Just(":%limits".to_owned()),
                any::<char>().prop_map(String::from),
            ];
            prop::collection::vec(part, 1..6).prop_map(|parts| parts.concat())
        };
        (
            prop_oneof![Just(String::new()), "[a-p-]{1,2}", Just("shop".to_owned()), text()],
            text(),
            text(),
            any::<bool>(),
        )
    }

    /// Returns the key of a request by user and resource.
    fn key_of((project, user, resource, is_default): &Given) -> Key {
        let limit = Limit::new(1, Micros::from_secs(1)).expect("a valid limit");
        let key_by = vec![Part::UserId, Part::Resource];
        let default = Rule { key_by, ..Rule::new_default(Algorithm::Gcra, limit) };
        let pay = (!is_default).then(|| Rule { name: "pay".into(), ..default.clone() });
        let rules = RuleSet::new(default, pay.into_iter().collect()).in_project(project);
        let request = Request::user(user).resource(resource).build().expect("a valid request");
        Plan::for_request(&rules, &request).hits.swap_remove(0).key
    }

    fn names_of(format: &KeyFormat, key: &Key) -> [String; 5] {
        let [mut state, mut control, mut once] = [const { String::new() }; 3];
        format.write(key, &mut state);
        format.write_control(key, &mut control);
        format.write_once(key, 7, &mut once);
        [format!("{state}:%limits"), format!("{state}:28333335"), state, control, once]
    }

    fn cases() -> ProptestConfig {
        let is_long = std::env::var_os("SOAK").is_some();
        ProptestConfig::with_cases(if is_long { 1_000_000 } else { 100 })
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn no_id_leaves_the_names_of_its_project(one in given(), other in given()) {
            let (key, other_key) = (key_of(&one), key_of(&other));
            prop_assert_eq!(one == other, key == other_key);
            prop_assert_eq!(key.project_name(), Some(one.0.clone()));
            let text = str::from_utf8(key.as_bytes()).expect("keys are text");
            prop_assert_eq!(Key::from_text(text), Some(key.clone()));
            for tag in [HashTag::None, HashTag::Id] {
                let format = KeyFormat::new(KeyPrefix::default(), tag);
                let (names, others) = (names_of(&format, &key), names_of(&format, &other_key));
                let start = match key.project() {
                    "" => "rlaas:r rlaas:c rlaas:o".to_owned(),
                    project => format!("rlaas:p:{project}:"),
                };
                for name in &names {
                    prop_assert!(start.split(' ').any(|start| name.starts_with(start)), "{name}");
                }
                prop_assert_eq!(format.controlled(&names[3]), Some((key.project(), key.id())));
                if one.0 != other.0 {
                    prop_assert!(!names.iter().any(|name| others.contains(name)), "{names:?}");
                }
                if (&one.1, &one.2) == (&other.1, &other.2) {
                    prop_assert_eq!(format.slot(&key), format.slot(&other_key));
                }
            }
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
    }
}
