//! A request to the script: its hits encoded as keys and one argument.

use std::fmt::Write;
use std::num::NonZeroU64;

use smallvec::SmallVec;

use super::keys::KeyFormat;
use super::scripts::{FIRST_USE_NAME, ScriptId};
use super::{HitFields, NONE, RefundFields, is_plain, max_debt, policy, write_number};
use crate::algorithm::{Algorithm, Cost, Limit, OnChange, Window, window_index};
use crate::clock::{Micros, Timestamp};
use crate::control::{KeyGrant, LimitFrame, OverrideKind};
use crate::idempotency::{self, IdempotencyRecord, RecordUse};
use crate::operation::{Action, StoreHit, StoreRequest};
use crate::reservation::{Reservation, ReservationUse};
use crate::rules::{Coupling, Grant, Mode};
use crate::store::redis::node::ServerClock;

/// A window shorter than this may end while the call is on its way, so the call also names the keys
/// of windows that start within [`TRAVEL`]. For longer windows a repeat is cheaper.
const SHORT_WINDOW: Micros = Micros::from_secs(1);
const TRAVEL: Micros = Micros::from_millis(50);

/// Suffix of the key of a debt. No id is encoded as `%debt`.
const DEBT_SUFFIX: &str = ":%debt";

/// Suffix of the key that stores when a state was reset. No id is encoded as `%reset`.
const RESET_SUFFIX: &str = ":%reset";

/// Suffixes of the keys of holds. No id is encoded as one of them.
const HOLD_SUFFIXES: [&str; 2] = [":%holds", ":%held"];

/// Suffix of the key of the limits by which a state was counted. No id is encoded as `%limits`.
const LIMITS_SUFFIX: &str = ":%limits";

/// Coupling of a plain request in `lua/check.lua`.
const PLAIN: &str = "plain";

/// Capacity for the argument of a request with one hit.
const ARGUMENT: usize = 64;

/// Entries of a log that take as long to write as another decision.
const UNITS_PER_WORK: u64 = 20;

/// Added to the code of the action of a hit whose rule holds.
const HOLDS: u64 = 64;

/// Added to the use of a hit whose cost is cut to a share of what its key allows.
const CUTS_COST: u64 = 4;

/// Added to the code of the action of a hit in the windows of a calendar.
const CALENDAR: u64 = 128;

/// Added to the code of the action of a hit that takes what is there.
const AT_LEAST: u64 = 256;

/// Added to the code of the action of a hit that leaves units to others.
const LEAVES_UNITS: u64 = 512;

/// Added to the code of the action of an overridable hit.
const CONTROLLED: u64 = 16;

/// Added to the code of the action of a hit that keeps its limits.
const KEEPS_LIMITS: u64 = 32;

/// The time of a server, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerTime<'a> {
    /// Estimate of the current time, to name keys.
    pub(crate) estimate: Timestamp,
    /// Clock with the times of earlier decisions.
    pub(crate) clock: &'a ServerClock,
}

/// How a script is called.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScriptForm {
    pub(crate) script: ScriptId,
    /// `true` if the call has the text of the script, because the server could not load it.
    pub(crate) by_text: bool,
}

/// Keys and argument of one request.
#[derive(Debug, Default)]
pub(crate) struct ScriptRequest {
    pub(crate) keys: KeyList,
    /// The only argument: concatenated MessagePack values.
    pub(crate) argument: Vec<u8>,
    pub(crate) hits: SmallVec<[SentHit; 2]>,
    pub(crate) form: ScriptForm,
    /// What the reply to each overridable hit needs, by the position of the hit.
    pub(crate) overridable: SmallVec<[(usize, Overridable); 1]>,
    /// Positions of the hits whose rules hold.
    pub(crate) holding: SmallVec<[usize; 1]>,
    /// `true` if the request is for a reservation.
    pub(crate) has_reservation: bool,
    /// Set if the request has a request id: `lua/idempotency.lua` then executes it.
    pub(crate) purpose: Option<RecordUse>,
    /// Cost for Redis, in single decisions: a log writes an entry for each unit.
    pub(crate) work: u64,
    /// `true` if the request only refunds: the takes before it were admitted.
    pub(crate) only_refunds: bool,
}

/// What the reply to a hit is read by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentHit {
    pub(crate) window: Window,
    /// The time before which the hit must not be decided; see [`Timestamp::freeze`].
    seen: Timestamp,
    /// Units per window; 0 if the grant is no limit.
    pub(crate) units: u64,
    pub(crate) cost: Cost,
}

/// An overridable hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overridable {
    /// What an override leaves as it is.
    pub(crate) frame: LimitFrame,
    /// `true` if the reply has the notes of the record.
    pub(crate) shows: bool,
}

