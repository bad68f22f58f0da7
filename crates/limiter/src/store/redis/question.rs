//! What one request asks of the script: its hits as keys and arguments, ready to be sent beside
//! those of others.

use std::fmt::Write;
use std::ops::Range;

use smallvec::SmallVec;

use super::naming::Naming;
use super::server_clock::ServerClock;
use crate::algorithm::{Algorithm, Decision, window_index};
use crate::clock::{Span, Timestamp};
use crate::rules::Mode;
use crate::store::{Action, Coupling, Hit};

/// A window shorter than this can end while the call is on its way, so its call names the keys of
/// the windows that begin within [`TRAVEL`] too. For longer ones a repeat is cheaper.
const SHORT_WINDOW: Span = Span::from_secs(1);
const TRAVEL: Span = Span::from_millis(50);

/// Ends the key of the debt beside a state. No value of an id is encoded as `%debt`.
const DEBT_SUFFIX: &str = ":%debt";

/// Bytes of an argument with one hit; it grows where there are more.
const ARGUMENT: usize = 64;

/// Entries of a log that take Redis as long to write as another decision.
const UNITS_PER_WORK: u64 = 20;

/// What a question is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose<'a> {
    /// Decide.
    Check(Coupling),
    /// Give back what these decisions have taken, one for each hit.
    GiveBack(&'a [Decision]),
}

/// What the service knows of the server's time when it asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerTime<'a> {
    /// An estimate of now, to name keys.
    pub(super) estimate: Timestamp,
    /// When decisions were made.
    pub(super) clock: &'a ServerClock,
}

/// The keys and the argument of one request.
#[derive(Debug, Default)]
pub(super) struct Question {
    keys: Words,
    /// Values of MessagePack, one behind the other.
    argument: Vec<u8>,
    /// Of each hit its window, and the time before which it is not decided; see
    /// [`Timestamp::hold`].
    held: SmallVec<[(Span, Timestamp); 2]>,
    /// The only algorithm of all hits, if there is but one.
    algorithm: Option<Algorithm>,
    /// One hit that takes or looks, of a limit that keeps no debt?
    is_plain: bool,
    work: u64,
}

/// Texts, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Words {
    text: String,
    /// Where each ends.
    ends: SmallVec<[usize; 2]>,
}

