//! Simulation: rules decide recorded traffic, with the engine of the service, a memory of its own
//! and a clock that shows the time of each request.
//!
//! A simulation is given arrivals one by one and keeps counts, so its memory depends on the number
//! of different keys, not on the length of the traffic. It replays an open loop: a
//! caller that is refused makes the same later requests as one that is not.

mod counted;
mod engine;
mod gate;
mod notes;
mod report;
mod rules;
#[cfg(test)]
mod tests;
mod text;
mod timeline;
mod tried_limit;
mod verdict;

pub use gate::{GateCheck, GateResult, InvalidShare, MaxShare};
pub use report::{
    CountsReport, HitKey, RuleReport, SimulatedSpan, SimulationReport, TimeReport, UnmatchedReport,
};
pub use text::{count_text, length_text, share_text, time_text};
pub use tried_limit::TriedLimit;
pub use verdict::{
    InvalidRecord, SimulatedDecision, SimulatedOutcome, SimulatedRequest, SimulatedVerdict,
};

use rlaas_core::clock::{ManualClock, Micros};
use rlaas_core::rules::RuleSet;

use self::counted::Counted;
use self::engine::Engine;
use self::rules::Side;
use crate::request::TimedRequest;

/// What a simulation decides by, and what it counts.
#[derive(Clone, Debug)]
pub struct SimulationSettings {
    /// The rules to try.
    pub candidate: RuleSet,
    /// Rules that decide the same traffic, to compare with: usually those in force.
    pub against: Option<RuleSet>,
    /// Time from the first arrival on whose requests are decided and not counted.
    pub warm_up: Micros,
    /// Most keys in the list of those that were refused most often.
    pub top: usize,
}

impl SimulationSettings {
    /// Returns settings that try these rules alone.
    pub fn new(candidate: RuleSet) -> Self {
        Self { candidate, against: None, warm_up: Micros::ZERO, top: 10 }
    }
}

/// Rules that decide recorded traffic, and the counts so far.
#[derive(Debug)]
pub struct Simulation {
    clock: ManualClock,
    candidate: Engine,
    against: Option<Engine>,
    last: SimulatedRequest,
    counted: Counted,
    top: usize,
}

impl Simulation {
    /// Creates a simulation that has decided nothing yet.
    pub fn new(settings: SimulationSettings) -> Self {
        let SimulationSettings { candidate, against, warm_up, top } = settings;
        let (clock, mut counted) = (ManualClock::default(), Counted::new(warm_up));
        let mut engine = |rules, side| Engine::new(rules, side, &mut counted.rules, &clock);
        let candidate = engine(candidate, Side::Candidate);
        let against = against.map(|rules| engine(rules, Side::Against));
        let last = SimulatedRequest::default();
        Self { clock, candidate, against, last, counted, top }
    }

    /// Decides one request at its time. Arrivals are in the order of their times; for a time that
    /// steps back the stores do as live ones do.
    pub fn decide(&mut self, arrival: &TimedRequest) -> &SimulatedRequest {
        self.clock.set(arrival.at);
        let keys = &mut self.counted.keys;
        let (candidate, hits) = self.candidate.decide(&arrival.request, keys);
        let against = self.against.as_ref().map(|against| against.decide(&arrival.request, keys));
        let (against, before) = against.unzip();
        self.last = SimulatedRequest { candidate, against };
        self.counted.count(arrival, &self.last, &hits, &before.unwrap_or_default());
        &self.last
    }

    /// Returns the report of all requests so far.
    pub fn finish(self) -> SimulationReport {
        self.counted.report(self.against.is_some(), self.top)
    }
}
