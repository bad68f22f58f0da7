//! The requests of the last minutes, in memory, on which rules can be tried.
//!
//! They are kept in segments, each a small recording of its own. The oldest segment leaves as a
//! whole: when it is too old, or when all of them take too much memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlaas_simulation::recording::{
    EncodedRequest, HashedHeader, Header, KeyError, Reader, RecordedKeys, RecordingError, Writer,
    hash_values, key_fingerprint, rules_for_recordings,
};
use rlaas_simulation::simulation::{
    ReportNote, Simulation, SimulationReport, SimulationSettings, recording_notes,
};
use rlaas_simulation::{Dictionary, TimedRequest};
use thiserror::Error;

use super::batch;
use crate::clock::{Micros, Timestamp};
use crate::rules::{HashedParts, KeyHasher, Part};

/// Most bytes of all segments.
const MAX_BYTES: usize = 64 << 20;
/// Bytes after which a segment is full.
const SEGMENT_BYTES: u64 = 2 << 20;
/// Segments of the time that is kept.
const SEGMENTS: u64 = 30;
/// Largest dictionary of a segment, in bytes.
const DICTIONARY_BYTES: u64 = 8 << 20;
/// Bytes of a simulation's dictionary after which it begins afresh with the next segment.
const REPLAYED_BYTES: usize = 64 << 20;
/// Time by which requests may be out of order: threads send theirs several times a second.
const REORDER: Micros = Micros::from_secs(2);
/// Most requests that are held to be put in order.
const MAX_HELD: usize = 500_000;
/// Most keys of a simulation, unless its settings say how many.
const MAX_KEYS: u32 = 1_000_000;

/// Settings of the preview.
#[derive(Clone, Debug)]
pub struct PreviewSettings {
    /// Time for which requests are kept.
    pub keep: Micros,
    /// Parts whose values are hashed; `None`: they are kept as they are.
    pub hashed: Option<Vec<Part>>,
    /// The hash of values.
    pub hasher: KeyHasher,
}

/// The requests of the last minutes of this instance. Clones share them.
#[derive(Clone)]
pub struct RecentTraffic(Arc<Mutex<RecentSegments>>);

/// What rules would have done to the requests of the last minutes, of this instance alone.
#[derive(Clone, Debug)]
pub struct RecentReport {
    /// The report.
    pub simulation: SimulationReport,
    /// Time of the first request that is kept; `None` if there is none.
    pub from: Option<Timestamp>,
    /// Time of the last request.
    pub to: Option<Timestamp>,
    /// Requests of this time that were not recorded, because too many waited.
    pub dropped: u64,
    /// Remarks: that this instance alone is covered, and rules that can't be decided.
    pub notes: Vec<ReportNote>,
}

/// Reason why there is no report.
#[derive(Debug, Error)]
pub enum RecentError {
    /// The rules can't be tried on what is kept.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// What is kept can't be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
}

/// The segments.
pub(super) struct RecentSegments {
    keep: Micros,
    header: Header,
    hasher: KeyHasher,
    hashed: Option<HashedParts>,
    finished: VecDeque<Segment>,
    current: Option<(Writer<Vec<u8>>, Segment)>,
}

/// A part of what is kept.
#[derive(Clone)]
struct Segment {
    bytes: Arc<[u8]>,
    from: Timestamp,
    to: Timestamp,
}

impl RecentTraffic {
    pub(super) fn new(settings: PreviewSettings) -> Self {
        let PreviewSettings { keep, hashed: parts, hasher } = settings;
        let mut header = Header { dictionary_bytes: DICTIONARY_BYTES, ..Header::default() };
        let hashed_parts = parts.map(|parts| {
            let names = parts.iter().map(ToString::to_string).collect();
            let key = key_fingerprint(&hasher);
            header.keys = RecordedKeys::Hashed(HashedHeader { parts: names, key });
            HashedParts::new(hasher.clone(), parts)
        });
        let segments = RecentSegments {
            keep,
            header,
            hasher,
            hashed: hashed_parts,
            finished: VecDeque::new(),
            current: None,
        };
        Self(Arc::new(Mutex::new(segments)))
    }

