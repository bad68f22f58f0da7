//! The note of an override: who set it, when and why. Stores keep it and do not read it.

use prost::Message;

use super::change::MAX_REASON;
use rlaas_core::clock::{Clock, Timestamp};

/// Most bytes of an actor in a note.
const MAX_ACTOR: usize = 1024;

/// A note. Its encoding never changes: newer versions may add fields.
#[derive(Clone, PartialEq, Message)]
pub struct Note {
    /// Time by the clock of the machine, in microseconds since the Unix epoch.
    #[prost(uint64, tag = "1")]
    pub created_at_us: u64,
    /// The caller.
    #[prost(string, tag = "2")]
    pub actor: String,
    /// The reason.
    #[prost(string, tag = "3")]
    pub reason: String,
}

impl Note {
    /// Creates a note of at most
    /// [`OverrideChange::MAX_NOTE`](rlaas_core::control::OverrideChange::MAX_NOTE) bytes.
    pub fn new(created_at: Timestamp, actor: &str, reason: &str) -> Self {
        let end = (0..=MAX_ACTOR.min(actor.len())).rev().find(|at| actor.is_char_boundary(*at));
        Self {
            created_at_us: created_at.as_micros(),
            actor: actor[..end.unwrap_or_default()].to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Returns the bytes of the note of an override that is set now. A reason that is too long is cut:
    /// it is refused with the rest of the change.
    pub fn of_new_override(actor: &str, reason: &str) -> Vec<u8> {
        let end = reason.floor_char_boundary(MAX_REASON);
        Self::new(Clock::default().now(), actor, &reason[..end]).encode_to_vec()
    }

    /// Reads the note of an override. One that was not written by the service is empty.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::decode(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaas_core::control::OverrideChange;

    #[test]
    fn longest_note_fits() {
        let (actor, reason) = ("é".repeat(5_000), "\0".repeat(1_024));
        let note = Note::new(Timestamp::from_micros(u64::MAX), &actor, &reason);
        let bytes = note.encode_to_vec();
        assert!(bytes.len() <= OverrideChange::MAX_NOTE, "{}", bytes.len());
        assert_eq!(Note::from_bytes(&bytes), note);
        assert_eq!((&*note.actor, note.reason.len()), (&*"é".repeat(512), 1_024));
        assert_eq!(Note::from_bytes(b"\xff"), Note::default());
    }
}
