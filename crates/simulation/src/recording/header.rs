//! The header of a recording.

use rlaas_core::clock::Timestamp;
use rlaas_core::rules::{HashedParts, KeyHasher, Part};
use serde::{Deserialize, Serialize};

use super::sample::KeySample;

/// Version of the format. Requests of version 1 have no project.
pub const VERSION: u64 = 2;

/// What a recording says of itself. Fields that a reader does not know are ignored; a change that a
/// reader must know of is a new version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// Time at which the recording began.
    #[serde(rename = "created_us")]
    pub created: Timestamp,
    /// Program that wrote it, with its version.
    pub writer: String,
    /// Whether values are recorded as they are.
    pub keys: RecordedKeys,
    /// The sample; `None` if every request was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampleHeader>,
}

/// Whether the values of requests are recorded as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedKeys {
    /// They are.
    #[default]
    Clear,
    /// The values of some parts are hashed.
    Hashed(HashedHeader),
}

/// The hash of a recording with hashed values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedHeader {
    /// Names of the parts: `user_id`, `resource`, `attributes.NAME`.
    pub parts: Vec<String>,
    /// Fingerprint of the key of the hash.
    pub key: String,
}

/// The sample of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleHeader {
    /// Share of keys, in millionths.
    pub share_ppm: u32,
    /// Parts of a request by user, resource and attributes that make its key: `user_id`, `resource`,
    /// `attributes.NAME`. The key of a descriptor is its domain and its entries.
    pub by: Vec<String>,
    /// Salt of the hash that selects keys, if it was made by one and not by a key file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
}

impl Header {
    /// Returns `true` if only a share of keys was recorded.
    pub fn is_sampled(&self) -> bool {
        self.sample.as_ref().is_some_and(|sample| sample.share_ppm < KeySample::WHOLE)
    }

    /// Returns the name of the first part of the sample that a key by `parts` lacks: a rule with such
    /// a key sees only a share of the requests of each key. `None` if it sees all of them.
    pub fn undercounted_for(&self, parts: &[Part]) -> Option<&str> {
        let sample = self.sample.as_ref().filter(|sample| sample.share_ppm < KeySample::WHOLE)?;
        let has = |name: &&String| parts.iter().any(|part| part.to_string() == **name);
        sample.by.iter().find(|name| !has(name)).map(String::as_str)
    }
}

impl HashedHeader {
    /// Returns the parts whose values are hashed, with the hash.
    pub(super) fn hashed_parts(&self, hasher: KeyHasher) -> HashedParts {
        let part = |name: &String| match name.as_str() {
            "user_id" => Some(Part::UserId),
            "resource" => Some(Part::Resource),
            name => name.strip_prefix("attributes.").map(|name| Part::Attribute(name.to_owned())),
        };
        HashedParts::new(hasher, self.parts.iter().filter_map(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_json_with_units_in_its_names() {
        let header = Header {
            created: Timestamp::from_micros(5),
            writer: "rlaas 1".to_owned(),
            keys: RecordedKeys::Hashed(HashedHeader {
                parts: vec!["user_id".to_owned()],
                key: "abc".to_owned(),
            }),
            sample: Some(SampleHeader {
                share_ppm: 10_000,
                by: vec!["user_id".to_owned()],
                salt: None,
            }),
        };
        let text = serde_json::to_string(&header).expect("no maps");
        assert_eq!(
            text,
            r#"{"created_us":5,"writer":"rlaas 1","keys":{"hashed":{"parts":["user_id"],"key":"abc"}},"sample":{"share_ppm":10000,"by":["user_id"]}}"#
        );
        assert_eq!(serde_json::from_str::<Header>(&text).expect("as written"), header);
        assert_eq!(serde_json::from_str::<Header>("{}").expect("defaults"), Header::default());
        let clear = serde_json::to_value(Header::default()).expect("no maps");
        assert_eq!(clear["keys"], "clear");
    }

    #[test]
    fn a_key_without_a_part_of_the_sample_is_undercounted() {
        let by = |by: &[&str], share_ppm| Header {
            sample: Some(SampleHeader {
                share_ppm,
                by: by.iter().map(|&name| name.to_owned()).collect(),
                salt: None,
            }),
            ..Header::default()
        };
        let tenant = || Part::Attribute("tenant".to_owned());
        let users = by(&["user_id"], 1);
        assert_eq!(users.undercounted_for(&[Part::UserId, Part::Resource]), None);
        assert_eq!(users.undercounted_for(&[Part::Resource]), Some("user_id"));
        let or_user = Part::AttributeOrUserId("user".to_owned());
        assert_eq!(users.undercounted_for(&[or_user]), Some("user_id"));
        let both = by(&["user_id", "attributes.tenant"], 1);
        assert_eq!(both.undercounted_for(&[Part::UserId]), Some("attributes.tenant"));
        assert_eq!(both.undercounted_for(&[tenant(), Part::UserId]), None);
        assert_eq!(by(&["user_id"], KeySample::WHOLE).undercounted_for(&[]), None);
        assert_eq!(Header::default().undercounted_for(&[]), None);
    }
}
