//! A request to the script: its hits as keys and an argument, ready to be sent beside others.

use std::fmt::Write;
use std::ops::Range;

use smallvec::SmallVec;

use super::keys::KeyFormat;
use crate::algorithm::{Algorithm, Cost, window_index};
use crate::clock::{Micros, Timestamp};
use crate::operation::{Action, StoreHit, StoreRequest};
use crate::rules::{Coupling, Mode};
use crate::store::redis::clock::ServerClock;

/// A window shorter than this can end while the call is on its way, so its call names the keys of
/// the windows that begin within [`TRAVEL`] too. For longer ones a repeat is cheaper.
const SHORT_WINDOW: Micros = Micros::from_secs(1);
const TRAVEL: Micros = Micros::from_millis(50);

/// Ends the key of the debt beside a state. No value of an id is encoded as `%debt`.
const DEBT_SUFFIX: &str = ":%debt";

/// Ends the key that tells when a state was reset. No value of an id is encoded as `%reset`.
const RESET_SUFFIX: &str = ":%reset";

/// Bytes of an argument with one hit; it grows where there are more.
const ARGUMENT: usize = 64;

/// Entries of a log that take Redis as long to write as another decision.
const UNITS_PER_WORK: u64 = 20;

/// Declares the numbers that the script is told of a hit, behind its algorithm. Their order here is
/// that of the arguments, on both sides: `scripts.rs` makes the lines of Lua that read them.
macro_rules! fields {
    ($list:ident $type:ident { $($field:ident),* }) => {
        /// The names, in order.
        pub(crate) const $list: &[&str] = &[$(stringify!($field)),*];

        struct $type {
            $($field: u64,)*
        }

        impl $type {
            fn write(&self, argument: &mut Vec<u8>) {
                $(write_number(argument, self.$field);)*
            }
        }
    };
}

fields!(HIT_FIELDS HitFields {
    keys, first_index, units, window, burst, cost, mode, seen, action, max_debt
});
fields!(REFUND_FIELDS RefundFields { taken_at, taken_reset_after });

/// Stands for -1: the limit keeps no debt.
const NO_DEBT: u64 = u64::MAX;

/// The server's time, as far as the service knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerTime<'a> {
    /// An estimate of now, to name keys.
    pub(crate) estimate: Timestamp,
    /// When decisions were made.
    pub(crate) clock: &'a ServerClock,
}

/// The keys and the argument of one request.
#[derive(Debug, Default)]
pub(crate) struct ScriptRequest {
    keys: KeyList,
    /// Values of MessagePack, one behind the other.
    argument: Vec<u8>,
    /// Of each hit its window, and the time before which it is not decided; see
    /// [`Timestamp::hold`].
    held: SmallVec<[(Micros, Timestamp); 2]>,
    /// The only algorithm of all hits, if there is but one.
    algorithm: Option<Algorithm>,
    /// What it takes, if it is one hit that takes or looks, of a limit that keeps no debt.
    plain_cost: Option<Cost>,
    work: u64,
}

/// Texts, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct KeyList {
    text: String,
    /// Where each ends.
    ends: SmallVec<[usize; 2]>,
}

impl ScriptRequest {
    pub(crate) fn new(format: &KeyFormat, request: StoreRequest<'_>, time: ServerTime<'_>) -> Self {
        let StoreRequest { hits, coupling, .. } = request;
        let mut script_request = Self { argument: Vec::with_capacity(ARGUMENT), ..Self::default() };
        script_request.push_text(coupling_name(coupling));
        write_number(&mut script_request.argument, hits.len() as u64);
        for hit in hits {
            script_request.push(format, hit, time);
        }
        script_request.plain_cost = match hits {
            [hit] if coupling == Coupling::AllOrNothing => plain_cost(hit),
            _ => None,
        };
        script_request.algorithm = hits
            .first()
            .map(|hit| hit.algorithm)
            .filter(|algorithm| hits.iter().all(|other| other.algorithm == *algorithm));
        script_request
    }

    pub(crate) fn keys(&self) -> &KeyList {
        &self.keys
    }

    /// The one argument.
    pub(crate) fn argument(&self) -> &[u8] {
        &self.argument
    }

