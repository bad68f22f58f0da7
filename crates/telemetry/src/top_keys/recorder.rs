//! The counts of all rules, within bounds: the busiest rules each by itself, the rest together.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use quanta::Instant;

use super::TopKind;
use super::batch::{Batch, Usage};
use super::sliding::{MAX_WINDOW, SlidingCounts, Window};
use super::summary::Summary;

/// Most rules that are counted by themselves.
pub const MAX_RULES: usize = 1_000;
/// Most bytes of all counts.
pub const MAX_BYTES: usize = 60 * 1024 * 1024;
/// Most long keys that are remembered by their hashes.
const MAX_LONG: usize = 256;
/// Time after which the places of rules are given anew.
pub(super) const ROUND: Duration = Duration::from_secs(20);
/// Most rules that take the place of another one after a round.
const MAX_SWAPS: usize = 100;
/// Separates rule and key among the counts of the rest. No encoded key contains it.
const SEPARATOR: char = '\0';

/// Counts of all rules.
#[derive(Debug)]
pub(super) struct Recorder {
    started: Instant,
    now: Duration,
    max_bytes: usize,
    rules: RuleMap<RuleCounts>,
    /// The rules that are not counted by themselves, together.
    rest: Counts,
    /// Bytes of all rules and the rest.
    bytes: usize,
    /// Decisions of each rule since it was made; halved after each round.
    activity: RuleMap<u64>,
    /// Long keys by the numbers of their rules and their hashes: those that came last.
    pub(super) long: HashMap<(u32, String), String>,
    /// Hashes keys by a random key.
    pub(super) hasher: DefaultHashBuilder,
}

/// Counts by [`TopKind`].
type Counts = [SlidingCounts; TopKind::ALL.len()];

/// A map by the number of a rule.
type RuleMap<T> = HashMap<u32, T, DefaultHashBuilder>;

/// The counts to which decisions of one rule are added.
struct Adding<'a> {
    counts: &'a mut Counts,
    hasher: &'a DefaultHashBuilder,
    /// The rule, if it is counted among the rest.
    in_rest: Option<u32>,
    /// Bytes of the counts before.
    before: usize,
}

#[derive(Debug)]
struct RuleCounts {
    counts: Counts,
    /// Time until which windows have counts among the rest.
    in_rest_until: Option<Duration>,
}

impl Recorder {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            started: Instant::now(),
            now: Duration::ZERO,
            max_bytes,
            rules: RuleMap::default(),
            rest: Counts::default(),
            bytes: 0,
            activity: RuleMap::default(),
            long: HashMap::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Counts the decisions of a batch.
    pub(super) fn record(&mut self, batch: &Batch) {
        self.advance();
        // Those that are in use come again.
        if self.long.len() + batch.long.len() > MAX_LONG {
            self.long.clear();
        }
        self.long.extend(batch.long.clone());
        let mut entries = batch.iter().peekable();
        while let Some((rule, key, usage)) = entries.next() {
            let mut decisions = 1;
            let mut counts = self.begin(rule);
            counts.add(key, usage);
            // Most decisions of a batch are of few rules, often one after the other.
            while let Some((_, key, usage)) = entries.next_if(|(next, ..)| *next == rule) {
                decisions += 1;
                counts.add(key, usage);
            }
            let more_bytes = counts.end();
            self.end(rule, decisions, more_bytes);
        }
    }

    /// Ends the round if it is over, and returns whether it was.
    pub(super) fn advance(&mut self) -> bool {
        self.advance_to(self.started.elapsed())
    }

    pub(super) fn advance_to(&mut self, now: Duration) -> bool {
        let rounds = |at: Duration| at.as_secs() / ROUND.as_secs();
        let is_over = rounds(now) > rounds(self.now);
        self.now = self.now.max(now);
        if is_over {
            self.end_round();
        }
        is_over
    }

    /// Counts one decision.
    #[cfg(test)]
    pub(super) fn count(&mut self, rule: u32, key: &str, usage: Usage) {
        let mut counts = self.begin(rule);
        counts.add(key.as_bytes(), usage);
        let more_bytes = counts.end();
        self.end(rule, 1, more_bytes);
    }

