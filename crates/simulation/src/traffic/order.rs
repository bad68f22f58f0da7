//! An input as requests in the order of their times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rlaas_core::clock::{Micros, Timestamp};

use super::source::{Sink, Source};
use crate::request::TimedRequest;

/// Most time by which lines may be out of order.
const SPAN: Micros = Micros::from_secs(10);

/// An input whose requests are held until no older one may come any more.
///
/// A request that is older than the newest one by more than [`SPAN`] is late: it is moved to the
/// oldest time that is still open. So times never decrease, and requests of equal times leave in the
/// order in which they came.
#[derive(Debug)]
pub(super) struct OrderedSource {
    source: Source,
    held: BinaryHeap<HeldRequest>,
    /// The oldest time that is still open.
    floor: Timestamp,
    arrived: u64,
    has_ended: bool,
}

/// A request that is held.
#[derive(Debug, PartialEq, Eq)]
struct HeldRequest {
    arrival: TimedRequest,
    /// How many requests came before it.
    position: u64,
    bytes: usize,
}

impl OrderedSource {
    pub(super) fn new(source: Source) -> Self {
        let (held, floor) = (BinaryHeap::new(), Timestamp::EPOCH);
        Self { source, held, floor, arrived: 0, has_ended: false }
    }

    /// Reads until the next request is known. Returns its time; `None` at the end.
    pub(super) fn fill(&mut self, sink: &mut Sink) -> Option<Timestamp> {
        loop {
            if let Some(oldest) = self.held.peek() {
                let is_full = sink.held_bytes >= sink.max_held_bytes;
                let at = oldest.arrival.at;
                if at <= self.floor || self.has_ended || is_full {
                    let is_early = at > self.floor && !self.has_ended;
                    sink.counts.left_early += u64::from(is_early);
                    return Some(at);
                }
            } else if self.has_ended {
                return None;
            }
            match self.source.next(sink) {
                Some(arrival) => self.hold(arrival, sink),
                None => self.has_ended = true,
            }
        }
    }

    fn hold(&mut self, arrival: TimedRequest, sink: &mut Sink) {
        self.floor = self.floor.max(arrival.at - SPAN);
        sink.counts.late += u64::from(arrival.at < self.floor);
        let bytes = arrival.request.bytes();
        sink.held_bytes += bytes;
        let arrival = TimedRequest { at: arrival.at.max(self.floor), ..arrival };
        self.held.push(HeldRequest { arrival, position: self.arrived, bytes });
        self.arrived += 1;
    }

    /// Returns the request that [`Self::fill`] found. From then on, older ones are late.
    pub(super) fn pop(&mut self, sink: &mut Sink) -> Option<TimedRequest> {
        let HeldRequest { arrival, bytes, .. } = self.held.pop()?;
        sink.held_bytes -= bytes;
        self.floor = self.floor.max(arrival.at);
        Some(arrival)
    }
}

impl Ord for HeldRequest {
    /// The request that leaves first is the greatest, as [`BinaryHeap`] wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.arrival.at, other.position).cmp(&(self.arrival.at, self.position))
    }
}

impl PartialOrd for HeldRequest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
