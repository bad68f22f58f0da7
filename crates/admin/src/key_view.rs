//! Keys as a caller may see them: in clear with the role `operate`, else hashed.

use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::Status;

use super::messages::{hide_values, key_part};
use super::{MAX_TIME, SharedHasher, refusals};
use rlaas_core::clock::Deadline;
use rlaas_core::plan::KeyPart;
use rlaas_core::rules::KeyHasher;

/// How a caller sees keys.
#[derive(Clone, Debug)]
pub enum KeyView {
    /// As they are.
    Clear,
    /// As `#` and 26 characters, by this hasher.
    Hashed(KeyHasher),
}

impl KeyView {
    /// Returns the view of callers who may not see ids, by the hasher in force.
    ///
    /// # Errors
    ///
    /// A refusal if the store does not answer.
    pub async fn hashed(hasher: &SharedHasher, deadline: Deadline) -> Result<Self, Status> {
        // Boxed because it is large, and waits at most once in the life of a process.
        let hasher = Box::pin(hasher.hasher(deadline.or_within(MAX_TIME))).await;
        Ok(Self::Hashed(hasher.map_err(|error| refusals::store(&error))?))
    }

    /// Follows a reload of the key by which ids are hashed.
    ///
    /// # Errors
    ///
    /// As [`KeyView::hashed`].
    pub async fn follow(&mut self, hasher: &SharedHasher) -> Result<(), Status> {
        if let Self::Hashed(_) = self {
            *self = Self::hashed(hasher, Deadline::NEVER).await?;
        }
        Ok(())
    }

    /// Returns the message of a key.
    pub fn key(&self, parts: Vec<KeyPart>, id: &str) -> proto::KeyRef {
        let mut key = proto::KeyRef {
            parts: parts.into_iter().map(key_part).collect(),
            id: id.to_owned(),
            storage_key: String::new(),
        };
        if let Self::Hashed(hasher) = self {
            // Before the id is hashed: it tells which values are hashes.
            hide_values(&mut key, hasher);
            if !key.id.is_empty() {
                key.id = hasher.shown(&key.id);
            }
        }
        key
    }
}
