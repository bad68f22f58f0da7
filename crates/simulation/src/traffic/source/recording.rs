//! A recording as a source of requests.

use std::sync::Arc;

use rlaas_core::clock::Micros;

use super::note_end;
use crate::recording::{Header, Reader};
use crate::request::TimedRequest;
use crate::traffic::input::{DecodedStream, Input, InputStatus};
use crate::traffic::order::{LineSink, ShownLine, Source, SourceLine};
use crate::traffic::{DamagedInput, TrafficCounts, TrafficError, UnreadLine};

/// A recording.
#[derive(Debug)]
pub(super) struct RecordingSource {
    name: String,
    reader: Reader<DecodedStream>,
    status: Arc<InputStatus>,
    skips_refused: bool,
    project: Box<str>,
    /// Numbers in the dictionary of the traffic, and bytes, by the numbers of the recording.
    numbers: Vec<Option<(u32, u32)>>,
    /// Generations of both dictionaries that the numbers are of.
    generations: (u64, u64),
    read: u64,
    damage: Option<String>,
}

/// The requests of a recording that are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) refusals: RecordedRefusals,
    /// Project; empty: none.
    pub(super) project: &'a str,
}

/// Whether requests that were refused when they were recorded are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordedRefusals {
    Kept,
    Skipped,
}

impl RecordingSource {
    /// Reads the header of a recording.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if it can't be read.
    pub(super) fn new(input: Input, wanted: Wanted<'_>) -> Result<Self, TrafficError> {
        let (name, status) = (input.name().to_owned(), input.status());
        let reader = Reader::new(input.into_stream());
        let reader =
            reader.map_err(|source| TrafficError::Recording { input: name.clone(), source })?;
        Ok(Self {
            name,
            reader,
            status,
            skips_refused: wanted.refusals == RecordedRefusals::Skipped,
            project: wanted.project.into(),
            numbers: Vec::new(),
            generations: (0, 0),
            read: 0,
            damage: None,
        })
    }

    /// Returns the header.
    pub(super) fn header(&self) -> &Header {
        self.reader.header()
    }

    fn read(&mut self) -> Result<Option<TimedRequest>, TrafficError> {
        match self.reader.next() {
            Ok(next) => Ok(next),
            Err(error) if error.is_incomplete() => {
                self.damage = Some(error.to_string());
                Ok(None)
            }
            Err(source) => Err(TrafficError::Recording { input: self.name.clone(), source }),
        }
    }

    /// Returns the number of a request in the dictionary of the traffic, and its bytes.
    fn number(&mut self, of: u32, sink: &mut LineSink<'_>) -> (u32, u32) {
        let recorded = self.reader.dictionary();
        let generations = (recorded.generation(), sink.dictionary.generation());
        if generations != self.generations {
            self.generations = generations;
            self.numbers.clear();
        }
        let index = of as usize;
        if let Some(Some(known)) = self.numbers.get(index) {
            return *known;
        }
        let request = recorded.request(of);
        let bytes = u32::try_from(request.bytes()).unwrap_or(u32::MAX);
        let number = sink.dictionary.number(request.clone());
        if self.numbers.len() <= index {
            self.numbers.resize(index + 1, None);
        }
        self.numbers[index] = Some((number, bytes));
        (number, bytes)
    }
}

impl Source for RecordingSource {
    fn next(&mut self, sink: &mut LineSink<'_>) -> Result<Option<SourceLine>, TrafficError> {
        while let Some(timed) = self.read()? {
            sink.counts.lines += 1;
            self.read += 1;
            if self.reader.dictionary().request(timed.request).project() != &*self.project {
                sink.counts.skipped_by_project += 1;
                continue;
            }
            if timed.was_refused && self.skips_refused {
                sink.counts.skipped_by_status += 1;
                continue;
            }
            let (request, bytes) = self.number(timed.request, sink);
            return Ok(Some(SourceLine { request: TimedRequest { request, ..timed }, bytes }));
        }
        Ok(None)
    }

    fn shown_line(&self) -> ShownLine {
        ShownLine { number: self.read, excerpt: String::new() }
    }

    fn refuse(&self, line: &ShownLine, counts: &mut TrafficCounts) {
        super::count_unread(counts, || UnreadLine {
            input: self.name.clone(),
            line: line.number,
            reason: super::FAR_AHEAD.to_owned(),
            excerpt: String::new(),
        });
    }

    fn position(&self) -> u64 {
        self.status.position()
    }

    fn finish(&mut self, counts: &mut TrafficCounts) {
        counts.lost += self.reader.lost();
        counts.resolution = counts.resolution.max(Some(Micros::from_micros(1)));
        if !note_end(&self.name, &self.status, counts)
            && let Some(reason) = self.damage.take()
        {
            counts.damaged.push(DamagedInput { input: self.name.clone(), reason });
        }
    }
}