/// Concatenated keys.
#[derive(Debug, Default)]
pub(crate) struct KeyList {
    text: String,
    /// End of each key.
    ends: SmallVec<[usize; 2]>,
}

impl ScriptRequest {
    /// Encodes a request for a script that can decide it.
    pub(crate) fn new(
        format: &KeyFormat,
        request: StoreRequest<'_>,
        form: ScriptForm,
        time: ServerTime<'_>,
    ) -> Self {
        let StoreRequest { hits, coupling, once, .. } = request;
        let argument = Vec::with_capacity(ARGUMENT);
        let mut script_request = Self { argument, form, ..Self::default() };
        script_request.only_refunds = only_refunds(request);
        let coupling = if is_plain(request) { PLAIN } else { coupling_name(coupling) };
        script_request.push_text(coupling);
        write_number(&mut script_request.argument, hits.len() as u64);
        for hit in hits {
            script_request.push(format, hit, time);
        }
        let held = hits.iter().find(|hit| hit.max_holds.is_some());
        if let (Some(Reservation { number, purpose }), Some(held)) = (request.reservation, held) {
            script_request.has_reservation = true;
            script_request.keys.push(|text| format.write_reservation(held.key, *number, text));
            let (code, time) = match *purpose {
                ReservationUse::Reserve { hold_for } => (0, hold_for.as_micros()),
                ReservationUse::Extend { hold_for } => {
                    (1, hold_for.map_or(NONE, Micros::as_micros))
                }
                ReservationUse::Settle { memory, counts_ended, .. } => {
                    (2 + u64::from(counts_ended), memory.as_micros())
                }
            };
            write_number(&mut script_request.argument, code);
            write_bytes(&mut script_request.argument, &number.to_be_bytes());
            write_number(&mut script_request.argument, time);
            if let ReservationUse::Settle { ends_at, .. } = purpose {
                write_number(&mut script_request.argument, ends_at.as_micros());
            }
        }
        if let (Some(once), Some(first)) = (once, hits.first()) {
            script_request.purpose = Some(once.purpose);
            script_request.keys.push(|text| format.write_once(first.key, once.id, text));
            write_once(&mut script_request.argument, once, hits);
        }
        script_request
    }

    /// Returns `true` if a rule of the hits holds: `lua/holds.lua` is then needed.
    pub(crate) fn holds(&self) -> bool {
        !self.holding.is_empty()
    }

    /// Returns the time that each hit is decided by, if the server's clock shows `time`.
    pub(crate) fn decided_at(&self, time: Timestamp) -> impl Iterator<Item = Timestamp> {
        self.hits.iter().map(move |hit| time.freeze(hit.seen, hit.window.length()))
    }

    /// Adds a hit, to be decided at about the estimated time.
    fn push(&mut self, format: &KeyFormat, hit: &StoreHit<'_>, time: ServerTime<'_>) {
        let window = hit.window.length();
        let limit = hit.grant.limit();
        let seen = time.clock.latest_decision(window);
        let now = time.estimate.freeze(seen, window);
        let calendar = hit.window.calendar().map(|calendar| calendar.window_at(now));
        let (keys, first_index) = self.push_keys(format, hit, now);
        let (units, cost) = (limit.map_or(0, Limit::units), hit.action.cost());
        self.hits.push(SentHit { window: hit.window, seen, units, cost });
        self.work += match hit.algorithm {
            log @ Algorithm::SlidingWindowLog => {
                1 + cost.units().min(log.max_cost().into()) / UNITS_PER_WORK
            }
            _ => 1,
        };
        let is_from_first_use = hit.window.is_from_first_use();
        let headroom = hit.share_left();
        self.push_text(if is_from_first_use { FIRST_USE_NAME } else { hit.algorithm.lua_name() });
        let fields = HitFields {
            keys,
            first_index,
            units: match hit.grant {
                Grant::Limited(limit) => limit.units(),
                Grant::Banned => 0,
                Grant::Unlimited => NONE,
            },
            window: window.as_micros(),
            burst: limit.map_or(0, Limit::burst),
            shared_burst: limit.map_or(0, Limit::shared_burst),
            shared_units: limit.and_then(Limit::shared_units).unwrap_or(0),
            cost: match hit.action {
                Action::Settle(None) => NONE,
                action => action.cost().units(),
            },
            mode: mode_code(hit.mode),
            seen: seen.as_micros(),
            action: action_code(hit)
                + if hit.overridable { CONTROLLED } else { 0 }
                + if policy(hit).is_some() { KEEPS_LIMITS } else { 0 }
                + if hit.max_holds.is_some() { HOLDS } else { 0 }
                + if calendar.is_some() { CALENDAR } else { 0 }
                + if hit.least().is_some() { AT_LEAST } else { 0 }
                + headroom.map_or(0, |_| LEAVES_UNITS),
            max_debt: max_debt(hit).unwrap_or(NONE),
        };
        fields.write(&mut self.argument);
        if let Some(share) = headroom {
            write_number(&mut self.argument, share.millionths().into());
        }
        if let Some(least) = hit.least() {
            write_number(&mut self.argument, least.get().into());
        }
        if let Some(window) = calendar {
            write_number(&mut self.argument, window.start.as_micros());
            write_number(&mut self.argument, window.end.as_micros());
        }
        if let Some(max_holds) = hit.max_holds {
            self.holding.push(self.hits.len() - 1);
            write_number(&mut self.argument, max_holds.into());
            write_number(
                &mut self.argument,
                match hit.action {
                    Action::Hold(_) => 1,
                    Action::Settle(_) => 2,
                    _ => 0,
                } + if hit.cost_share.is_some() { CUTS_COST } else { 0 },
            );
            self.push_text(hit.key.rule());
            if let Some(share) = hit.cost_share {
                write_number(&mut self.argument, share.millionths().into());
            }
        }
        if let Some(policy) = policy(hit) {
            write_number(&mut self.argument, policy_code(policy));
            write_number(&mut self.argument, hit.revision.map_or(0, NonZeroU64::get));
        }
        if hit.overridable {
            self.push_control(hit);
        }
        if let Action::Refund(taken) = hit.action {
            let taken_at = taken.at.as_micros();
            let taken_reset_after = taken.reset_after.as_micros();
            RefundFields { taken_at, taken_reset_after }.write(&mut self.argument);
        }
    }

