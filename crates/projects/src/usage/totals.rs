//! What this instance has counted on each day, and what of it the store has.
//!
//! Pure: it is given days and counts. A day is opened at its first request, and closed when it is
//! over and all of it is written; it then leaves the memory. If the clock returns to a closed day, it
//! is opened anew under another name, so that nothing that was written is overwritten.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rlaas_telemetry::rule_counters::RuleTotals;
use rlaas_telemetry::sharded::{RequestCounters, RequestCounts};

use super::{Day, UsageBy};
use crate::KeyRequests;

/// Days that are kept while they can't be written. Older ones are lost.
const MAX_DAYS: usize = 41;
/// Most API keys and rules of a project that have totals of their own on a day.
const MAX_NAMES: usize = 1_000;
/// Most bytes of the name of a rule with a total of its own.
const MAX_NAME_LEN: usize = 512;

/// The totals of this instance.
#[derive(Debug)]
pub(super) struct Totals {
    /// Name of this instance.
    instance: String,
    days: Vec<OpenDay>,
    /// Counts of projects at the last reading, with the counters that had them.
    last: HashMap<Arc<str>, Reading>,
    /// As `last`, of API keys: by project and id.
    last_of_keys: HashMap<(Arc<str>, Arc<str>), Reading>,
    /// Counts of rules at the last reading, by the numbers of their counters.
    last_of_rules: HashMap<u64, RequestUsage>,
    /// Days that were opened.
    opened: u32,
    /// Writes that were begun.
    writes: u64,
    /// Projects whose usage is to be removed from the store.
    pub(super) removed: Vec<Arc<str>>,
}

type Reading = (Arc<RequestCounters>, RequestCounts);

/// Everything that counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) projects: Vec<(Arc<str>, Arc<RequestCounters>)>,
    pub(super) keys: Vec<KeyRequests>,
    pub(super) rules: Vec<RuleTotals>,
}

/// What a total is of, within a project.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// All requests.
    Whole,
    /// Requests with an API key, by its id.
    Key(Arc<str>),
    /// Decisions of a rule, by its name; empty for all that have no total of their own.
    Rule(Arc<str>),
}

/// A day of this instance that is not closed.
#[derive(Debug)]
pub(super) struct OpenDay {
    pub(super) day: Day,
    /// Name of the instance's values of this day.
    pub(super) name: String,
    projects: HashMap<Arc<str>, ProjectTotals>,
}

/// Totals of a project on a day.
#[derive(Debug, Default)]
struct ProjectTotals {
    whole: Total,
    by_key: HashMap<Arc<str>, Total>,
    by_rule: HashMap<Arc<str>, Total>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Total {
    counted: RequestUsage,
    written: RequestUsage,
}

/// Requests of a project on a day, and their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestUsage {
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Cost of the allowed requests, and costs counted after the fact.
    pub units: u64,
}

/// A total to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnwrittenTotal {
    pub(super) day: Day,
    pub(super) name: String,
    pub(super) project: Arc<str>,
    pub(super) part: Part,
    pub(super) total: RequestUsage,
}

impl RequestUsage {
    const NONE: Self = Self { allowed: 0, denied: 0, units: 0 };

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_add(other.allowed),
            denied: self.denied.saturating_add(other.denied),
            units: self.units.saturating_add(other.units),
        }
    }

    /// Returns what is left of this without `other`.
    pub(super) fn without(self, other: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_sub(other.allowed),
            denied: self.denied.saturating_sub(other.denied),
            units: self.units.saturating_sub(other.units),
        }
    }

    /// Returns what a counter has counted since it was here, though it may have wrapped around.
    fn since(self, before: Self) -> Self {
        Self {
            allowed: self.allowed.wrapping_sub(before.allowed),
            denied: self.denied.wrapping_sub(before.denied),
            units: self.units.wrapping_sub(before.units),
        }
    }
}