    /// Decides the requests that are kept by rules. Of the calling thread it has all requests, of
    /// others those up to about a second ago.
    ///
    /// Takes as long as a simulation does: it is not for threads that decide. Takes at most a few
    /// hundred MiB: unless `settings` say how many keys are counted, these are 1,000,000, and the
    /// report has how many were dropped.
    ///
    /// # Errors
    ///
    /// [`RecentError`].
    pub fn simulate(&self, mut settings: SimulationSettings) -> Result<RecentReport, RecentError> {
        batch::flush();
        let (segments, header, hasher) = {
            let mut recent = self.lock();
            recent.end_segment()?;
            let finished: Vec<Segment> = recent.finished.iter().cloned().collect();
            (finished, recent.header.clone(), recent.hasher.clone())
        };
        let headers = [header];
        let found = rules_for_recordings(&settings.candidate, &headers, Some(&hasher))?;
        let mut undecidable = found.undecidable;
        settings.candidate = found.rules;
        if let Some(against) = settings.against.take() {
            let found = rules_for_recordings(&against, &headers, Some(&hasher))?;
            settings.against = Some(found.rules);
            undecidable.extend(found.undecidable);
        }
        let mut notes = recording_notes(&headers, &settings.candidate, &undecidable);
        notes.insert(0, ReportNote::this_instance_alone());
        settings.max_keys.get_or_insert(MAX_KEYS);
        let mut replay = Replay::new(settings);
        for segment in segments {
            replay.decide_segment(&segment.bytes)?;
        }
        Ok(replay.finish(notes))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RecentSegments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentSegments {
    /// Keeps requests.
    pub(super) fn write(&mut self, mut requests: &[EncodedRequest<'_>]) {
        let Some(first) = requests.first() else { return };
        let Ok((writer, segment)) = self.segment(first.at) else { return };
        for request in requests {
            segment.from = segment.from.min(request.at);
            segment.to = segment.to.max(request.at);
        }
        while !requests.is_empty() {
            // Writing to memory fails for a request that is too large alone.
            let _too_large = writer.write_encoded(&mut requests);
        }
        let is_full = self.current.as_ref().is_some_and(|(writer, segment)| {
            let span = segment.to.since(segment.from).as_micros();
            writer.len() >= SEGMENT_BYTES || span >= self.keep.as_micros() / SEGMENTS
        });
        if is_full {
            let _infallible = self.end_segment();
        }
    }

    /// Notes that requests were dropped.
    pub(super) fn add_lost(&mut self, requests: u64) {
        if requests > 0
            && let Some((writer, _)) = &mut self.current
        {
            let _infallible = writer.write_lost(requests);
        }
    }

    /// Drops the segments that are too old, and the oldest ones while all take too much memory.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        let mut bytes: usize = self.finished.iter().map(|segment| segment.bytes.len()).sum();
        while let Some(oldest) = self.finished.front() {
            if bytes <= MAX_BYTES && now.since(oldest.to) <= self.keep {
                break;
            }
            bytes -= oldest.bytes.len();
            self.finished.pop_front();
        }
        let is_old = |(_, segment): &(_, Segment)| now.since(segment.to) > self.keep;
        self.current = self.current.take_if(|current| !is_old(current));
    }

    /// Returns the segment that is written, or begins one.
    fn segment(
        &mut self,
        at: Timestamp,
    ) -> Result<&mut (Writer<Vec<u8>>, Segment), RecordingError> {
        if self.current.is_none() {
            let mut writer = Writer::new(Vec::new(), &self.header)?;
            if let Some(parts) = self.hashed.clone() {
                let rewrite = move |request| hash_values(request, &parts);
                writer = writer.with_rewrite(Box::new(rewrite));
            }
            let segment = Segment { bytes: Arc::default(), from: at, to: at };
            self.current = Some((writer, segment));
        }
        Ok(self.current.as_mut().expect("set above"))
    }

    fn end_segment(&mut self) -> Result<(), RecordingError> {
        if let Some((writer, segment)) = self.current.take() {
            let bytes = writer.finish()?.into();
            self.finished.push_back(Segment { bytes, ..segment });
        }
        Ok(())
    }
}

/// A simulation of segments, one after the other, with few of their requests in memory at a time.
struct Replay {
    simulation: Simulation,
    dictionary: Dictionary,
    /// Requests that an older one may still follow, the oldest first.
    held: BinaryHeap<Reverse<HeldRequest>>,
    arrived: u64,
    newest: Timestamp,
    /// Times of the first and the last request that was decided.
    span: Option<(Timestamp, Timestamp)>,
    dropped: u64,
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

impl Replay {
    fn new(settings: SimulationSettings) -> Self {
        Self {
            simulation: Simulation::new(settings),
            dictionary: Dictionary::default(),
            held: BinaryHeap::new(),
            arrived: 0,
            newest: Timestamp::EPOCH,
            span: None,
            dropped: 0,
        }
    }

    fn decide_segment(&mut self, bytes: &[u8]) -> Result<(), RecordingError> {
        if self.dictionary.bytes() > REPLAYED_BYTES {
            // Their numbers become void.
            self.decide_oldest(Timestamp::EPOCH, 0);
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
                numbers.push(self.dictionary.number(reader.dictionary().request(number).clone()));
            }
            let (position, request) = (self.arrived, numbers[request as usize]);
            self.held.push(Reverse(HeldRequest { at, position, request, was_refused }));
            self.arrived += 1;
            self.newest = self.newest.max(at);
            self.decide_oldest(self.newest - REORDER, MAX_HELD);
        }
        self.dropped += reader.lost();
        Ok(())
    }

    /// Decides the requests up to a time, and the oldest ones after it while more than `most` are
    /// held.
    fn decide_oldest(&mut self, until: Timestamp, most: usize) {
        while let Some(Reverse(oldest)) = self.held.peek().copied()
            && (oldest.at <= until || self.held.len() > most)
        {
            self.held.pop();
            let HeldRequest { at, request, was_refused, .. } = oldest;
            // Time never goes back.
            let (from, at) = self.span.map_or((at, at), |(from, to)| (from, to.max(at)));
            self.span = Some((from, at));
            self.simulation.decide(TimedRequest { at, request, was_refused }, &self.dictionary);
        }
    }

    fn finish(mut self, notes: Vec<ReportNote>) -> RecentReport {
        self.decide_oldest(Timestamp::EPOCH, 0);
        RecentReport {
            simulation: self.simulation.finish(),
            from: self.span.map(|(from, _)| from),
            to: self.span.map(|(_, to)| to),
            dropped: self.dropped,
            notes,
        }
    }
}

impl fmt::Debug for RecentTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentTraffic").finish_non_exhaustive()
    }
}