    /// Adds the keys of a hit at about this time. Returns the number of state keys, and the index of the
    /// first window.
    fn push_keys(&mut self, format: &KeyFormat, hit: &StoreHit<'_>, now: Timestamp) -> (u64, u64) {
        let counted = if hit.window.calendar().is_some() {
            self.push_window(format, hit, now);
            (1, 0)
        } else if is_keyed_by_window(hit) {
            let window = hit.window.length();
            let (first, count) = (window_index(now, window), windows_to_name(window));
            for index in 0..count {
                let later = Micros::from_micros(index * window.as_micros());
                self.push_window(format, hit, now + later);
            }
            (count, first)
        } else {
            self.keys.push(|text| format.write(hit.key, text));
            if has_debt_key(hit) {
                self.push_suffixed(format, hit, DEBT_SUFFIX);
            }
            (1 + u64::from(has_debt_key(hit)), 0)
        };
        if matches!(hit.action, Action::Refund(_) | Action::Reset) {
            self.push_suffixed(format, hit, RESET_SUFFIX);
        }
        if let Action::Refund(taken) = hit.action
            && is_keyed_by_window(hit)
        {
            self.push_window(format, hit, taken.at);
        }
        if hit.overridable {
            self.keys.push(|text| format.write_control(hit.key, text));
        }
        if policy(hit).is_some() {
            self.push_suffixed(format, hit, LIMITS_SUFFIX);
        }
        if hit.max_holds.is_some() {
            for suffix in HOLD_SUFFIXES {
                self.push_suffixed(format, hit, suffix);
            }
        }
        counted
    }

    /// Adds the fields of an overridable hit.
    fn push_control(&mut self, hit: &StoreHit<'_>) {
        let frame = hit.frame();
        self.overridable
            .push((self.hits.len() - 1, Overridable { frame, shows: hit.action.shows_control() }));
        self.push_text(hit.key.rule());
        write_number(&mut self.argument, frame.max_units());
        write_number(&mut self.argument, frame.algorithm.has_burst().into());
        match (hit.action, hit.change) {
            (Action::SetOverride, Some(change)) => {
                let (units, burst) = match change.grant() {
                    KeyGrant::Limited { units, burst } => (units, burst),
                    KeyGrant::Unlimited => (NONE, 0),
                    KeyGrant::Banned => (0, 0),
                };
                for number in [units, burst, change.ttl().as_micros()] {
                    write_number(&mut self.argument, number);
                }
                write_bytes(&mut self.argument, change.note_bytes());
            }
            (Action::ClearOverride(kind), _) => {
                write_number(&mut self.argument, kind_code(kind));
            }
            _ => {}
        }
    }

    /// Adds the key of the window of a time.
    fn push_window(&mut self, format: &KeyFormat, hit: &StoreHit<'_>, time: Timestamp) {
        self.keys.push(|text| {
            format.write(hit.key, text);
            let written = match hit.window.calendar() {
                Some(calendar) => write!(text, ":{}", calendar.window_at(time)),
                None => write!(text, ":{}", window_index(time, hit.window.length())),
            };
            written.expect("writing to a string does not fail");
        });
    }

