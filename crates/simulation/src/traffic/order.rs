//! An input as requests in the order of their times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rlaas_core::clock::{Micros, Timestamp};

use super::source::{PendingRequest, Sink, Source};
use crate::request::RecordedRequest;

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
pub(super) struct HeldRequest {
    pub(super) at: Timestamp,
    /// How many requests came before it.
    position: u64,
    bytes: usize,
    pub(super) request: RecordedRequest,
    pub(super) was_refused: bool,
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
                if oldest.at <= self.floor || self.has_ended || is_full {
                    let is_early = oldest.at > self.floor && !self.has_ended;
                    sink.counts.left_early += u64::from(is_early);
                    return Some(oldest.at);
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

    fn hold(&mut self, arrival: PendingRequest, sink: &mut Sink) {
        let PendingRequest { at, request, was_refused, .. } = arrival;
        self.floor = self.floor.max(at - SPAN);
        sink.counts.late += u64::from(at < self.floor);
        let bytes = request.bytes();
        sink.held_bytes += bytes;
        let (at, position) = (at.max(self.floor), self.arrived);
        self.arrived += 1;
        self.held.push(HeldRequest { at, position, bytes, request, was_refused });
    }

    /// Returns the request that [`Self::fill`] found. From then on, older ones are late.
    pub(super) fn pop(&mut self, sink: &mut Sink) -> Option<HeldRequest> {
        let held = self.held.pop()?;
        sink.held_bytes -= held.bytes;
        self.floor = self.floor.max(held.at);
        Some(held)
    }
}

impl Ord for HeldRequest {
    /// The request that leaves first is the greatest, as [`BinaryHeap`] wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.position).cmp(&(self.at, self.position))
    }
}

impl PartialOrd for HeldRequest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
