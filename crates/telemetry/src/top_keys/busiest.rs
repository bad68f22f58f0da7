//! The keys with the highest counts over rules of an instance, in one message of bounded size, and
//! their sum over instances.
//!
//! Pure: no clock and no lock.
//!
//! # Guarantee
//!
//! A [`FoundKey`] has a least count, and an error by which its count may be higher. Its count in all
//! instances whose messages were added up is within both, so `least + error` is never too low.
//!
//! In each instance the count of a key is its least count there, or up to the error of its rule more
//! (`summary.rs`). A message has those of at most [`MAX_COUNTERS`] keys. A key that it lacks has at
//! most [`RuleBounds::unlisted`] of its rule: the error of the rule, or more if a key of the rule was
//! left out, which then has the highest count of those left out, plus the error. Bounds of rules are
//! left out too if there is no space. A rule without bounds has at most [`BusiestKeys::unlisted`],
//! the highest bound that was left out: 0 if none was. So the sum takes for each key and instance
//! either its least count and the error, or the bound of the keys that the message lacks.
//!
//! Of one rule no key of a summary is left out. So the error of a sum is at most the total divided by
//! [`MAX_COUNTERS`].
//!
//! A key that no message has may have as much as the sum of these bounds. A key above
//! [`MAX_KEY`](super::MAX_KEY) bytes is known by its hash, so that no value selects it.

use std::cmp::Reverse;
use std::collections::HashMap;

use prost::Message;

use super::{Counter, MAX_COUNTERS, MAX_KEY, Summary};
use crate::stats::StatsKey;

/// Most bytes of a message, and those of its numbers.
const MAX_BYTES: usize = rlaas_limiter::fleet::MAX_VALUE_LEN;
const HEAD_BYTES: usize = 32;
/// Bytes of a key in a message beside its text, and of the bounds of a rule beside its names.
const KEY_BYTES: usize = 24;
const RULE_BYTES: usize = 40;
/// Version of the message.
const VERSION: u32 = 3;

/// The keys with the highest counts over rules of one instance.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BusiestKeys {
    /// Bounds of rules: those of the keys, and further ones.
    #[prost(message, repeated, tag = "1")]
    rules: Vec<RuleBounds>,
    #[prost(message, repeated, tag = "2")]
    keys: Vec<KeyCount>,
    /// Highest count of a key of a rule that is not among `rules`.
    #[prost(uint64, tag = "3")]
    unlisted: u64,
    /// Sum of all counts of the rules.
    #[prost(uint64, tag = "4")]
    total: u64,
    /// Last, so that a message that was cut has none.
    #[prost(uint32, tag = "5")]
    version: u32,
}

/// Bounds of the counts of a rule.
#[derive(Clone, PartialEq, Eq, Message)]
struct RuleBounds {
    #[prost(string, tag = "1")]
    project: String,
    #[prost(string, tag = "2")]
    rule: String,
    /// Most by which the count of a key may be above its least count.
    #[prost(uint64, tag = "3")]
    error: u64,
    /// Highest count of a key that is not listed: not below `error`.
    #[prost(uint64, tag = "4")]
    unlisted: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct KeyCount {
    /// Position in [`BusiestKeys::rules`].
    #[prost(uint32, tag = "1")]
    rule: u32,
    #[prost(string, tag = "2")]
    key: String,
    #[prost(uint64, tag = "3")]
    least: u64,
}

/// A key of a rule, with its count over all instances.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundKey {
    /// Project of the rule.
    pub project: String,
    /// Name of the rule.
    pub rule: String,
    /// The key.
    pub key: String,
    /// The count is at least as high.
    pub least: u64,
    /// Most by which the count is higher.
    pub error: u64,
}