impl Question {
    pub(super) fn new(
        naming: &Naming,
        hits: &[Hit<'_>],
        purpose: Purpose<'_>,
        time: ServerTime<'_>,
    ) -> Self {
        let mut question = Self { argument: Vec::with_capacity(ARGUMENT), ..Self::default() };
        question.say(purpose.name());
        question.say_number(hits.len() as u64);
        for (position, hit) in hits.iter().enumerate() {
            match purpose {
                Purpose::Check(_) => question.push(naming, hit, time),
                Purpose::GiveBack(taken) => {
                    question.push_taken(naming, hit, time, &taken[position]);
                }
            }
        }
        question.is_plain = matches!(purpose, Purpose::Check(Coupling::AllOrNothing))
            && matches!(hits, [hit] if is_plain(hit));
        question.algorithm = hits
            .first()
            .map(|hit| hit.algorithm)
            .filter(|algorithm| hits.iter().all(|other| other.algorithm == *algorithm));
        question
    }

    pub(super) fn keys(&self) -> &Words {
        &self.keys
    }

    /// The one argument.
    pub(super) fn argument(&self) -> &[u8] {
        &self.argument
    }

    /// The only algorithm of all hits, if there is but one.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// Returns `true` if `lua/check.lua` can answer it without `lua/coupled.lua`.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// What it asks of Redis, in decisions of the usual kind: a log writes an entry for each unit.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// When each hit is decided by a server whose clock shows `time`.
    pub(super) fn decided_at(&self, time: Timestamp) -> impl Iterator<Item = Timestamp> {
        self.held.iter().map(move |(window, seen)| time.hold(*seen, *window))
    }

    /// Adds a hit that is to be decided at about the time of the estimate.
    fn push(&mut self, naming: &Naming, hit: &Hit<'_>, time: ServerTime<'_>) {
        let window = hit.limit.window();
        let seen = time.clock.seen(window);
        let first = window_index(time.estimate.hold(seen, window), window);
        self.push_windows(naming, hit, seen, first..first + windows_to_name(window));
    }

    /// Adds a hit that gives back; the window that it was taken in is the only one that it needs.
    fn push_taken(
        &mut self,
        naming: &Naming,
        hit: &Hit<'_>,
        time: ServerTime<'_>,
        taken: &Decision,
    ) {
        let window = hit.limit.window();
        let index = window_index(taken.at, window);
        let hit = Hit { action: Action::Take(hit.cost_of(taken)), ..*hit };
        self.push_windows(naming, &hit, time.clock.seen(window), index..index + 1);
        self.say_number(taken.at.as_micros());
        self.say_number(taken.reset_after.as_micros());
    }

    /// Adds a hit; its keys name `windows` if its algorithm wants it.
    fn push_windows(
        &mut self,
        naming: &Naming,
        hit: &Hit<'_>,
        seen: Timestamp,
        windows: Range<u64>,
    ) {
        let (keys, first_index) = if hit.algorithm.keyed_by_window() {
            for index in windows.clone() {
                self.keys.push(|text| {
                    naming.write(hit.key, text);
                    write!(text, ":{index}").expect("a string grows");
                });
            }
            (windows.end - windows.start, windows.start)
        } else {
            self.keys.push(|text| naming.write(hit.key, text));
            if has_debt_key(hit) {
                self.keys.push(|text| {
                    naming.write(hit.key, text);
                    text.push_str(DEBT_SUFFIX);
                });
            }
            (1 + u64::from(has_debt_key(hit)), 0)
        };
        self.held.push((hit.limit.window(), seen));
        self.work += match hit.algorithm {
            Algorithm::SlidingWindowLog => 1 + hit.action.cost().units() / UNITS_PER_WORK,
            _ => 1,
        };
        self.say(hit.algorithm.lua_name());
        for number in [
            keys,
            first_index,
            hit.limit.units(),
            hit.limit.window().as_micros(),
            hit.limit.burst(),
            hit.action.cost().units(),
            mode(hit.mode),
            seen.as_micros(),
            action(hit.action),
        ] {
            self.say_number(number);
        }
        match hit.limit.max_debt() {
            Some(units) => self.say_number(units),
            None => rmp::encode::write_nfix(&mut self.argument, -1).expect("the argument grows"),
        }
    }

    fn say(&mut self, word: &str) {
        rmp::encode::write_str(&mut self.argument, word).expect("the argument grows");
    }

    fn say_number(&mut self, number: u64) {
        rmp::encode::write_uint(&mut self.argument, number).expect("the argument grows");
    }
}

impl Words {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }

    /// Adds what `write` adds to the text.
    fn push(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push(self.text.len());
    }
}

impl Purpose<'_> {
    /// As `lua/check.lua` knows it.
    const fn name(self) -> &'static str {
        match self {
            Self::Check(Coupling::AllOrNothing) => "all_or_nothing",
            Self::Check(Coupling::EachAlone) => "each_alone",
            Self::GiveBack(_) => "give_back",
        }
    }
}

/// As `lua/check.lua` knows it.
const fn mode(mode: Mode) -> u64 {
    match mode {
        Mode::Shadow => 0,
        Mode::Enforced => 1,
        Mode::Quota => 2,
        Mode::ShadowQuota => 3,
    }
}

/// As `lua/check.lua` knows it.
const fn action(action: Action) -> u64 {
    match action {
        Action::Peek(_) => 0,
        Action::Take(_) => 1,
        Action::Report(_) => 2,
    }
}

/// As `lua/check.lua` decides it.
const fn is_plain(hit: &Hit<'_>) -> bool {
    !matches!(hit.action, Action::Report(_)) && hit.limit.max_debt().is_none()
}

/// A token bucket keeps its debt under a key of its own; see `lua/token_bucket.lua`.
const fn has_debt_key(hit: &Hit<'_>) -> bool {
    matches!(hit.algorithm, Algorithm::TokenBucket) && hit.limit.max_debt().is_some()
}

fn windows_to_name(window: Span) -> u64 {
    if window < SHORT_WINDOW { 2 + TRAVEL.as_micros() / window.as_micros() } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_apart() {
        let mut words = Words::default();
        for word in ["", "a b", "c"] {
            words.push(|text| text.push_str(word));
        }
        assert_eq!(words.iter().collect::<Vec<&str>>(), ["", "a b", "c"]);
        assert_eq!(words.len(), 3);
    }
}
