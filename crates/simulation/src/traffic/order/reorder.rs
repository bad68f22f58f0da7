//! Puts the lines of one input in order, within a span of time.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use rlaas_core::clock::{Micros, Timestamp};

/// Holds lines until no older one may come any more.
///
/// A line may be older than the newest one by the span. A line that is older yet is late: it is
/// moved to the oldest time that is still open, which is the newest time less the span. So the times
/// of lines that leave never decrease, and lines of equal times leave in the order in which they
/// came.
#[derive(Debug)]
pub(super) struct ReorderBuffer<T> {
    span: Micros,
    /// The oldest time that is still open.
    floor: Timestamp,
    arrived: u64,
    /// Lines that were not older than the one before them in this queue: in most logs, most lines.
    in_order: VecDeque<HeldLine<T>>,
    out_of_order: BinaryHeap<HeldLine<T>>,
}

/// A line that is held.
#[derive(Debug)]
struct HeldLine<T> {
    at: Timestamp,
    /// How many lines came before it.
    position: u64,
    line: T,
}

/// Whether a line came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// At its own time.
    InTime,
    /// Moved to the oldest time that is still open.
    Late,
}

impl<T> ReorderBuffer<T> {
    pub(super) fn new(span: Micros) -> Self {
        let (in_order, out_of_order) = (VecDeque::new(), BinaryHeap::new());
        Self { span, floor: Timestamp::EPOCH, arrived: 0, in_order, out_of_order }
    }

    /// Takes a line.
    pub(super) fn push(&mut self, at: Timestamp, line: T) -> Placed {
        self.floor = self.floor.max(at - self.span);
        let placed = if at < self.floor { Placed::Late } else { Placed::InTime };
        let held = HeldLine { at: at.max(self.floor), position: self.arrived, line };
        self.arrived += 1;
        match self.in_order.back() {
            Some(newest) if held.at < newest.at => self.out_of_order.push(held),
            _ => self.in_order.push_back(held),
        }
        placed
    }

    /// Returns the time of the oldest line, if no older one may come any more.
    pub(super) fn ready(&self) -> Option<Timestamp> {
        self.oldest().filter(|at| *at <= self.floor)
    }

    /// Returns the time of the oldest line.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let in_order = self.in_order.front().map(|held| held.at);
        let out_of_order = self.out_of_order.peek().map(|held| held.at);
        in_order.into_iter().chain(out_of_order).min()
    }

    /// Returns the oldest line, with its time. From then on, older ones are late.
    pub(super) fn pop(&mut self) -> Option<(Timestamp, T)> {
        let is_in_order = match (self.in_order.front(), self.out_of_order.peek()) {
            (Some(one), Some(other)) => one > other,
            (one, _) => one.is_some(),
        };
        let held = if is_in_order { self.in_order.pop_front() } else { self.out_of_order.pop() }?;
        self.floor = self.floor.max(held.at);
        Some((held.at, held.line))
    }

    /// Changes all lines, in any order.
    pub(super) fn change_lines(&mut self, mut change: impl FnMut(&mut T)) {
        let mut out_of_order = std::mem::take(&mut self.out_of_order).into_vec();
        for held in self.in_order.iter_mut().chain(&mut out_of_order) {
            change(&mut held.line);
        }
        self.out_of_order = out_of_order.into();
    }
}

impl<T> Ord for HeldLine<T> {
    /// The line that leaves first is the greatest, as [`BinaryHeap`] wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.position).cmp(&(self.at, self.position))
    }
}

impl<T> PartialOrd for HeldLine<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for HeldLine<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for HeldLine<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Micros::from_secs(seconds)
    }

    fn seconds(popped: Option<(Timestamp, u64)>) -> Option<(u64, u64)> {
        popped.map(|(at, line)| (at.as_millis() / 1_000, line))
    }

    #[test]
    fn lines_leave_when_no_older_one_may_come() {
        let mut buffer = ReorderBuffer::new(Micros::from_secs(60));
        assert_eq!(buffer.push(at(100), 0), Placed::InTime);
        assert_eq!(buffer.ready(), None);
        assert_eq!(buffer.push(at(40), 1), Placed::InTime);
        assert_eq!(buffer.ready(), Some(at(40)));
        assert_eq!(buffer.push(at(39), 2), Placed::Late);
        assert_eq!(seconds(buffer.pop()), Some((40, 1)));
        assert_eq!(seconds(buffer.pop()), Some((40, 2)));
        assert_eq!(buffer.ready(), None);
        buffer.push(at(160), 3);
        assert_eq!(buffer.ready(), Some(at(100)));
    }

    #[test]
    fn a_line_that_left_early_makes_older_ones_late() {
        let mut buffer = ReorderBuffer::new(Micros::from_secs(60));
        buffer.push(at(100), 0);
        assert_eq!(seconds(buffer.pop()), Some((100, 0)));
        assert_eq!(buffer.push(at(99), 1), Placed::Late);
        assert_eq!(buffer.push(at(100), 2), Placed::InTime);
        assert_eq!(seconds(buffer.pop()), Some((100, 1)));
        assert_eq!(seconds(buffer.pop()), Some((100, 2)));
        assert_eq!(seconds(buffer.pop()), None);
    }
}