impl BusiestKeys {
    /// Selects the keys with the highest least counts of those that are wanted.
    pub fn new(rules: &[(StatsKey, Summary)], is_wanted: impl Fn(&str) -> bool) -> Self {
        let is_wanted = &is_wanted;
        let counters = |(rule, (_, summary)): (usize, &(StatsKey, Summary))| {
            let wanted = summary.counters().iter().filter(|counter| is_wanted(&counter.key));
            wanted.map(|counter| (rule, counter.clone())).collect::<Vec<_>>()
        };
        let mut found: Vec<(usize, Counter)> =
            rules.iter().enumerate().flat_map(counters).collect();
        found.sort_unstable_by(|(left_rule, left), (right_rule, right)| {
            let places = (left_rule, &left.key).cmp(&(right_rule, &right.key));
            right.least.cmp(&left.least).then(places)
        });
        let mut bounds: Vec<_> =
            rules.iter().map(|(key, counts)| RuleBounds::new(key, counts.error())).collect();
        let (mut space, mut keys) = (MAX_BYTES - HEAD_BYTES, Vec::new());
        // The rules of the message, and the place of each.
        let (mut listed, mut places) = (Vec::new(), HashMap::new());
        for (rule, Counter { key, least }) in found {
            let of_rule = if places.contains_key(&rule) { 0 } else { bounds[rule].max_len() };
            let len = KEY_BYTES + key.len() + of_rule;
            if keys.len() >= MAX_COUNTERS || len > space {
                bounds[rule].leave_out(least);
                continue;
            }
            space -= len;
            let place = *places.entry(rule).or_insert_with(|| {
                listed.push(rule);
                listed.len() - 1
            });
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            keys.push(KeyCount { rule: place, key: key.into(), least });
        }
        let mut further: Vec<usize> = (0..rules.len())
            .filter(|rule| bounds[*rule].unlisted > 0 && !places.contains_key(rule))
            .collect();
        further.sort_unstable_by_key(|rule| Reverse(bounds[*rule].unlisted));
        let mut unlisted = 0;
        for rule in further {
            match space.checked_sub(bounds[rule].max_len()) {
                Some(left) => {
                    space = left;
                    listed.push(rule);
                }
                None => unlisted = bounds[rule].unlisted.max(unlisted),
            }
        }
        let total =
            rules.iter().fold(0, |sum: u64, (_, summary)| sum.saturating_add(summary.total()));
        let rules = listed.into_iter().map(|rule| std::mem::take(&mut bounds[rule])).collect();
        Self { rules, keys, unlisted, total, version: VERSION }
    }

    /// Returns the sum of all counts of the rules.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Reads a message. `None` if it is of another version, cut, or not what an instance sends.
    pub fn read(value: &[u8]) -> Option<Self> {
        let message = Self::decode(Some(value).filter(|value| value.len() <= MAX_BYTES)?).ok()?;
        let is_key = |key: &KeyCount| {
            (1..=MAX_KEY).contains(&key.key.len()) && (key.rule as usize) < message.rules.len()
        };
        let is_valid = message.version == VERSION
            && message.keys.len() <= MAX_COUNTERS
            && message.keys.iter().all(is_key)
            && message.rules.iter().all(|rule| rule.unlisted >= rule.error);
        is_valid.then_some(message)
    }

    /// Adds up the counts of all instances. Returns the keys, those with the highest least counts
    /// first.
    pub fn sum(all: &[Self]) -> Vec<FoundKey> {
        // For a rule of a message this is the bound of the keys that are not listed, for others the
        // common one. Wide enough for differences of sums.
        let common: i128 = all.iter().map(|keys| i128::from(keys.unlisted)).sum();
        let mut more = HashMap::<(&str, &str), i128>::new();
        for message in all {
            for RuleBounds { project, rule, unlisted, .. } in &message.rules {
                let difference = i128::from(*unlisted) - i128::from(message.unlisted);
                *more.entry((project, rule)).or_default() += difference;
            }
        }
        let mut sums = HashMap::<(&str, &str, &str), (u64, i128)>::new();
        for message in all {
            for KeyCount { rule, key, least } in &message.keys {
                let Some(bounds) = message.rules.get(*rule as usize) else { continue };
                let RuleBounds { project, rule, error, unlisted } = bounds;
                let unlisted_sum = || common + more.get(&(&**project, &**rule)).unwrap_or(&0);
                let sum = sums.entry((project, rule, key));
                let (sum, sum_of_errors) = sum.or_insert_with(|| (0, unlisted_sum()));
                *sum = sum.saturating_add(*least);
                *sum_of_errors += i128::from(*error) - i128::from(*unlisted);
            }
        }
        let mut found: Vec<FoundKey> = sums
            .into_iter()
            .map(|((project, rule, key), (least, error))| FoundKey {
                project: project.to_owned(),
                rule: rule.to_owned(),
                key: key.to_owned(),
                least,
                error: u64::try_from(error).unwrap_or(u64::MAX),
            })
            .collect();
        found.sort_unstable_by(|left, right| right.least.cmp(&left.least).then(left.cmp(right)));
        found
    }
}

impl RuleBounds {
    fn new(key: &StatsKey, error: u64) -> Self {
        let (project, rule) = (key.project.to_string(), key.rule.to_string());
        Self { project, rule, error, unlisted: error }
    }

    /// Leaves out a key with this least count.
    fn leave_out(&mut self, least: u64) {
        self.unlisted = self.unlisted.max(least.saturating_add(self.error));
    }

