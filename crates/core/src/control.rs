//! Control records: what is granted to one key of one rule at run time, for a time.
//!
//! A key may have a ban and another override side by side. The first of these that exists decides:
//! the ban, the override, an override of the rule, the rule. Only hits that are
//! [overridable](crate::operation::StoreHit::overridable) read their record, so nothing else pays
//! for it. A record lies beside the state of its key and is read in the same atomic step; its parts
//! end by the clock that decides.
//!
//! An override grants units in the window of the rule and by its algorithm, whatever these are at
//! the time of a decision. Who set it and why is a [note](KeyOverride::note) that stores keep and
//! do not read.

use thiserror::Error;

use crate::algorithm::{Algorithm, Limit, Window};
use crate::clock::{Micros, Timestamp};
use crate::rules::{Grant, Key};

/// A grant to one key: units, everything or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum KeyGrant {
    /// Units per window of the rule.
    Limited {
        /// Units per window: 1 to [`Limit::MAX_COUNTED`].
        units: u64,
        /// Units at once, for algorithms that have a burst: 1 to [`Limit::MAX_COUNTED`].
        burst: u64,
    },
    /// Any number of units. Nothing is counted.
    Unlimited,
    /// No units: a ban. Nothing is counted.
    Banned,
}

/// A kind of override. A key may have one of each; then the ban decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverrideKind {
    /// Both kinds.
    Both,
    /// Nothing is granted.
    Ban,
    /// Another limit, or everything, is granted.
    Grant,
}

/// An override to be set: [`Action::SetOverride`](crate::operation::Action::SetOverride).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideChange {
    grant: KeyGrant,
    ttl: Micros,
    note: Box<[u8]>,
}

/// Field of an [`OverrideChange`] that is not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OverrideError {
    /// Units or burst out of bounds.
    #[error("grant must have 1 to {} units, and as many at once", Limit::MAX_COUNTED)]
    Units,
    /// Too short or too long.
    #[error("ttl must be 1 s to 366 d")]
    Ttl,
    /// Too long.
    #[error("note must have at most {} bytes", OverrideChange::MAX_NOTE)]
    Note,
}

impl OverrideChange {
    /// The shortest time until an override ends: 1 s.
    pub const MIN_TTL: Micros = Micros::from_secs(1);
    /// The longest time until an override ends: 366 days.
    pub const MAX_TTL: Micros = Micros::from_secs(366 * 24 * 60 * 60);
    /// Most bytes of a note.
    pub const MAX_NOTE: usize = 4096;

    /// Creates a change that grants `grant` for `ttl`, with a note.
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if a field is out of bounds. Whether the algorithm of a rule accepts the
    /// limit is checked by [`KeyGrant::is_accepted_by`].
    ///
    /// ```
    /// use rlaas_core::clock::Micros;
    /// use rlaas_core::control::{KeyGrant, OverrideChange, OverrideError};
    ///
    /// let day = Micros::from_secs(24 * 60 * 60);
    /// assert!(OverrideChange::new(KeyGrant::Banned, day, b"ticket 7").is_ok());
    /// let change = OverrideChange::new(KeyGrant::Banned, Micros::ZERO, b"");
    /// assert_eq!(change, Err(OverrideError::Ttl));
    /// ```
    pub fn new(grant: KeyGrant, ttl: Micros, note: &[u8]) -> Result<Self, OverrideError> {
        let is_count = |units: u64| (1..=Limit::MAX_COUNTED).contains(&units);
        if let KeyGrant::Limited { units, burst } = grant
            && !(is_count(units) && is_count(burst))
        {
            return Err(OverrideError::Units);
        }
        if !(Self::MIN_TTL..=Self::MAX_TTL).contains(&ttl) {
            return Err(OverrideError::Ttl);
        }
        if note.len() > Self::MAX_NOTE {
            return Err(OverrideError::Note);
        }
        Ok(Self { grant, ttl, note: note.into() })
    }

    /// Returns the grant.
    pub fn grant(&self) -> KeyGrant {
        self.grant
    }

    /// Returns the time until the override ends, counted from the decision that sets it.
    pub fn ttl(&self) -> Micros {
        self.ttl
    }

    /// Returns the note.
    pub fn note_bytes(&self) -> &[u8] {
        &self.note
    }

    /// Returns the override as set when the clock of the store shows `time`.
    pub fn set_at(&self, time: Timestamp) -> KeyOverride {
        KeyOverride { grant: self.grant, ends_at: time + self.ttl, note: self.note.clone() }
    }
}

