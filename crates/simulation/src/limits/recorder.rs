//! From recorded requests to hits on keys, by the rules that match.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use rlaas_core::algorithm::{Algorithm, Limit};
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::operation::Action;
use rlaas_core::plan::{Plan, RuleIndex};
use rlaas_core::rules::{Grant, Key, Override, Rule, RuleSet};
use smallvec::SmallVec;

use super::LimitsError;
use super::hit_log::{HitLog, LoggedHit, SpoolSettings};
use crate::simulation::{descriptor_request, with_request};
use crate::{Dictionary, RecordedRequest, TimedRequest};

/// Finds the keys of recorded requests, and keeps their hits to be read several times.
#[derive(Debug)]
pub struct HitRecorder {
    rules: RuleSet,
    /// Names of the rules that are looked at; empty: all.
    wanted: BTreeSet<String>,
    /// The keys of each request of the dictionary that was met; forgotten with its generation.
    met: Vec<Option<MetRequest>>,
    generation: u64,
    hits: RecordedHits,
    rule_numbers: HashMap<(Family, usize), u32>,
    key_numbers: HashMap<(u32, Key), u32>,
}

/// The hits of traffic on the keys of rules.
#[derive(Debug)]
pub struct RecordedHits {
    pub(super) log: HitLog,
    pub(super) rules: Vec<RecordedRule>,
    /// Number of the rule of each key.
    pub(super) key_rules: Vec<u32>,
    /// Times of the first and the last request.
    pub(super) range: Option<(Timestamp, Timestamp)>,
    pub(super) requests: u64,
    pub(super) unmatched: u64,
    pub(super) invalid: u64,
    pub(super) left_out: u64,
}

/// A rule that matched.
#[derive(Clone, Debug)]
pub(super) struct RecordedRule {
    pub(super) name: String,
    pub(super) algorithm: Algorithm,
    pub(super) window: Micros,
    pub(super) requests: u64,
    pub(super) ids: u64,
}

/// The kind of a rule, whose positions are those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Family {
    Flat,
    Descriptor,
}

/// What a request takes.
#[derive(Clone, Debug, Default)]
struct MetRequest {
    /// Number and cost of each key.
    takes: SmallVec<[(u32, u32); 2]>,
    left_out: u64,
    is_invalid: bool,
}

impl HitRecorder {
    /// Creates a recorder. `rules` are matched as they are, but each is looked at alone: what other
    /// rules refuse makes no difference. With names in `wanted`, only these rules are looked at.
    ///
    /// # Errors
    ///
    /// [`LimitsError::UnknownRule`] for a name that no rule has.
    pub fn new(
        rules: &RuleSet,
        wanted: &[String],
        spool: SpoolSettings,
    ) -> Result<Self, LimitsError> {
        let is_known = |name: &str| {
            rules.iter().any(|rule| *rule.name == *name)
                || rules.descriptors().iter().any(|rule| *rule.name == *name)
        };
        if let Some(unknown) = wanted.iter().find(|name| !is_known(name)) {
            return Err(LimitsError::UnknownRule { name: unknown.clone() });
        }
        Ok(Self {
            rules: with_marked_grants(rules),
            wanted: wanted.iter().cloned().collect(),
            met: Vec::new(),
            generation: 0,
            hits: RecordedHits {
                log: HitLog::new(spool),
                rules: Vec::new(),
                key_rules: Vec::new(),
                range: None,
                requests: 0,
                unmatched: 0,
                invalid: 0,
                left_out: 0,
            },
            rule_numbers: HashMap::new(),
            key_numbers: HashMap::new(),
        })
    }

    /// Adds a request. Times must not go backwards.
    ///
    /// # Errors
    ///
    /// [`LimitsError::SpoolFull`] or [`LimitsError::Spool`].
    pub fn record(
        &mut self,
        timed: TimedRequest,
        dictionary: &Dictionary,
    ) -> Result<(), LimitsError> {
        if self.generation != dictionary.generation() {
            self.generation = dictionary.generation();
            self.met.clear();
        }
        let number = timed.request as usize;
        if self.met.len() <= number {
            self.met.resize_with(dictionary.len().max(number + 1), || None);
        }
        let request = match self.met[number].take() {
            Some(met) => met,
            None => self.meet(dictionary.request(timed.request)),
        };
        self.count(timed, &request);
        for (key, cost) in request.takes.iter().copied() {
            self.hits.log.push(LoggedHit { at: timed.at, key, cost })?;
        }
        self.met[number] = Some(request);
        Ok(())
    }