    /// Returns the counts to which decisions of a rule are added.
    fn begin(&mut self, rule: u32) -> Adding<'_> {
        if !self.rules.contains_key(&rule) && self.has_place() {
            self.promote(rule);
        }
        let (counts, in_rest) = match self.rules.get_mut(&rule) {
            Some(alone) => (&mut alone.counts, None),
            None => (&mut self.rest, Some(rule)),
        };
        Adding { before: bytes(counts), counts, hasher: &self.hasher, in_rest }
    }

    fn end(&mut self, rule: u32, decisions: u64, more_bytes: isize) {
        *self.activity.entry(rule).or_default() += decisions;
        self.bytes = self.bytes.saturating_add_signed(more_bytes);
        while self.bytes > self.max_bytes && self.move_quietest_to_rest() {}
    }

    /// Returns the counts of rules in a window, in their order. If a rule is or was among the rest, its
    /// total and its error are those of the rest too.
    pub(super) fn windows(&mut self, rules: &[u32], kind: TopKind, window: Window) -> Vec<Summary> {
        self.advance();
        let rest = self.rest_window(kind, window);
        rules.iter().map(|rule| self.window_beside(&rest, *rule, kind, window)).collect()
    }

    fn rest_window(&mut self, kind: TopKind, window: Window) -> Summary {
        let rest = &mut self.rest[kind as usize];
        rest.advance(self.now);
        rest.window(window)
    }

    /// Returns the counts of a rule, with those that it has in `rest`.
    fn window_beside(
        &mut self,
        rest: &Summary,
        rule: u32,
        kind: TopKind,
        window: Window,
    ) -> Summary {
        let (alone, in_rest) = match self.rules.get_mut(&rule) {
            Some(RuleCounts { counts, in_rest_until }) => {
                let counts = &mut counts[kind as usize];
                counts.advance(self.now);
                let in_rest = in_rest_until.is_some_and(|until| until > self.now);
                (counts.window(window), in_rest)
            }
            None => (Summary::default(), true),
        };
        if !in_rest {
            return alone;
        }
        let mut sum = alone;
        let prefix = in_rest_key(rule, "");
        sum.add_mapped(rest, |key| key.strip_prefix(&*prefix).map(Into::into));
        sum
    }

    /// Drops the counts of rules that do not exist any more.
    pub(super) fn retain(&mut self, exists: impl Fn(u32) -> bool) {
        self.rules.retain(|rule, _| exists(*rule));
        self.activity.retain(|rule, _| exists(*rule));
        self.count_bytes();
    }

    /// Returns the number of rules that are counted by themselves, and the bytes of all counts.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.rules.len(), self.bytes)
    }

    fn end_round(&mut self) {
        let now = self.now;
        let all = self.rules.values_mut().flat_map(|rule| &mut rule.counts).chain(&mut self.rest);
        all.for_each(|counts| counts.advance(now));
        self.rules.retain(|_, rule| !rule.counts.iter().all(SlidingCounts::is_empty));
        self.swap_rules();
        self.count_bytes();
        while self.bytes > self.max_bytes && self.move_quietest_to_rest() {}
        for activity in self.activity.values_mut() {
            *activity /= 2;
        }
        self.activity.retain(|_, activity| *activity > 0);
    }

    /// Gives the places of the quietest rules to rules of the rest that are twice as busy.
    fn swap_rules(&mut self) {
        if self.rules.len() < MAX_RULES {
            // There is a place for a rule of the rest: it gets that with its next decision.
            return;
        }
        let mut quiet: Vec<(u64, u32)> =
            self.rules.keys().map(|rule| (self.activity_of(*rule), *rule)).collect();
        quiet.sort_unstable();
        let in_rest = self.activity.iter().filter(|(rule, _)| !self.rules.contains_key(rule));
        let mut busy: Vec<(u64, u32)> = in_rest.map(|(rule, count)| (*count, *rule)).collect();
        busy.sort_unstable_by_key(|count| Reverse(*count));
        for ((few, quiet), (many, busy)) in quiet.into_iter().zip(busy).take(MAX_SWAPS) {
            if many <= few.saturating_mul(2) {
                break;
            }
            self.move_to_rest(quiet);
            self.promote(busy);
        }
    }

    /// Returns `true` if one more rule can be counted by itself.
    fn has_place(&self) -> bool {
        self.rules.len() < MAX_RULES && self.bytes < self.max_bytes / 20 * 19
    }

    /// Counts a rule by itself from now on. It may have counts among the rest until these are older
    /// than every window.
    fn promote(&mut self, rule: u32) {
        let mut counts = Counts::default();
        for counts in &mut counts {
            counts.advance(self.now);
        }
        let is_in_rest = !self.rest.iter().all(SlidingCounts::is_empty);
        let in_rest_until = is_in_rest.then(|| self.now + MAX_WINDOW);
        self.rules.insert(rule, RuleCounts { counts, in_rest_until });
    }

    fn move_quietest_to_rest(&mut self) -> bool {
        let quietest = self.rules.keys().min_by_key(|rule| self.activity_of(**rule)).copied();
        quietest.inspect(|rule| self.move_to_rest(*rule)).is_some()
    }

    /// Counts a rule together with the rest from now on, with all that it has in its windows.
    fn move_to_rest(&mut self, rule: u32) {
        let Some(mut moved) = self.rules.remove(&rule) else { return };
        for (counts, rest) in moved.counts.iter_mut().zip(&mut self.rest) {
            counts.advance(self.now);
            rest.advance(self.now);
            rest.absorb(counts, |key| in_rest_key(rule, key));
        }
        self.count_bytes();
    }

    fn activity_of(&self, rule: u32) -> u64 {
        self.activity.get(&rule).copied().unwrap_or_default()
    }

    fn count_bytes(&mut self) {
        let all = self.rules.values().flat_map(|rule| &rule.counts).chain(&self.rest);
        self.bytes = all.map(SlidingCounts::bytes).sum();
    }
}

impl Adding<'_> {
    fn add(&mut self, key: &[u8], usage: Usage) {
        let in_rest = self.in_rest.map(|rule| [in_rest_key(rule, "").as_bytes(), key].concat());
        let key = in_rest.as_deref().unwrap_or(key);
        let hash = self.hasher.hash_one(key);
        for (counts, count) in self.counts.iter_mut().zip(usage.counts()) {
            if count > 0 {
                counts.add(hash, key, count);
            }
        }
    }

    /// Returns the bytes that the counts have grown by.
    fn end(self) -> isize {
        bytes(self.counts).cast_signed() - self.before.cast_signed()
    }
}

fn bytes(counts: &Counts) -> usize {
    counts.iter().map(SlidingCounts::bytes).sum()
}

/// Returns the key of a rule among the counts of the rest.
fn in_rest_key(rule: u32, key: &str) -> Box<str> {
    format!("{rule}{SEPARATOR}{key}").into()
}

impl Usage {
    /// Returns the counts by [`TopKind`].
    fn counts(self) -> [u64; TopKind::ALL.len()] {
        [self.is_denied.into(), self.is_near_limit.into(), self.taken.into()]
    }
}