    fn push_suffixed(&mut self, format: &KeyFormat, hit: &StoreHit<'_>, suffix: &str) {
        self.keys.push(|text| {
            format.write(hit.key, text);
            text.push_str(suffix);
        });
    }

    fn push_text(&mut self, word: &str) {
        rmp::encode::write_str(&mut self.argument, word)
            .expect("writing to a vector does not fail");
    }
}

/// Returns `true` if the key of the hit ends with its window.
fn is_keyed_by_window(hit: &StoreHit<'_>) -> bool {
    hit.algorithm.keyed_by_window() && !hit.window.is_from_first_use()
}

/// Writes the fields of a request id.
fn write_once(argument: &mut Vec<u8>, once: &IdempotencyRecord, hits: &[StoreHit<'_>]) {
    let hash_of_hits = idempotency::hash_of_hits(hits).to_be_bytes();
    let fields = [&once.fingerprint.to_be_bytes()[..], &hash_of_hits, &once.call.0.to_be_bytes()];
    for field in fields {
        write_bytes(argument, field);
    }
    write_number(argument, purpose_code(once.purpose));
    write_number(argument, once.ttl.as_micros());
}

/// Code in `lua/check.lua`.
const fn purpose_code(purpose: RecordUse) -> u64 {
    match purpose {
        RecordUse::Decide => 0,
        RecordUse::Confirm => 1,
        RecordUse::Undo => 2,
    }
}

/// Writes bytes as text, because Redis reads no binary values: its strings are bytes anyway.
fn write_bytes(argument: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("a few kilobytes at most");
    rmp::encode::write_str_len(argument, length).expect("writing to a vector does not fail");
    argument.extend_from_slice(bytes);
}

/// Code in `lua/control.lua`.
const fn kind_code(kind: OverrideKind) -> u64 {
    match kind {
        OverrideKind::Both => 0,
        OverrideKind::Ban => 1,
        OverrideKind::Grant => 2,
    }
}

impl KeyList {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }

    /// Adds a key that `write` appends to the text.
    fn push(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push(self.text.len());
    }
}

/// Name in `lua/check.lua`.
const fn coupling_name(coupling: Coupling) -> &'static str {
    match coupling {
        Coupling::AllOrNothing => "all_or_nothing",
        Coupling::EachAlone => "each_alone",
    }
}

/// Code in `lua/check.lua`.
const fn mode_code(mode: Mode) -> u64 {
    match mode {
        // A rule that is off has hits in administration alone.
        Mode::Shadow | Mode::Off => 0,
        Mode::Enforced => 1,
        Mode::Quota => 2,
        Mode::ShadowQuota => 3,
    }
}

/// Code in `lua/check.lua`.
const fn action_code(hit: &StoreHit<'_>) -> u64 {
    match hit.action {
        // Nothing to set.
        Action::SetOverride if hit.change.is_none() => 0,
        // Those of reservations are as looks: holds.lua does the rest.
        Action::Peek(_) | Action::Hold(_) | Action::Settle(_) => 0,
        Action::Take(_) => 1,
        Action::Report(_) => 2,
        Action::Refund(_) => 3,
        Action::Credit(_) => 4,
        Action::Reset => 5,
        Action::SetOverride => 6,
        Action::ClearOverride(_) => 7,
    }
}

/// Returns `true` if the request only gives back what earlier ones took or hold.
pub(crate) fn only_refunds(request: StoreRequest<'_>) -> bool {
    let forgets = |reservation: &Reservation| reservation.purpose == ReservationUse::FORGET;
    request.reservation.is_some_and(forgets)
        || request.hits.iter().all(|hit| matches!(hit.action, Action::Refund(_)))
}

/// Returns `true` if the hit has a debt key. A token bucket stores its debt under its own key; see
/// `lua/token_bucket.lua`. A limit without debt that follows one with debt must find it, to end it.
fn has_debt_key(hit: &StoreHit<'_>) -> bool {
    hit.algorithm == Algorithm::TokenBucket && (max_debt(hit).is_some() || policy(hit).is_some())
}

/// Code in `lua/on_change.lua`.
const fn policy_code(policy: OnChange) -> u64 {
    match policy {
        OnChange::KeepUsed => 1,
        OnChange::KeepLeft => 2,
        OnChange::Scale => 3,
        OnChange::Reset => 4,
    }
}

fn windows_to_name(window: Micros) -> u64 {
    if window < SHORT_WINDOW { 2 + TRAVEL.as_micros() / window.as_micros() } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_apart() {
        let mut keys = KeyList::default();
        for key in ["", "a b", "c"] {
            keys.push(|text| text.push_str(key));
        }
        assert_eq!(keys.iter().collect::<Vec<&str>>(), ["", "a b", "c"]);
        assert_eq!(keys.len(), 3);
    }
}
