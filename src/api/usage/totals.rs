//! What this instance has counted on each day, and what of it the store has.
//!
//! Pure: it is given days and counts. A day is opened at its first request, and closed when it is
//! over and all of it is written; it then leaves the memory. If the clock returns to a closed day, it
//! is opened anew under another name, so that nothing that was written is overwritten.

use std::collections::HashMap;
use std::sync::Arc;

use super::Day;
use crate::telemetry::sharded::{RequestCounters, RequestCounts};

/// Days that are kept while they can't be written. Older ones are lost.
const MAX_DAYS: usize = 41;

/// The totals of this instance.
#[derive(Debug)]
pub(super) struct Totals {
    /// Name of this instance.
    instance: String,
    days: Vec<OpenDay>,
    /// Counts at the last reading, with the counters that had them.
    last: HashMap<Arc<str>, (Arc<RequestCounters>, RequestCounts)>,
    /// Days that were opened.
    opened: u32,
    /// Writes that were begun.
    writes: u64,
    /// Projects whose usage is to be removed from the store.
    pub(super) removed: Vec<Arc<str>>,
}

/// A day of this instance that is not closed.
#[derive(Debug)]
pub(super) struct OpenDay {
    pub(super) day: Day,
    /// Name of the instance's values of this day.
    pub(super) name: String,
    projects: HashMap<Arc<str>, Total>,
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
    pub(super) total: RequestUsage,
}

impl RequestUsage {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_add(other.allowed),
            denied: self.denied.saturating_add(other.denied),
            units: self.units.saturating_add(other.units),
        }
    }
}

impl Totals {
    pub(super) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            days: Vec::new(),
            last: HashMap::new(),
            opened: 0,
            writes: 0,
            removed: Vec::new(),
        }
    }

    /// Counts on a day what `counters` have counted since the last reading. A project that has no
    /// counters any more was removed.
    pub(super) fn read(&mut self, day: Day, counters: Vec<(Arc<str>, Arc<RequestCounters>)>) {
        let mut last = std::mem::take(&mut self.last);
        for (project, counters) in counters {
            let counts = counters.counts();
            let before = last.remove(&project).filter(|(other, _)| Arc::ptr_eq(other, &counters));
            let since = since(counts, before.map(|(_, before)| before).unwrap_or_default());
            if since != RequestUsage::default() {
                self.count(day, &project, since);
            }
            self.last.insert(project, (counters, counts));
        }
        for project in last.into_keys() {
            self.days.iter_mut().for_each(|day| _ = day.projects.remove(&project));
            self.removed.push(project);
        }
    }

    fn count(&mut self, day: Day, project: &Arc<str>, since: RequestUsage) {
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
        let total = self.days[position].projects.entry(Arc::clone(project)).or_default();
        total.counted = total.counted.plus(since);
    }

    /// Begins a write, and returns its number, what is not written, and the open days with their names,
    /// and whether something of them was written.
    pub(super) fn unwritten(&mut self) -> (u64, Vec<UnwrittenTotal>, Vec<(Day, String, bool)>) {
        self.writes += 1;
        let unwritten = self.days.iter().flat_map(|open| {
            let lacking = open.projects.iter().filter(|(_, total)| total.counted != total.written);
            lacking.map(|(project, total)| UnwrittenTotal {
                day: open.day,
                name: open.name.clone(),
                project: Arc::clone(project),
                total: total.counted,
            })
        });
        let is_written = |total: &Total| total.written != RequestUsage::default();
        let days = self
            .days
            .iter()
            .map(|open| (open.day, open.name.clone(), open.projects.values().any(is_written)));
        (self.writes, unwritten.collect(), days.collect())
    }

    /// Records that totals are written.
    pub(super) fn written(&mut self, written: &[UnwrittenTotal]) {
        let names: HashMap<String, usize> =
            self.days.iter().enumerate().map(|(at, open)| (open.name.clone(), at)).collect();
        for UnwrittenTotal { name, project, total, .. } in written {
            let open = names.get(name).map(|at| &mut self.days[*at]);
            if let Some(held) = open.and_then(|open| open.projects.get_mut(project)) {
                held.written = *total;
            }
        }
    }

    /// Records that the store has lost what was written.
    pub(super) fn lost(&mut self) {
        for open in &mut self.days {
            open.projects.values_mut().for_each(|total| total.written = RequestUsage::default());
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
    fn is_written(&self) -> bool {
        self.projects.values().all(|total| total.counted == total.written)
    }

    /// Returns what was counted for a project.
    pub(super) fn total_of(&self, project: &str) -> RequestUsage {
        self.projects.get(project).map(|total| total.counted).unwrap_or_default()
    }
}

fn since(now: RequestCounts, before: RequestCounts) -> RequestUsage {
    RequestUsage {
        allowed: now.allowed.wrapping_sub(before.allowed),
        denied: now.denied.wrapping_sub(before.denied),
        units: now.units.wrapping_sub(before.units),
    }
}
