//! Rules that are tried on recordings, one after the other, with few requests in memory at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use rlaas_simulation::recording::Reader;
use rlaas_simulation::simulation::{Simulation, SimulationReport, SimulationSettings};
use rlaas_simulation::{Dictionary, RecordedRequest, TimedRequest};

use super::recent::{RecentError, WantedRequests};
use crate::clock::{Micros, Timestamp};

/// Bytes of a simulation's dictionary after which it begins afresh with the next segment.
const REPLAYED_BYTES: usize = 64 << 20;
/// Time by which requests may be out of order: threads send theirs several times a second.
const REORDER: Micros = Micros::from_secs(2);
/// Most requests that are held to be put in order.
const MAX_HELD: usize = 500_000;
/// Requests between two pauses.
const REQUESTS_PER_PAUSE: u32 = 256;

/// A simulation of segments.
pub(super) struct Replay<'a> {
    simulation: Simulation,
    wanted: &'a WantedRequests,
    dictionary: Dictionary,
    /// Requests that an older one may still follow, the oldest first.
    held: BinaryHeap<Reverse<HeldRequest>>,
    arrived: u64,
    newest: Timestamp,
    /// Times of the first and the last request that was decided.
    span: Option<(Timestamp, Timestamp)>,
    dropped: u64,
    /// Requests that were read or decided since the last pause.
    since_pause: u32,
}

/// The end of a simulation.
pub(super) struct Replayed {
    pub(super) report: SimulationReport,
    /// Times of the first and the last request.
    pub(super) span: Option<(Timestamp, Timestamp)>,
    pub(super) dropped: u64,
}

/// A request that is held, in the order in which requests leave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HeldRequest {
    at: Timestamp,
    /// How many came before it.
    position: u64,
    /// Its number in the dictionary.
    request: u32,
    was_refused: bool,
}

/// Pauses, or ends the simulation.
pub(super) fn pause_now(pause: &mut impl FnMut() -> ControlFlow<()>) -> Result<(), RecentError> {
    if pause().is_break() { Err(RecentError::Stopped) } else { Ok(()) }
}

impl<'a> Replay<'a> {
    pub(super) fn new(settings: SimulationSettings, wanted: &'a WantedRequests) -> Self {
        Self {
            simulation: Simulation::new(settings),
            wanted,
            dictionary: Dictionary::default(),
            held: BinaryHeap::new(),
            arrived: 0,
            newest: Timestamp::EPOCH,
            span: None,
            dropped: 0,
            since_pause: 0,
        }
    }

    pub(super) fn decide_segment(
        &mut self,
        bytes: &[u8],
        pause: &mut impl FnMut() -> ControlFlow<()>,
    ) -> Result<(), RecentError> {
        if self.dictionary.bytes() > REPLAYED_BYTES {
            // Their numbers become void.
            self.decide_oldest(Timestamp::EPOCH, 0, pause)?;
            self.dictionary.clear();
        }
        let mut reader = Reader::new(bytes)?;
        let (mut numbers, mut generation) = (Vec::new(), 0);
        while let Some(TimedRequest { at, request, was_refused }) = reader.next()? {
            if generation != reader.dictionary().generation() {
                generation = reader.dictionary().generation();
                numbers.clear();
            }
            // New requests have the next numbers.
            for number in numbers.len()..reader.dictionary().len() {
                let number = u32::try_from(number).expect("a number of a request");
                let request = reader.dictionary().request(number);
                let is_wanted = self.is_wanted(request);
                numbers.push(is_wanted.then(|| self.dictionary.number(request.clone())));
            }
            self.count_for_pause(pause)?;
            let Some(request) = numbers[request as usize] else { continue };
            let position = self.arrived;
            if at >= self.wanted.since {
                self.held.push(Reverse(HeldRequest { at, position, request, was_refused }));
            }
            self.arrived += 1;
            self.newest = self.newest.max(at);
            self.decide_oldest(self.newest - REORDER, MAX_HELD, pause)?;
        }
        self.dropped += reader.lost();
        Ok(())
    }

    /// Decides what is left, and returns the report.
    pub(super) fn finish(
        mut self,
        pause: &mut impl FnMut() -> ControlFlow<()>,
    ) -> Result<Replayed, RecentError> {
        self.decide_oldest(Timestamp::EPOCH, 0, pause)?;
        let Self { span, dropped, .. } = self;
        Ok(Replayed { report: self.simulation.finish(), span, dropped })
    }

    fn is_wanted(&self, request: &RecordedRequest) -> bool {
        match request {
            RecordedRequest::Fields(fields) => *fields.project == *self.wanted.project,
            RecordedRequest::Descriptors(_) => self.wanted.descriptors,
        }
    }

    /// Decides the requests up to a time, and the oldest ones after it while more than `most` are
    /// held.
    fn decide_oldest(
        &mut self,
        until: Timestamp,
        most: usize,
        pause: &mut impl FnMut() -> ControlFlow<()>,
    ) -> Result<(), RecentError> {
        while let Some(Reverse(oldest)) = self.held.peek().copied()
            && (oldest.at <= until || self.held.len() > most)
        {
            self.held.pop();
            let HeldRequest { at, request, was_refused, .. } = oldest;
            // Time never goes back.
            let (from, at) = self.span.map_or((at, at), |(from, to)| (from, to.max(at)));
            self.span = Some((from, at));
            self.simulation.decide(TimedRequest { at, request, was_refused }, &self.dictionary);
            self.count_for_pause(pause)?;
        }
        Ok(())
    }

    #[inline]
    fn count_for_pause(
        &mut self,
        pause: &mut impl FnMut() -> ControlFlow<()>,
    ) -> Result<(), RecentError> {
        self.since_pause += 1;
        if self.since_pause < REQUESTS_PER_PAUSE {
            return Ok(());
        }
        self.since_pause = 0;
        pause_now(pause)
    }
}
