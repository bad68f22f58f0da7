//! Checks jumps forward: one line with a wrong year must not move all others.

use std::collections::VecDeque;

use rlaas_core::clock::{Micros, Timestamp};

/// Holds lines that are far ahead of all before them, until others follow.
///
/// Such a line is believed if each of the next lines is at most the reorder span before it. The
/// first line has none before it: it is believed unless most of the next lines are far before it.
#[derive(Debug)]
pub(super) struct GapFilter<T> {
    max_gap: Micros,
    span: Micros,
    newest: Option<Timestamp>,
    /// A line that is checked, and those after it.
    waiting: VecDeque<(Timestamp, T)>,
    has_ended: bool,
    gaps: u64,
}

/// Whether the time of a line is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief<T> {
    /// A line and its time.
    Believed(Timestamp, T),
    /// A line that those after it do not follow.
    Refused(T),
}

/// How many lines after a jump are looked at.
const NEXT_LINES: usize = 100;

impl<T> GapFilter<T> {
    pub(super) fn new(max_gap: Micros, span: Micros) -> Self {
        let (newest, waiting, has_ended) = (None, VecDeque::new(), false);
        Self { max_gap, span, newest, waiting, has_ended, gaps: 0 }
    }

    /// Returns `true` if a line of this time would have to wait.
    pub(super) fn would_wait(&self, at: Timestamp) -> bool {
        !self.waiting.is_empty() || self.is_jump(at)
    }

    /// Takes a line.
    pub(super) fn push(&mut self, at: Timestamp, line: T) {
        self.waiting.push_back((at, line));
    }

    /// Returns `true` if no lines wait.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Changes all lines that wait.
    pub(super) fn change_lines(&mut self, mut change: impl FnMut(&mut T)) {
        self.waiting.iter_mut().for_each(|(_, line)| change(line));
    }

    /// Takes note that no line comes any more.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Returns how many jumps were believed.
    pub(super) fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Returns the next line; `None` if more lines have to come first, or if there is none.
    pub(super) fn pop(&mut self) -> Option<Belief<T>> {
        let (at, _) = *self.waiting.front()?;
        if self.is_jump(at) {
            if self.waiting.len() <= NEXT_LINES && !self.has_ended && !self.is_contradicted(at) {
                return None;
            }
            if self.is_contradicted(at) {
                let (_, line) = self.waiting.pop_front()?;
                return Some(Belief::Refused(line));
            }
            self.gaps += u64::from(self.newest.is_some());
        }
        let (at, line) = self.waiting.pop_front()?;
        self.newest = Some(self.newest.map_or(at, |newest| newest.max(at)));
        Some(Belief::Believed(at, line))
    }

    fn is_jump(&self, at: Timestamp) -> bool {
        self.newest.is_none_or(|newest| at > newest + self.max_gap)
    }

    /// Returns `true` if the lines after the first one that waits show that its time is wrong.
    fn is_contradicted(&self, at: Timestamp) -> bool {
        let mut next = self.waiting.iter().skip(1).take(NEXT_LINES).map(|(next, _)| *next);
        if self.newest.is_some() {
            return next.any(|next| next < at - self.span);
        }
        let is_complete = self.has_ended || self.waiting.len() > NEXT_LINES;
        let (lines, far_before) = next.fold((0, 0), |(lines, far_before), next| {
            (lines + 1, far_before + u32::from(next + self.max_gap < at))
        });
        is_complete && far_before * 2 > lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;
    const NONE: [usize; 0] = [];

    /// Returns the lines, by their positions, that are not believed.
    fn refused(days: &[u64]) -> Vec<usize> {
        let mut filter = GapFilter::new(Micros::from_secs(DAY), Micros::from_secs(60));
        let mut found = Vec::new();
        let mut take = |filter: &mut GapFilter<usize>| {
            while let Some(belief) = filter.pop() {
                found.extend(match belief {
                    Belief::Refused(line) => Some(line),
                    Belief::Believed(..) => None,
                });
            }
        };
        for (line, days) in days.iter().enumerate() {
            let at = Timestamp::from_micros(days * DAY * 1_000_000);
            filter.push(at, line);
            take(&mut filter);
            assert!(filter.waiting.len() <= NEXT_LINES + 1);
        }
        filter.end();
        take(&mut filter);
        assert!(filter.waiting.is_empty());
        found
    }

    #[test]
    fn a_jump_is_believed_if_the_next_lines_follow() {
        let mut days = vec![1; 5];
        days.extend([9; 200]);
        assert_eq!(refused(&days), NONE);
        days.insert(5, 400);
        assert_eq!(refused(&days), [5]);
        days.extend([400]);
        assert_eq!(refused(&days), [5], "nothing comes after the last line");
    }

    #[test]
    fn only_the_next_hundred_lines_count() {
        for (followers, expected) in [(99, vec![5]), (100, vec![])] {
            let mut days = vec![1; 5];
            days.extend(vec![9; 1 + followers]);
            days.extend([1; 5]);
            let jump = refused(&days);
            assert_eq!(jump.first().copied().into_iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_wrong_first_line_is_not_believed() {
        let mut days = vec![400, 500];
        days.extend([1; 5]);
        assert_eq!(refused(&days), [0, 1]);
        days.extend([1; 500]);
        assert_eq!(refused(&days), [0, 1]);
        assert_eq!(refused(&[1, 3, 5, 7]), NONE, "few requests");
        assert_eq!(refused(&[7]), NONE);
        assert_eq!(refused(&[]), NONE);
    }
}