    fn max_len(&self) -> usize {
        RULE_BYTES + self.project.len() + self.rule.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counts by rule and key.
    type Counts = HashMap<(u32, u32), u64>;

    /// Counts of an instance over few or many rules and keys.
    fn counts() -> impl Strategy<Value = Counts> {
        let rule = prop_oneof![0..3_u32, 0..300_u32];
        let key = prop_oneof![0..5_u32, 0..1_000_u32];
        let count = prop_oneof![4 => 1..20_u64, 1 => 1..10_000_u64];
        prop::collection::hash_map((rule, key), count, 0..600)
    }

    fn name(rule: u32, long: bool) -> StatsKey {
        // Long names leave no space for the bounds of all rules.
        let name = if long { format!("{rule:0>900}") } else { rule.to_string() };
        StatsKey::of_rule("shop", &name)
    }

    fn busiest(counts: &Counts, long: bool, is_wanted: impl Fn(&str) -> bool) -> BusiestKeys {
        let mut rules = HashMap::<u32, Vec<Counter>>::new();
        for ((rule, key), least) in counts {
            let counter = Counter { key: key.to_string().into(), least: *least };
            rules.entry(*rule).or_default().push(counter);
        }
        let summary = |counters: Vec<Counter>| {
            Summary::new(counters.iter().map(|counter| counter.least).sum(), 0, counters)
        };
        let rules: Vec<_> =
            rules.into_iter().map(|(rule, of)| (name(rule, long), summary(of))).collect();
        BusiestKeys::new(&rules, is_wanted)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(super::super::cases()))]

        #[test]
        fn counts_over_instances_are_within_their_error(
            instances in prop::collection::vec(counts(), 1..6),
            long in any::<bool>(),
            digit in prop::option::of(0..10_u32),
        ) {
            let is_wanted = |key: &str| digit.is_none_or(|of| key.starts_with(&of.to_string()));
            let mut messages = Vec::new();
            let mut all = HashMap::<(String, String), u64>::new();
            for counts in &instances {
                let bytes = busiest(counts, long, is_wanted).encode_to_vec();
                prop_assert!(bytes.len() <= MAX_BYTES, "{} bytes", bytes.len());
                messages.push(BusiestKeys::read(&bytes).expect("a message"));
                for ((rule, key), count) in counts {
                    let of = (name(*rule, long).rule.to_string(), key.to_string());
                    *all.entry(of).or_default() += count;
                }
            }
            let found = BusiestKeys::sum(&messages);
            prop_assert!(found.is_sorted_by_key(|key| Reverse(key.least)));
            for key in &found {
                let count = all[&(key.rule.clone(), key.key.clone())];
                prop_assert!(is_wanted(&key.key));
                prop_assert!(key.least <= count && count <= key.least + key.error, "{:?}", key);
            }
        }
    }

    #[test]
    fn few_keys_are_exact_whatever_other_rules_have() {
        let counters = |keys: u32, least| -> Vec<Counter> {
            let counter = |key: u32| Counter { key: key.to_string().into(), least };
            (0..keys).map(counter).collect()
        };
        let of = |rule, total, error, counters| {
            (name(rule, false), Summary::new(total, error, counters))
        };
        let flood = of(1, 1_000_000, 5_000, counters(100, 70));
        let one = BusiestKeys::new(&[flood.clone(), of(2, 661, 0, counters(1, 661))], |_| true);
        let other = BusiestKeys::new(&[flood, of(2, 0, 0, Vec::new())], |_| true);
        let found = BusiestKeys::sum(&[one, other]);
        assert_eq!((&*found[0].rule, found[0].least, found[0].error), ("2", 661, 0));
        assert_eq!((&*found[1].rule, found[1].least, found[1].error), ("1", 140, 10_000));
    }

    #[test]
    fn message_that_was_cut_or_is_foreign_is_not_read() {
        let counts: Counts = (0..9).map(|key| ((key % 3, key), u64::from(key) + 1)).collect();
        let message = busiest(&counts, false, |_| true);
        let bytes = message.encode_to_vec();
        assert_eq!(BusiestKeys::read(&bytes), Some(message.clone()));
        for len in 0..bytes.len() {
            assert_eq!(BusiestKeys::read(&bytes[..len]), None, "cut to {len} bytes");
        }
        let key = |rule, key: &str| KeyCount { rule, key: key.to_owned(), least: 1 };
        let foreign = [
            BusiestKeys { version: 2, ..message.clone() },
            BusiestKeys { keys: vec![key(3, "k")], ..message.clone() },
            BusiestKeys { keys: vec![key(0, "")], ..message.clone() },
            BusiestKeys { keys: vec![key(0, "k"); MAX_COUNTERS + 1], ..message.clone() },
            BusiestKeys {
                rules: vec![RuleBounds { error: 1, ..RuleBounds::default() }],
                keys: Vec::new(),
                ..message
            },
        ];
        for message in foreign {
            assert_eq!(BusiestKeys::read(&message.encode_to_vec()), None, "{message:?}");
        }
    }
}