/// An override of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct KeyOverride {
    /// What is granted.
    pub grant: KeyGrant,
    /// Time by the clock of the store from which the override is ignored.
    pub ends_at: Timestamp,
    /// What its setter wants to know about it later: up to [`OverrideChange::MAX_NOTE`] bytes.
    /// Empty where a reply does not [show](crate::operation::Action::shows_control) the record.
    pub note: Box<[u8]>,
}

impl KeyOverride {
    /// Returns [`OverrideKind::Ban`] or [`OverrideKind::Grant`].
    pub fn kind(&self) -> OverrideKind {
        self.grant.kind()
    }
}

/// The control record of one key: at most one override of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct ControlRecord {
    ban: Option<KeyOverride>,
    grant: Option<KeyOverride>,
}

impl ControlRecord {
    /// Sets an override in place of an earlier one of the same kind.
    pub fn set(&mut self, new: KeyOverride) {
        match new.kind() {
            OverrideKind::Ban => self.ban = Some(new),
            OverrideKind::Grant | OverrideKind::Both => self.grant = Some(new),
        }
    }

    /// Removes the overrides of a kind.
    pub fn clear(&mut self, kind: OverrideKind) {
        if kind != OverrideKind::Grant {
            self.ban = None;
        }
        if kind != OverrideKind::Ban {
            self.grant = None;
        }
    }

    /// Removes the overrides that have ended when the clock shows `time`.
    pub fn drop_ended(&mut self, time: Timestamp) {
        self.ban.take_if(|ban| time >= ban.ends_at);
        self.grant.take_if(|grant| time >= grant.ends_at);
    }

    /// Returns the override that decides when the clock shows `time`.
    pub fn in_force(&self, time: Timestamp) -> Option<&KeyOverride> {
        self.iter().find(|key_override| time < key_override.ends_at)
    }

    /// Returns the override that would decide without a ban.
    pub fn in_force_below_ban(&self, time: Timestamp) -> Option<&KeyOverride> {
        self.grant.as_ref().filter(|grant| time < grant.ends_at)
    }

    /// Returns the overrides: the ban first.
    pub fn iter(&self) -> impl Iterator<Item = &KeyOverride> {
        self.ban.iter().chain(&self.grant)
    }

    /// Returns `true` if the record has no override.
    pub fn is_empty(&self) -> bool {
        self.ban.is_none() && self.grant.is_none()
    }

    /// Returns the time from which the record makes no difference; the epoch if it is empty.
    pub fn ends_at(&self) -> Timestamp {
        self.iter().map(|key_override| key_override.ends_at).max().unwrap_or_default()
    }
}

/// The override that decided a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The grant that decided in place of that of the hit.
    pub grant: Grant,
    /// Time by the clock of the store when the override ends.
    pub ends_at: Timestamp,
    /// The overrides in force. `None` unless the action
    /// [shows them](crate::operation::Action::shows_control).
    pub record: Option<ControlRecord>,
}

/// The overrides of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOverrides {
    /// The key.
    pub key: Key,
    /// Its overrides. None of them has ended.
    pub record: ControlRecord,
}

/// A part of the list of all overrides, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverridePage {
    /// Keys with overrides; may be fewer than asked for, or none.
    pub keys: Vec<KeyOverrides>,
    /// Where the list continues, as text for the store that made it. `None`: this is the last page.
    pub next: Option<String>,
}

/// The part of a hit's limit that an override leaves as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitFrame {
    /// Algorithm of the rule.
    pub algorithm: Algorithm,
    /// Window of the rule: one that [`Limit::new`] accepts.
    pub window: Window,
    /// Most units of debt of the rule's limit; `None` if it keeps none.
    pub max_debt: Option<u64>,
}

impl LimitFrame {
    /// Returns the most units per window that the algorithm accepts. With debt, costs are reported,
    /// and each must be counted whole.
    pub fn max_units(&self) -> u64 {
        let most = self.algorithm.max_units();
        let is_log = self.algorithm == Algorithm::SlidingWindowLog;
        if self.max_debt.is_some() && is_log {
            most.min(self.algorithm.max_cost().into())
        } else {
            most
        }
    }
}

impl KeyGrant {
    /// Returns [`OverrideKind::Ban`] or [`OverrideKind::Grant`].
    pub fn kind(self) -> OverrideKind {
        if self == Self::Banned { OverrideKind::Ban } else { OverrideKind::Grant }
    }

    /// Returns `true` if [`KeyGrant::within`] changes neither units nor burst.
    pub fn is_accepted_by(self, frame: LimitFrame) -> bool {
        match (self, self.within(frame)) {
            (Self::Limited { units, burst }, Grant::Limited(limit)) => {
                limit.units() == units && limit.burst() == burst
            }
            _ => true,
        }
    }

