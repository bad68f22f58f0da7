//! Simulation: rules decide recorded traffic, with the engine of the service, a memory of its own
//! and a clock that shows the time of each request.
//!
//! A simulation is given arrivals one by one and keeps counts, so its memory depends on the number
//! of different keys and requests, not on the length of the traffic. It replays an open loop: a
//! caller that is refused makes the same later requests as one that is not.

mod counted;
mod counts;
mod engine;
mod gate;
mod ids;
mod notes;
mod prepared;
mod recording_notes;
mod report;
#[cfg(test)]
mod tests;
mod timeline;
mod verdict;
mod waits;

pub use gate::{Gate, GateCheck, GateError, GateResult, MaxShare};
pub use notes::{NoteKind, ReportNote, length_text, traffic_notes};
pub use prepared::{descriptor_request, with_request};
pub use recording_notes::recording_notes;
pub use report::{
    CountsReport, HitKey, RuleReport, SimulatedSpan, SimulationReport, TimeReport, TimeSeries,
    UnitsReport, UnmatchedReport, WarmUpReport, time_text,
};
pub use timeline::{BucketCounts, MAX_BUCKETS};
pub use verdict::{
    InvalidRecord, SimulatedDecision, SimulatedOutcome, SimulatedRequest, SimulatedVerdict,
};
pub use waits::WaitClass;

use rlaas_core::clock::{ManualClock, Micros};
use rlaas_core::rules::RuleSet;

use self::counted::Counted;
use self::counts::{RuleTable, Side};
use self::engine::Engine;
use crate::request::{Dictionary, TimedRequest};

/// What a simulation decides by, and what it counts.
#[derive(Clone, Debug)]
pub struct SimulationSettings {
    /// The rules to try.
    pub candidate: RuleSet,
    /// Rules that decide the same traffic, to compare with: usually those in force.
    pub against: Option<RuleSet>,
    /// Time from the first arrival on whose requests are decided and not counted.
    pub warm_up: Micros,
    /// Most keys, as `store.memory.max-keys` of a service. `None`: as many as there are.
    pub max_keys: Option<u32>,
    /// Most keys in each list of those that were hit hardest.
    pub top: usize,
}

impl SimulationSettings {
    /// Keys in a list of those that were hit hardest, unless another number is chosen.
    pub const DEFAULT_TOP: usize = 10;

    /// Returns settings that try these rules alone.
    pub fn new(candidate: RuleSet) -> Self {
        let (warm_up, max_keys, top) = (Micros::ZERO, None, Self::DEFAULT_TOP);
        Self { candidate, against: None, warm_up, max_keys, top }
    }
}

/// Rules that decide recorded traffic, and the counts so far.
#[derive(Debug)]
pub struct Simulation {
    clock: ManualClock,
    candidate: Engine,
    against: Option<Engine>,
    /// Generation of the dictionary whose requests were planned.
    generation: Option<u64>,
    last: SimulatedRequest,
    counted: Counted,
}

impl Simulation {
    /// Creates a simulation that has decided nothing yet.
    pub fn new(settings: SimulationSettings) -> Self {
        let SimulationSettings { candidate, against, warm_up, max_keys, top } = settings;
        let (clock, mut table) = (ManualClock::default(), RuleTable::default());
        let mut engine = |rules, side| Engine::new(rules, side, &mut table, &clock, max_keys);
        let candidate = engine(candidate, Side::Candidate);
        let against = against.map(|rules| engine(rules, Side::Against));
        let counted = Counted { top, ..Counted::new(table, warm_up, max_keys) };
        let last = SimulatedRequest::default();
        Self { clock, candidate, against, generation: None, last, counted }
    }

    /// Decides one request at its time. Its number is one of `dictionary`, which is the same in
    /// all calls. Arrivals are in the order of their times; for a time that steps back the stores
    /// do as live ones do.
    #[inline]
    pub fn decide(&mut self, arrival: TimedRequest, dictionary: &Dictionary) -> &SimulatedRequest {
        if self.generation != Some(dictionary.generation()) {
            self.forget_requests();
            self.generation = Some(dictionary.generation());
        }
        self.clock.set(arrival.at);
        let number = arrival.request;
        let table = &mut self.counted.table;
        let (candidate, hits) = self.candidate.decide(number, dictionary, table);
        self.last.candidate = candidate;
        match &mut self.against {
            None => self.counted.count(arrival, &self.last, hits, &[]),
            Some(against) => {
                let (verdict, before) = against.decide(number, dictionary, table);
                self.last.against = Some(verdict);
                self.counted.count(arrival, &self.last, hits, before);
            }
        }
        &self.last
    }

    /// Returns the report of all requests so far.
    pub fn finish(mut self) -> SimulationReport {
        self.forget_requests();
        let engines = [Some(&self.candidate), self.against.as_ref()];
        let keys_dropped = engines.into_iter().flatten().map(Engine::keys_dropped).sum();
        SimulationReport::new(self.counted, self.against.is_some(), keys_dropped)
    }

    /// Returns how many requests are planned: those of one generation of the dictionary.
    #[cfg(test)]
    fn planned_requests(&self) -> usize {
        self.candidate.planned_requests()
    }

    fn forget_requests(&mut self) {
        self.candidate.forget_requests(Some(&mut self.counted.keys));
        if let Some(against) = &mut self.against {
            against.forget_requests(None);
        }
    }
}
