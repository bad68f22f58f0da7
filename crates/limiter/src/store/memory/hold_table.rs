//! The holds of the memory store: a bounded table, of which no holder has all. A holder is a project; all
//! callers without one are one holder.

use std::collections::{BTreeSet, HashMap};

use compact_str::CompactString;

use crate::clock::{Micros, Timestamp};
use crate::reservation::Holds;
use crate::rules::Key;

/// The last part of the table, which no holder has beside the rest: one of so many.
const LAST_PART: usize = 8;
/// Holds up to which a holder may have some of the last part.
const FEW_HOLDS: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct HoldTable {
    by_key: HashMap<CompactString, Holds>,
    by_end: KeysByEnd,
    /// By the encoded id of the project.
    holders: HashMap<Box<[u8]>, HolderKeys>,
    /// Number of holds. Some may have ended and still be counted.
    count: usize,
    max: usize,
}

/// Keys by the ends of their first holds.
type KeysByEnd = BTreeSet<(Timestamp, CompactString)>;

#[derive(Debug, Default)]
struct HolderKeys {
    by_end: KeysByEnd,
    count: usize,
}

impl HoldTable {
    pub(super) fn new(max: u32) -> Self {
        Self { max: max as usize, ..Self::default() }
    }

    /// Returns the time after which some hold of the holder has ended, or of all if it has none, if it may
    /// not have so many more now.
    pub(super) fn wait_for_space(
        &mut self,
        holder: &[u8],
        more: usize,
        time: Timestamp,
    ) -> Option<Micros> {
        if !self.has_space(holder, more) {
            self.drop_ended(time);
        }
        if self.has_space(holder, more) {
            return None;
        }
        let own = self.holders.get(holder).and_then(|holds| holds.by_end.first());
        let first = own.or(self.by_end.first()).map_or(time, |(end, _)| *end);
        Some(first.since(time).max(Micros::from_micros(1)))
    }

    fn has_space(&self, holder: &[u8], more: usize) -> bool {
        let own = self.holders.get(holder).map_or(0, |holds| holds.count) + more;
        let (all, most) = (self.count + more, self.max - self.max / LAST_PART);
        own <= most && (all <= most || all <= self.max && own <= FEW_HOLDS)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Holds> {
        self.by_key.get(str::from_utf8(key).ok()?)
    }

    /// Removes and returns the holds of a key.
    pub(super) fn take(&mut self, key: &[u8]) -> Holds {
        let Some((key, holds)) =
            str::from_utf8(key).ok().and_then(|key| self.by_key.remove_entry(key))
        else {
            return Holds::default();
        };
        let entry = (first_end(&holds), key);
        self.by_end.remove(&entry);
        self.count -= holds.len();
        let project = Key::project_in(entry.1.as_bytes());
        if let Some(holder) = self.holders.get_mut(project) {
            holder.by_end.remove(&entry);
            holder.count -= holds.len();
            if holder.count == 0 {
                self.holders.remove(project);
            }
        }
        holds
    }

    /// Sets the holds of a key that has none.
    pub(super) fn set(&mut self, key: &[u8], holds: Holds) {
        if holds.is_empty() {
            return;
        }
        let holder = self.holders.entry(Key::project_in(key).into()).or_default();
        let key = CompactString::from_utf8_lossy(key);
        let entry = (first_end(&holds), key.clone());
        self.count += holds.len();
        holder.count += holds.len();
        holder.by_end.insert(entry.clone());
        self.by_end.insert(entry);
        self.by_key.insert(key, holds);
    }

    /// Removes the holds that have ended.
    pub(super) fn drop_ended(&mut self, time: Timestamp) {
        while let Some((end, key)) = self.by_end.first()
            && *end <= time
        {
            let key = key.clone();
            let mut holds = self.take(key.as_bytes());
            holds.drop_ended(time);
            self.set(key.as_bytes(), holds);
        }
    }

    /// Copies the holds of the keys that have any.
    #[cfg(feature = "journal")]
    pub(super) fn copy(&self, time: Timestamp) -> Vec<(String, Holds)> {
        let open = self.by_key.iter().filter(|(_, holds)| holds.last_end() > time);
        open.map(|(key, holds)| (key.to_string(), holds.clone())).collect()
    }
}

fn first_end(holds: &Holds) -> Timestamp {
    holds.open(Timestamp::EPOCH).list.first().map_or(Timestamp::EPOCH, |hold| hold.ends_at)
}