impl Totals {
    pub(super) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            days: Vec::new(),
            last: HashMap::new(),
            last_of_keys: HashMap::new(),
            last_of_rules: HashMap::new(),
            opened: 0,
            writes: 0,
            removed: Vec::new(),
        }
    }

    /// Counts on a day what `counters` have counted since the last reading. A project that has no
    /// counters any more was removed.
    pub(super) fn read(&mut self, day: Day, counters: Counters) {
        // Before those of the projects: the keys of a project have no more than it has.
        let keys: Vec<_> =
            counters.keys.into_iter().map(|key| (key.counters.counts(), key)).collect();
        let mut last = std::mem::take(&mut self.last);
        let mut replaced = HashSet::new();
        for (project, counters) in counters.projects {
            let before = last.remove(&project);
            let is_other = before.as_ref().is_some_and(|(other, _)| !Arc::ptr_eq(other, &counters));
            if is_other {
                replaced.insert(Arc::clone(&project));
            }
            let (reading, since) = read(counters.counts(), counters, before);
            self.count(day, &project, Part::Whole, since);
            self.last.insert(project, reading);
        }
        for project in last.into_keys() {
            self.days.iter_mut().for_each(|day| _ = day.projects.remove(&project));
            self.removed.push(project);
        }
        self.read_keys(day, keys, &replaced);
        self.read_rules(day, counters.rules, &replaced);
    }

    fn read_keys(
        &mut self,
        day: Day,
        keys: Vec<(RequestCounts, KeyRequests)>,
        replaced: &HashSet<Arc<str>>,
    ) {
        let mut last = std::mem::take(&mut self.last_of_keys);
        for (now, KeyRequests { project, key, counters }) in keys {
            let place = (Arc::from(project.as_str()), Arc::from(key));
            let (reading, since) = read(now, counters, last.remove(&place));
            self.count(day, &place.0, Part::Key(Arc::clone(&place.1)), since);
            self.last_of_keys.insert(place, reading);
        }
        // Keys that were removed since.
        for ((project, key), before) in last {
            let (_, since) = read(before.0.counts(), Arc::clone(&before.0), Some(before));
            if !replaced.contains(&project) {
                self.count(day, &project, Part::Key(key), since);
            }
        }
    }

    /// Rules of a project that has taken the place of another of its id begin with what they have.
    fn read_rules(&mut self, day: Day, rules: Vec<RuleTotals>, replaced: &HashSet<Arc<str>>) {
        let last = std::mem::take(&mut self.last_of_rules);
        for RuleTotals { id, key, counts, .. } in rules {
            let mut counted = RequestUsage {
                allowed: counts.allowed + counts.near_limit + counts.shadow_denied,
                denied: counts.denied,
                units: counts.units,
            };
            let before = last.get(&id).copied().unwrap_or_default();
            // Units are in two counters: between the two they may look like less than before.
            if counted.units.wrapping_sub(before.units).cast_signed() < 0 {
                counted.units = before.units;
            }
            let since = counted.since(before);
            if !replaced.contains(&key.project) {
                self.count(day, &key.project, Part::Rule(Arc::clone(&key.rule)), since);
            }
            self.last_of_rules.insert(id, counted);
        }
    }

    /// Counts on a day. Nothing is counted of projects that were removed.
    fn count(&mut self, day: Day, project: &Arc<str>, part: Part, since: RequestUsage) {
        let is_removed = part != Part::Whole && !self.last.contains_key(project);
        if since == RequestUsage::NONE || is_removed {
            return;
        }
        let open = self.days.iter().position(|open| open.day == day);
        let position = open.unwrap_or_else(|| {
            if self.days.len() >= MAX_DAYS {
                self.days.remove(0);
            }
            let name = format!("{}.{}", self.instance, self.opened);
            self.opened = self.opened.wrapping_add(1);
            self.days.push(OpenDay { day, name, projects: HashMap::new() });
            self.days.len() - 1
        });
        let totals = self.days[position].projects.entry(Arc::clone(project)).or_default();
        if let Some(total) = totals.total_mut(part) {
            total.counted = total.counted.plus(since);
        }
    }

    /// Begins a write, and returns its number, what is not written, and the open days with their names,
    /// and whether something of them was written.
    pub(super) fn unwritten(&mut self) -> (u64, Vec<UnwrittenTotal>, Vec<(Day, String, bool)>) {
        self.writes += 1;
        let unwritten = self.days.iter().flat_map(|open| {
            let lacking = open.all().filter(|(.., total)| total.counted != total.written);
            lacking.map(|(project, part, total)| UnwrittenTotal {
                day: open.day,
                name: open.name.clone(),
                project: Arc::clone(project),
                part,
                total: total.counted,
            })
        });
        let mut unwritten: Vec<_> = unwritten.collect();
        // If the time is not enough, the days of the projects come first.
        unwritten.sort_by_key(|total| total.part != Part::Whole);
        let is_written = |(.., total): (_, _, &Total)| total.written != RequestUsage::NONE;
        let days =
            self.days.iter().map(|open| (open.day, open.name.clone(), open.all().any(is_written)));
        (self.writes, unwritten, days.collect())
    }

    /// Records that totals are written.
    pub(super) fn written(&mut self, written: Vec<UnwrittenTotal>) {
        let names: HashMap<String, usize> =
            self.days.iter().enumerate().map(|(at, open)| (open.name.clone(), at)).collect();
        for UnwrittenTotal { name, project, part, total, .. } in written {
            let open = names.get(&name).map(|at| &mut self.days[*at]);
            let totals = open.and_then(|open| open.projects.get_mut(&project));
            if let Some(held) = totals.and_then(|totals| totals.total_mut(part)) {
                held.written = total;
            }
        }
    }

    /// Records that the store has lost what was written.
    pub(super) fn lost(&mut self) {
        let projects = self.days.iter_mut().flat_map(|open| open.projects.values_mut());
        for ProjectTotals { whole, by_key, by_rule } in projects {
            let named = by_key.values_mut().chain(by_rule.values_mut());
            named.chain([whole]).for_each(|total| total.written = RequestUsage::NONE);
        }
    }

    /// Returns the days that are not closed.
    pub(super) fn days(&self) -> &[OpenDay] {
        &self.days
    }

    /// Returns the days other than `current` of which everything is written.
    pub(super) fn finished(&self, current: Option<Day>) -> Vec<(Day, String)> {
        let finished =
            self.days.iter().filter(|open| Some(open.day) != current && open.is_written());
        finished.map(|open| (open.day, open.name.clone())).collect()
    }

    /// Forgets days that are closed, unless something was counted on them since.
    pub(super) fn close(&mut self, names: &[String]) {
        self.days.retain(|open| !names.contains(&open.name) || !open.is_written());
    }
}

