//! Changes: named values that are put or deleted, and the values that are left after all of them.

use std::collections::HashMap;

use super::JournalError;
use super::frame::MAX_PAYLOAD_LEN;
use crate::clock::Timestamp;

/// Maximum length of the changes of one call, in bytes: names, values, and 18 bytes for each.
pub const MAX_CHANGE_LEN: usize = MAX_PAYLOAD_LEN;

const PUT: u8 = 1;
const DELETE: u8 = 2;

/// A set of names in the journal. Each belongs to one part of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Space(u8);

impl Space {
    /// Grants of single keys: overrides and bans.
    pub const CONTROL: Self = Self(1);
    /// Entries of the audit.
    pub const AUDIT: Self = Self(2);
    /// Single values, such as the secret of the fleet.
    pub const VALUES: Self = Self(3);
    /// Records of request ids.
    pub const ONCE: Self = Self(4);
    /// Documents of the catalogue.
    pub const CATALOGUE: Self = Self(5);
    /// Registers of the fleet.
    pub const REGISTERS: Self = Self(6);
    /// Entries of the audit that are of a project.
    pub const PROJECT_AUDITS: Self = Self(7);
}

/// A change of one value.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Sets a value.
    Put {
        /// Set of names.
        space: Space,
        /// Name within the space.
        name: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// Time from which the value makes no difference and is not restored. `None`: never.
        expires_at: Option<Timestamp>,
    },
    /// Deletes a value, if there is one.
    Delete {
        /// Set of names.
        space: Space,
        /// Name within the space.
        name: &'a [u8],
    },
}

impl<'a> Change<'a> {
    fn spaced_name(&self) -> (Space, &'a [u8]) {
        match *self {
            Self::Put { space, name, .. } | Self::Delete { space, name } => (space, name),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let (operation, (Space(space), name)) = match self {
            Self::Put { .. } => (PUT, self.spaced_name()),
            Self::Delete { .. } => (DELETE, self.spaced_name()),
        };
        out.extend_from_slice(&[operation, space]);
        push_bytes(out, name);
        if let Self::Put { value, expires_at, .. } = self {
            // No value ends at the epoch.
            let expires_at = expires_at.map_or(0, |at| at.as_micros().max(1));
            out.extend_from_slice(&expires_at.to_le_bytes());
            push_bytes(out, value);
        }
    }

    /// Removes one change from the start of `bytes`. `None` if they are not a change.
    fn decode(bytes: &mut &'a [u8]) -> Option<Self> {
        let [operation, space] = *take(bytes, 2)? else { return None };
        let (space, name) = (Space(space), take_bytes(bytes)?);
        match operation {
            PUT => {
                let expires_at = u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?);
                let expires_at = (expires_at != 0).then(|| Timestamp::from_micros(expires_at));
                Some(Self::Put { space, name, value: take_bytes(bytes)?, expires_at })
            }
            DELETE => Some(Self::Delete { space, name }),
            _ => None,
        }
    }
}

/// Returns the payload of a frame with these changes.
pub(super) fn encode(changes: &[Change<'_>]) -> Result<Vec<u8>, JournalError> {
    let mut payload = Vec::new();
    for change in changes {
        change.encode(&mut payload);
    }
    if payload.len() > MAX_CHANGE_LEN {
        return Err(JournalError::TooLarge { len: payload.len() });
    }
    Ok(payload)
}

/// Returns the changes of a frame. Ends at one that is not readable.
pub(super) fn decode(mut payload: &[u8]) -> impl Iterator<Item = Change<'_>> {
    std::iter::from_fn(move || Change::decode(&mut payload))
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Longer ones exceed the maximum of a frame.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

pub(super) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?);
    take(bytes, len as usize)
}

/// A value that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredValue {
    /// Name within its space.
    pub name: Box<[u8]>,
    /// The value.
    pub value: Box<[u8]>,
    /// Time from which it makes no difference.
    pub expires_at: Option<Timestamp>,
}