    /// Ends the traffic.
    pub fn finish(self) -> RecordedHits {
        self.hits
    }

    fn count(&mut self, timed: TimedRequest, request: &MetRequest) {
        let hits = &mut self.hits;
        hits.requests += 1;
        let (from, to) = hits.range.unwrap_or((timed.at, timed.at));
        hits.range = Some((from, to.max(timed.at)));
        hits.left_out += request.left_out;
        hits.invalid += u64::from(request.is_invalid);
        let is_unmatched = request.takes.is_empty() && request.left_out == 0;
        hits.unmatched += u64::from(is_unmatched && !request.is_invalid);
        for (key, _) in &request.takes {
            hits.rules[hits.key_rules[*key as usize] as usize].requests += 1;
        }
    }

    /// Finds the keys of a request.
    fn meet(&mut self, request: &RecordedRequest) -> MetRequest {
        let Some(plan) = planned(&self.rules, request) else {
            return MetRequest { is_invalid: true, ..MetRequest::default() };
        };
        let mut met = MetRequest::default();
        for hit in plan.hits {
            let info = self.rules.rule(hit.rule);
            if !self.wanted.is_empty() && !self.wanted.contains(&**info.name) {
                continue;
            }
            let (family, position, is_own) = match hit.rule {
                RuleIndex::Flat(position) => {
                    (Family::Flat, position, hit.grant != Grant::Unlimited)
                }
                RuleIndex::Descriptor { position, is_override } => {
                    (Family::Descriptor, position, !is_override)
                }
            };
            let cost = match hit.action {
                Action::Take(cost) | Action::Report(cost) if is_own => cost.units(),
                _ => {
                    met.left_out += 1;
                    continue;
                }
            };
            let rule = RecordedRule {
                name: info.name.to_string(),
                algorithm: info.algorithm,
                window: hit.window,
                requests: 0,
                ids: 0,
            };
            let key = self.key_number((family, position), rule, hit.key);
            met.takes.push((key, u32::try_from(cost).expect("a cost has 32 bits")));
        }
        met
    }

    fn key_number(&mut self, position: (Family, usize), rule: RecordedRule, key: Key) -> u32 {
        let hits = &mut self.hits;
        let number = *self.rule_numbers.entry(position).or_insert_with(|| {
            hits.rules.push(rule);
            u32::try_from(hits.rules.len() - 1).expect("fewer than 2^32 rules")
        });
        *self.key_numbers.entry((number, key)).or_insert_with(|| {
            hits.rules[number as usize].ids += 1;
            hits.key_rules.push(number);
            u32::try_from(hits.key_rules.len() - 1).expect("fewer than 2^32 keys")
        })
    }
}

/// Returns the rules with grants that show where a grant comes from: a limit is the rule's own, and
/// an unlimited grant that of an override. Keys and matches stay the same.
fn with_marked_grants(rules: &RuleSet) -> RuleSet {
    let marked = |rule: &Rule| {
        let own = Limit::new(1, rule.window).expect("the window of a rule is valid");
        let overrides = rule.overrides.iter();
        let overrides = overrides.map(|one| Override { grant: Grant::Unlimited, ..one.clone() });
        let overrides = overrides.collect();
        Rule { grant: Grant::Limited(own), overrides, ..rule.clone() }
    };
    let named = rules.iter().skip(1).map(marked).collect();
    let marked = RuleSet::new(marked(rules.default_rule()), named)
        .with_unmatched(rules.unmatched())
        .with_descriptors(rules.descriptors().clone());
    match rules.hashed_parts() {
        Some(hashed) => marked.with_hashed_parts(hashed.clone()),
        None => marked,
    }
}

/// Returns the plan of a request; `None` if the request is out of bounds.
fn planned(rules: &RuleSet, request: &RecordedRequest) -> Option<Plan> {
    match request {
        RecordedRequest::Fields(fields) => {
            with_request(fields, |request| Plan::for_request(rules, request)).ok()
        }
        RecordedRequest::Descriptors(descriptors) => {
            let request = descriptor_request(descriptors).ok()?;
            rules.descriptors().plan(&request).ok().map(|planned| planned.plan)
        }
    }
}
