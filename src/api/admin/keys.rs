//! Keys as a caller may see them: in clear with the role `operate`, else hashed.

use rlaas_proto::ratelimit::admin::v1 as proto;

use super::messages::key_part;
use crate::plan::KeyPart;
use crate::rules::KeyHasher;

/// How a caller sees keys.
#[derive(Clone, Debug)]
pub(super) enum KeyView {
    /// As they are.
    Clear,
    /// As `#` and 26 characters, by this hasher.
    Hashed(KeyHasher),
}

impl KeyView {
    /// Returns the message of a key.
    pub(super) fn key(&self, parts: Vec<KeyPart>, id: &str) -> proto::KeyRef {
        let mut key = proto::KeyRef {
            parts: parts.into_iter().map(key_part).collect(),
            id: id.to_owned(),
            storage_key: String::new(),
        };
        if let Self::Hashed(hasher) = self {
            for value in key.parts.iter_mut().filter_map(|part| part.value.as_mut()) {
                *value = hasher.shown(value);
            }
            if !key.id.is_empty() {
                key.id = hasher.shown(&key.id);
            }
        }
        key
    }
}