/// A space, and a name within it.
type SpacedName = (Space, Box<[u8]>);

/// The values that a journal held when it was opened.
#[derive(Debug, Default)]
pub(super) struct Restored {
    values: HashMap<SpacedName, (u64, RestoredValue)>,
    /// Number of puts so far.
    puts: u64,
}

impl Restored {
    pub(super) fn apply(&mut self, change: &Change<'_>) {
        let (space, name) = change.spaced_name();
        let key = (space, Box::from(name));
        match *change {
            Change::Put { value, expires_at, .. } => {
                self.puts += 1;
                let value = RestoredValue { name: name.into(), value: value.into(), expires_at };
                self.values.insert(key, (self.puts, value));
            }
            Change::Delete { .. } => _ = self.values.remove(&key),
        }
    }

    pub(super) fn remove_expired(&mut self, now: Timestamp) {
        self.values.retain(|_, (_, value)| value.expires_at.is_none_or(|at| at > now));
    }

    pub(super) fn has(&self, space: Space, name: &[u8]) -> bool {
        self.values.contains_key(&(space, name.into()))
    }

    /// Removes and returns the values of a space, in the order in which they were put last.
    pub(super) fn take(&mut self, space: Space) -> Vec<RestoredValue> {
        let values = self.values.extract_if(|(own, _), _| *own == space).collect();
        Self { values, puts: 0 }.into_ordered().map(|(_, value)| value).collect()
    }

    /// Returns the values in the order in which they were put last.
    pub(super) fn into_ordered(self) -> impl Iterator<Item = (Space, RestoredValue)> {
        let mut values: Vec<_> = self.values.into_iter().collect();
        values.sort_unstable_by_key(|(_, (put, _))| *put);
        values.into_iter().map(|((space, _), (_, value))| (space, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_were_written() {
        let expires_at = Some(Timestamp::from_millis(5));
        let put = |name, value, expires_at| Change::Put {
            space: Space::CONTROL,
            name,
            value,
            expires_at,
        };
        let changes = [
            put(b"a\0b", b"", None),
            put(b"", b"{\n}", expires_at),
            Change::Delete { space: Space::AUDIT, name: b"a" },
        ];
        let payload = encode(&changes).expect("few bytes");
        let read: Vec<_> = decode(&payload).collect();
        assert_eq!(format!("{read:?}"), format!("{changes:?}"));
        for len in 0..payload.len() {
            assert!(decode(&payload[..len]).count() < changes.len(), "cut at {len}");
        }
    }

    #[test]
    fn changes_above_the_maximum_are_refused() {
        let value = vec![0; MAX_CHANGE_LEN - 18];
        let put = |name| Change::Put { space: Space::AUDIT, name, value: &value, expires_at: None };
        assert_eq!(encode(&[put(b"")]).expect("the maximum").len(), MAX_CHANGE_LEN);
        let error = encode(&[put(b"a")]).expect_err("one byte more");
        assert!(matches!(error, JournalError::TooLarge { len } if len == MAX_CHANGE_LEN + 1));
    }

    #[test]
    fn the_last_change_of_a_name_counts() {
        let mut restored = Restored::default();
        let put = |name, value| Change::Put { space: Space::VALUES, name, value, expires_at: None };
        let delete = |name| Change::Delete { space: Space::VALUES, name };
        for change in [
            put(b"a", b"1"),
            put(b"b", b"2"),
            put(b"c", b"3"),
            put(b"a", b"4"),
            delete(b"b"),
            Change::Delete { space: Space::AUDIT, name: b"c" },
        ] {
            restored.apply(&change);
        }
        let values = restored.take(Space::VALUES);
        let values: Vec<_> = values.iter().map(|one| (&*one.name, &*one.value)).collect();
        assert_eq!(values, [(&b"c"[..], &b"3"[..]), (b"a", b"4")]);
        assert!(restored.take(Space::VALUES).is_empty());
    }
}
