//! Changes of keys, told to the deny caches of all instances.
//!
//! The instance that changes a key makes its own cache forget it at once, and publishes the key to the
//! others.
//! A message may get lost, so nothing depends on it: a cached denial is never older than
//! `deny-cache.max-age`, and that is the time by which every instance decides by the change.

use tracing::debug;

use super::{DenyCache, Limiter};
use crate::clock::{Deadline, SystemClock, Timestamp};
use crate::fleet::{Fleet, FleetEvent};
use crate::rules::Key;
use crate::store::StoreError;

/// Topic of the messages: each has keys, every one with its length in two bytes before it.
pub const FORGET_TOPIC: &str = "forget";

impl Limiter {
    /// Returns the time, by the clock of this machine, from which no instance decides by the state
    /// or the grants before a change that is made now: at once without a deny cache. Every instance
    /// is taken to have the same settings.
    pub fn everywhere_by(&self) -> Timestamp {
        let now = SystemClock::new().now();
        let max_age = self.shared.deny_cache.as_ref().map(DenyCache::max_age);
        max_age.map_or(now, |max_age| now + max_age)
    }

    /// Removes cached denials of keys that were changed from the deny cache of this instance, and
    /// tells the other instances. Without a deny cache nothing is sent.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the message was not sent. The others then follow by
    /// [`Limiter::everywhere_by`] all the same.
    pub async fn forget_everywhere(
        &self,
        fleet: &Fleet,
        keys: &[&Key],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let Some(cache) = &self.shared.deny_cache else { return Ok(()) };
        let mut message = Vec::new();
        for key in keys {
            cache.forget(key);
            if !fleet.is_shared() || !DenyCache::may_have(key) {
                continue;
            }
            if message.len() + 2 + key.as_bytes().len() > crate::fleet::MAX_VALUE_LEN {
                fleet.publish(FORGET_TOPIC, &std::mem::take(&mut message), deadline).await?;
            }
            push(&mut message, key);
        }
        if message.is_empty() {
            return Ok(());
        }
        fleet.publish(FORGET_TOPIC, &message, deadline).await
    }

    /// Forgets the keys that other instances publish, for ever. Without a deny cache, or alone, it
    /// makes no connection.
    pub async fn follow_forgotten(&self, fleet: &Fleet) {
        let Some(cache) = self.shared.deny_cache.as_ref().filter(|_| fleet.is_shared()) else {
            return std::future::pending().await;
        };
        let mut messages = fleet.subscribe(FORGET_TOPIC);
        loop {
            match messages.next().await {
                FleetEvent::Message(message) => {
                    if let Some(keys) = keys_of(&message) {
                        for key in keys {
                            cache.forget_bytes(key);
                        }
                    } else {
                        debug!(bytes = message.len(), "message of other instances is malformed");
                        cache.clear();
                    }
                }
                FleetEvent::Gap => {
                    cache.clear();
                    debug!("deny cache is empty: messages of other instances may be missing");
                }
            }
        }
    }
}

fn push(message: &mut Vec<u8>, key: &Key) {
    let key = key.as_bytes();
    let Ok(len) = u16::try_from(key.len()) else { return };
    message.extend_from_slice(&len.to_be_bytes());
    message.extend_from_slice(key);
}

/// Returns the keys of a message; `None` if it is malformed.
pub(crate) fn keys_of(mut message: &[u8]) -> Option<Vec<&[u8]>> {
    let mut keys = Vec::new();
    while let Some((len, rest)) = message.split_first_chunk::<2>() {
        let (key, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        keys.push(key);
        message = rest;
    }
    message.is_empty().then_some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_any_keys() {
        let keys = ["alice", "", "a:%00%0A%7B", "ä"].map(|id| Key::from_encoded("rule", id));
        let mut message = Vec::new();
        for key in &keys {
            push(&mut message, key);
        }
        let read = keys_of(&message).expect("keys");
        assert_eq!(read, keys.each_ref().map(Key::as_bytes));
        for cut in 1..message.len() {
            let whole = keys_of(&message[..cut]).is_some_and(|read| read.len() < keys.len());
            assert!(whole || keys_of(&message[..cut]).is_none(), "cut at {cut}");
        }
        assert_eq!(keys_of(b""), Some(vec![]));
    }
}
