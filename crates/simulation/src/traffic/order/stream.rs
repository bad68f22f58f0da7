//! The lines of one input, in order.

use std::fmt::Debug;

use rlaas_core::clock::{Micros, Timestamp};

use super::gap::{Belief, GapFilter};
use super::reorder::{Placed, ReorderBuffer};
use crate::request::{Dictionary, TimedRequest};
use crate::traffic::{TrafficCounts, TrafficError};

/// How lines are put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderSettings {
    /// Most time by which lines may be out of order.
    pub(crate) span: Micros,
    /// Most time between two lines that is believed at once.
    pub(crate) max_gap: Micros,
    /// Most lines of all inputs that are held.
    pub(crate) max_lines: usize,
    /// Most bytes that the requests of these lines may take.
    pub(crate) max_bytes: usize,
    /// Bytes by which the dictionary may grow before it begins afresh.
    pub(crate) dictionary_bytes: usize,
}

/// A line that is a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceLine {
    /// The request, and its time as far as the line says so.
    pub(crate) request: TimedRequest,
    /// Bytes that the request takes.
    pub(crate) bytes: u32,
}

/// The lines of one input as they come.
pub(crate) trait Source: Debug + Send {
    /// Returns the next line that is a request, which is added to the dictionary. Counts all others.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if the input can't be read.
    fn next(&mut self, sink: &mut LineSink<'_>) -> Result<Option<SourceLine>, TrafficError>;

    /// Returns the last line, so that it can be shown.
    fn shown_line(&self) -> ShownLine;

    /// Counts a line as unread, because its time is not believed.
    fn refuse(&self, line: &ShownLine, counts: &mut TrafficCounts);

    /// Returns how many bytes were read of the input as it is stored.
    fn position(&self) -> u64;

    /// Adds to the counts what is known only at the end.
    fn finish(&mut self, counts: &mut TrafficCounts);
}

/// Where lines go: requests to the dictionary, all others to the counts.
#[derive(Debug)]
pub(crate) struct LineSink<'a> {
    /// Distinct requests.
    pub(crate) dictionary: &'a mut Dictionary,
    /// What became of the lines.
    pub(crate) counts: &'a mut TrafficCounts,
}

/// A line as it is shown if its time is not believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShownLine {
    /// Number of the line in its input, from 1.
    pub(crate) number: u64,
    /// Its beginning.
    pub(crate) excerpt: String,
}

/// Returns a time that no line of an input is before: that of its first line that is believed, less
/// the span. Reads no further than it must.
///
/// # Errors
///
/// [`TrafficError`] if the input can't be read.
pub(crate) fn earliest_time(
    mut source: Box<dyn Source>,
    settings: &OrderSettings,
) -> Result<Timestamp, TrafficError> {
    let (mut dictionary, mut counts) = (Dictionary::default(), TrafficCounts::default());
    let mut sink = LineSink { dictionary: &mut dictionary, counts: &mut counts };
    let mut gaps = GapFilter::new(settings.max_gap, settings.span);
    loop {
        while let Some(belief) = gaps.pop() {
            if let Belief::Believed(at, ()) = belief {
                return Ok(at - settings.span);
            }
        }
        match source.next(&mut sink)? {
            Some(line) => gaps.push(line.request.at, ()),
            None if gaps.is_empty() => return Ok(Timestamp::EPOCH),
            None => gaps.end(),
        }
    }
}

/// How much is held of all inputs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldAmount {
    pub(super) lines: usize,
    bytes: usize,
}

/// The lines of one input, in order.
#[derive(Debug)]
pub(super) struct OrderedStream {
    source: Box<dyn Source>,
    gaps: GapFilter<CheckedLine>,
    buffer: ReorderBuffer<SourceLine>,
    has_ended: bool,
}

/// A line whose time is checked. Only lines that wait have what is shown of them.
#[derive(Debug)]
struct CheckedLine {
    line: SourceLine,
    shown: Option<ShownLine>,
}

impl OrderedStream {
    pub(super) fn new(source: Box<dyn Source>, settings: &OrderSettings) -> Self {
        let gaps = GapFilter::new(settings.max_gap, settings.span);
        Self { source, gaps, buffer: ReorderBuffer::new(settings.span), has_ended: false }
    }

    /// Reads until the oldest line is known. Returns its time; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if the input can't be read.
    pub(super) fn fill(
        &mut self,
        settings: &OrderSettings,
        held: &mut HeldAmount,
        sink: &mut LineSink<'_>,
    ) -> Result<Option<Timestamp>, TrafficError> {
        loop {
            if let Some(at) = self.buffer.ready() {
                return Ok(Some(at));
            }
            let may_get_more = !self.has_ended || !self.gaps.is_empty();
            if held.is_full(settings)
                && may_get_more
                && let Some(at) = self.buffer.oldest()
            {
                sink.counts.left_early += 1;
                return Ok(Some(at));
            }
            if let Some(belief) = self.gaps.pop() {
                self.place(belief, held, sink.counts);
                continue;
            }
            if self.has_ended {
                return Ok(self.buffer.oldest());
            }
            if let Some(line) = self.source.next(sink)? {
                let at = line.request.at;
                let shown = self.gaps.would_wait(at).then(|| self.source.shown_line());
                self.gaps.push(at, CheckedLine { line, shown });
            } else {
                self.gaps.end();
                self.has_ended = true;
            }
        }
    }

    fn place(
        &mut self,
        belief: Belief<CheckedLine>,
        held: &mut HeldAmount,
        counts: &mut TrafficCounts,
    ) {
        match belief {
            Belief::Believed(at, checked) => {
                held.add(checked.line);
                let placed = self.buffer.push(at, checked.line);
                counts.late += u64::from(placed == Placed::Late);
            }
            Belief::Refused(checked) => {
                self.source.refuse(&checked.shown.unwrap_or_default(), counts);
            }
        }
    }

    /// Returns the request that [`Self::fill`] found.
    pub(super) fn pop(&mut self, held: &mut HeldAmount) -> Option<TimedRequest> {
        let (at, line) = self.buffer.pop()?;
        held.remove(line);
        Some(TimedRequest { at, ..line.request })
    }

    /// Changes the numbers of the requests that are held.
    pub(super) fn change_numbers(&mut self, change: &mut impl FnMut(&mut u32)) {
        self.gaps.change_lines(|checked| change(&mut checked.line.request.request));
        self.buffer.change_lines(|line| change(&mut line.request.request));
    }

    /// Returns how many bytes were read of the input as it is stored.
    pub(super) fn position(&self) -> u64 {
        self.source.position()
    }

    /// Adds to the counts what is known only at the end.
    pub(super) fn finish(mut self, counts: &mut TrafficCounts) {
        counts.gaps += self.gaps.gaps();
        self.source.finish(counts);
    }
}

impl HeldAmount {
    fn is_full(self, settings: &OrderSettings) -> bool {
        self.lines >= settings.max_lines || self.bytes >= settings.max_bytes
    }

    fn add(&mut self, line: SourceLine) {
        self.lines += 1;
        self.bytes += line.bytes as usize;
    }

    fn remove(&mut self, line: SourceLine) {
        self.lines -= 1;
        self.bytes -= line.bytes as usize;
    }
}