    /// The only algorithm of all hits, if there is but one.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// Returns `true` if `lua/check.lua` can answer it without `lua/coupled.lua`.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain_cost.is_some()
    }

    /// What it takes if it is plain. The script says of no other hit what is counted.
    pub(crate) fn plain_cost(&self) -> Option<Cost> {
        self.plain_cost
    }

    /// What it asks of Redis, in decisions of the usual kind: a log writes an entry for each unit.
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// When each hit is decided by a server whose clock shows `time`.
    pub(crate) fn decided_at(&self, time: Timestamp) -> impl Iterator<Item = Timestamp> {
        self.held.iter().map(move |(window, seen)| time.hold(*seen, *window))
    }

    /// Adds a hit that is to be decided at about the time of the estimate.
    fn push(&mut self, format: &KeyFormat, hit: &StoreHit<'_>, time: ServerTime<'_>) {
        let window = hit.limit.window();
        let seen = time.clock.latest_decision(window);
        let first = window_index(time.estimate.hold(seen, window), window);
        let windows = first..first + windows_to_name(window);
        let (keys, first_index) = self.push_keys(format, hit, windows);
        self.held.push((window, seen));
        self.work += match hit.algorithm {
            Algorithm::SlidingWindowLog => 1 + hit.action.cost().units() / UNITS_PER_WORK,
            _ => 1,
        };
        self.push_text(hit.algorithm.lua_name());
        let fields = HitFields {
            keys,
            first_index,
            units: hit.limit.units(),
            window: window.as_micros(),
            burst: hit.limit.burst(),
            cost: hit.action.cost().units(),
            mode: mode_code(hit.mode),
            seen: seen.as_micros(),
            action: action_code(hit.action),
            max_debt: hit.limit.max_debt().unwrap_or(NO_DEBT),
        };
        fields.write(&mut self.argument);
        if let Action::Refund(taken) = hit.action {
            let taken_at = taken.at.as_micros();
            let taken_reset_after = taken.reset_after.as_micros();
            RefundFields { taken_at, taken_reset_after }.write(&mut self.argument);
        }
    }

    /// Adds the keys of a hit. Returns how many are of its state, and the index of the first window.
    fn push_keys(
        &mut self,
        format: &KeyFormat,
        hit: &StoreHit<'_>,
        windows: Range<u64>,
    ) -> (u64, u64) {
        let counted = if hit.algorithm.keyed_by_window() {
            windows.clone().for_each(|index| self.push_window(format, hit, index));
            (windows.end - windows.start, windows.start)
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
            && hit.algorithm.keyed_by_window()
        {
            self.push_window(format, hit, window_index(taken.at, hit.limit.window()));
        }
        counted
    }

    fn push_window(&mut self, format: &KeyFormat, hit: &StoreHit<'_>, index: u64) {
        self.keys.push(|text| {
            format.write(hit.key, text);
            write!(text, ":{index}").expect("a string grows");
        });
    }

    fn push_suffixed(&mut self, format: &KeyFormat, hit: &StoreHit<'_>, suffix: &str) {
        self.keys.push(|text| {
            format.write(hit.key, text);
            text.push_str(suffix);
        });
    }

    fn push_text(&mut self, word: &str) {
        rmp::encode::write_str(&mut self.argument, word).expect("the argument grows");
    }
}

fn write_number(argument: &mut Vec<u8>, number: u64) {
    match number {
        NO_DEBT => rmp::encode::write_nfix(argument, -1).expect("the argument grows"),
        number => {
            rmp::encode::write_uint(argument, number).expect("the argument grows");
        }
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

    /// Adds what `write` adds to the text.
    fn push(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push(self.text.len());
    }
}

/// As `lua/check.lua` knows it.
const fn coupling_name(coupling: Coupling) -> &'static str {
    match coupling {
        Coupling::AllOrNothing => "all_or_nothing",
        Coupling::EachAlone => "each_alone",
    }
}

/// As `lua/check.lua` knows it.
const fn mode_code(mode: Mode) -> u64 {
    match mode {
        Mode::Shadow => 0,
        Mode::Enforced => 1,
        Mode::Quota => 2,
        Mode::ShadowQuota => 3,
    }
}

/// As `lua/check.lua` knows it.
const fn action_code(action: Action) -> u64 {
    match action {
        Action::Peek(_) => 0,
        Action::Take(_) => 1,
        Action::Report(_) => 2,
        Action::Refund(_) => 3,
        Action::Credit(_) => 4,
        Action::Reset => 5,
    }
}

/// As `lua/check.lua` decides whether a request is plain.
const fn plain_cost(hit: &StoreHit<'_>) -> Option<Cost> {
    match hit.action {
        _ if hit.limit.max_debt().is_some() => None,
        Action::Take(cost) => Some(cost),
        Action::Peek(_) => Some(Cost::NONE),
        Action::Report(_) | Action::Refund(_) | Action::Credit(_) | Action::Reset => None,
    }
}

/// A token bucket keeps its debt under a key of its own; see `lua/token_bucket.lua`.
const fn has_debt_key(hit: &StoreHit<'_>) -> bool {
    matches!(hit.algorithm, Algorithm::TokenBucket) && hit.limit.max_debt().is_some()
}

fn windows_to_name(window: Micros) -> u64 {
    if window < SHORT_WINDOW { 2 + TRAVEL.as_micros() / window.as_micros() } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_apart() {
        let mut words = KeyList::default();
        for word in ["", "a b", "c"] {
            words.push(|text| text.push_str(word));
        }
        assert_eq!(words.iter().collect::<Vec<&str>>(), ["", "a b", "c"]);
        assert_eq!(words.len(), 3);
    }
}