    /// Returns the grant in the window of a rule and by its algorithm.
    ///
    /// The rule may have changed since the override was set: units and burst are cut to the most
    /// that its algorithm accepts. Debt stays that of the rule, up to the most that it accepts. Twin of `grant` in
    /// `lua/control.lua`.
    pub fn within(self, frame: LimitFrame) -> Grant {
        let LimitFrame { algorithm, window, max_debt } = frame;
        let (units, burst) = match self {
            Self::Limited { units, burst } => (units, burst),
            Self::Unlimited => return Grant::Unlimited,
            Self::Banned => return Grant::Banned,
        };
        let units = units.min(frame.max_units());
        // A window of the rule is valid; a hit by hand with another one is not let through.
        let Ok(limit) = Limit::new(units, window) else { return Grant::Banned };
        let most = limit.most_burst();
        let burst = if algorithm.has_burst() { burst.min(most) } else { units };
        let limit = limit.with_burst(burst.max(1)).unwrap_or(limit);
        Grant::Limited(max_debt.map_or(limit, |debt| algorithm.with_debt(limit, Some(debt))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn change(grant: KeyGrant, seconds: u64) -> KeyOverride {
        let change = OverrideChange::new(grant, Micros::from_secs(seconds), b"why");
        change.expect("a valid change").set_at(T0)
    }

    #[test]
    fn a_ban_decides_before_a_grant_and_each_ends_by_itself() {
        let mut record = ControlRecord::default();
        record.set(change(KeyGrant::Unlimited, 100));
        record.set(change(KeyGrant::Banned, 10));
        let grant_at = |record: &ControlRecord, seconds| {
            record.in_force(T0 + Micros::from_secs(seconds)).map(|one| one.grant)
        };
        assert_eq!(grant_at(&record, 9), Some(KeyGrant::Banned));
        assert_eq!(grant_at(&record, 10), Some(KeyGrant::Unlimited));
        assert_eq!(grant_at(&record, 100), None);
        assert_eq!(record.ends_at(), T0 + Micros::from_secs(100));
        record.drop_ended(T0 + Micros::from_secs(10));
        assert_eq!(record.iter().count(), 1);
        record.clear(OverrideKind::Ban);
        assert!(!record.is_empty());
        record.clear(OverrideKind::Both);
        assert!(record.is_empty());
    }

    #[test]
    fn a_grant_is_cut_to_what_the_algorithm_of_the_rule_accepts() {
        let window = Micros::from_secs(60);
        let frame = |algorithm, max_debt| LimitFrame { algorithm, window: window.into(), max_debt };
        let most = Limit::MAX_COUNTED;
        for algorithm in Algorithm::RATES {
            for grant in [
                KeyGrant::Limited { units: most, burst: most },
                KeyGrant::Limited { units: 1, burst: most },
                KeyGrant::Limited { units: 7, burst: 3 },
            ] {
                for max_debt in [None, Some(0), Some(5)] {
                    let frame = frame(*algorithm, max_debt);
                    let Grant::Limited(limit) = grant.within(frame) else { panic!("{grant:?}") };
                    assert!(algorithm.accepts(&limit).is_ok(), "{algorithm:?} {limit:?}");
                    let debt = max_debt.map(|debt| debt.min(algorithm.max_debt(&limit)));
                    assert_eq!(limit.max_debt(), debt);
                }
            }
        }
        let frame = frame(Algorithm::SlidingWindowLog, None);
        assert!(!KeyGrant::Limited { units: most, burst: most }.is_accepted_by(frame));
        assert!(KeyGrant::Limited { units: 7, burst: 7 }.is_accepted_by(frame));
        assert_eq!(KeyGrant::Banned.within(frame), Grant::Banned);
    }

    #[test]
    fn a_change_out_of_bounds_names_its_field() {
        let new = OverrideChange::new;
        let day = Micros::from_secs(86_400);
        let no_units = KeyGrant::Limited { units: 0, burst: 1 };
        assert_eq!(new(no_units, day, b""), Err(OverrideError::Units));
        let long = OverrideChange::MAX_TTL + Micros::from_micros(1);
        assert_eq!(new(KeyGrant::Banned, long, b""), Err(OverrideError::Ttl));
        let note = vec![0; OverrideChange::MAX_NOTE + 1];
        assert_eq!(new(KeyGrant::Banned, day, &note), Err(OverrideError::Note));
    }
}