impl OpenDay {
    fn all(&self) -> impl Iterator<Item = (&Arc<str>, Part, &Total)> {
        self.projects.iter().flat_map(|(project, totals)| {
            let keys = totals.by_key.iter().map(|(id, total)| (Part::Key(Arc::clone(id)), total));
            let rules = totals.by_rule.iter();
            let rules = rules.map(|(name, total)| (Part::Rule(Arc::clone(name)), total));
            let named = keys.chain(rules).chain([(Part::Whole, &totals.whole)]);
            named.map(move |(part, total)| (project, part, total))
        })
    }

    fn is_written(&self) -> bool {
        self.all().all(|(.., total)| total.counted == total.written)
    }

    /// Returns what was counted of a part of a project.
    pub(super) fn total_of(&self, project: &str, part: &Part) -> RequestUsage {
        let totals = self.projects.get(project);
        let total = totals.and_then(|totals| match part {
            Part::Whole => Some(&totals.whole),
            Part::Key(id) => totals.by_key.get(id),
            Part::Rule(name) => totals.by_rule.get(name),
        });
        total.map(|total| total.counted).unwrap_or_default()
    }

    /// Returns the names of the totals of a project.
    pub(super) fn names_of(&self, project: &str, by: UsageBy) -> impl Iterator<Item = &Arc<str>> {
        let totals = self.projects.get(project);
        let named = totals.and_then(|totals| match by {
            UsageBy::Day => None,
            UsageBy::Key => Some(&totals.by_key),
            UsageBy::Rule => Some(&totals.by_rule),
        });
        named.into_iter().flat_map(HashMap::keys)
    }
}

impl ProjectTotals {
    /// Returns a total; `None` if a key has none of its own: then it is what the others leave of the whole.
    fn total_mut(&mut self, part: Part) -> Option<&mut Total> {
        let has_place = |totals: &HashMap<Arc<str>, Total>, name: &Arc<str>| {
            let is_new = !totals.contains_key(name);
            !is_new || totals.len() < MAX_NAMES && name.len() <= MAX_NAME_LEN
        };
        match part {
            Part::Whole => Some(&mut self.whole),
            Part::Key(id) => {
                has_place(&self.by_key, &id).then(|| self.by_key.entry(id).or_default())
            }
            Part::Rule(name) => {
                let name = if has_place(&self.by_rule, &name) { name } else { Arc::default() };
                Some(self.by_rule.entry(name).or_default())
            }
        }
    }
}

/// Returns a reading of the counts of now, and what was counted since `before`.
fn read(
    now: RequestCounts,
    counters: Arc<RequestCounters>,
    before: Option<Reading>,
) -> (Reading, RequestUsage) {
    let before = before.filter(|(other, _)| Arc::ptr_eq(other, &counters));
    let before = before.map(|(_, before)| before).unwrap_or_default();
    let usage =
        |RequestCounts { allowed, denied, units, .. }| RequestUsage { allowed, denied, units };
    ((counters, now), usage(now).since(usage(before)))
}
