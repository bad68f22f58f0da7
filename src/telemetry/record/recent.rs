//! The requests of the last minutes, in memory, on which rules can be tried.
//!
//! They are kept in segments, each a small recording of its own. The oldest segment leaves as a
//! whole: when it is too old, or when all of them take too much memory.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlaas_simulation::recording::{
    EncodedRequest, HashedHeader, Header, KeyError, RecordedKeys, RecordingError, UndecidableRule,
    Writer, hash_values, key_fingerprint, rules_for_recordings,
};
use rlaas_simulation::simulation::{
    ReportNote, SimulationReport, SimulationSettings, recording_notes,
};
use thiserror::Error;

use super::batch;
use super::replay::{Replay, pause_now};
use crate::clock::{Micros, Timestamp};
use crate::rules::{HashedParts, KeyHasher, Part, RuleSet};

/// Most bytes of all segments.
const MAX_BYTES: usize = 64 << 20;
/// Bytes after which a segment is full.
const SEGMENT_BYTES: u64 = 2 << 20;
/// Segments of the time that is kept.
const SEGMENTS: u64 = 30;
/// Largest dictionary of a segment, in bytes.
const DICTIONARY_BYTES: u64 = 8 << 20;
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
    /// Names of the rules that can't be decided, because values are hashed.
    pub undecidable: Vec<String>,
    /// The candidate, by whose keys was counted.
    pub candidate: RuleSet,
}

/// The requests on which rules are tried.
#[derive(Clone, Debug, Default)]
pub struct WantedRequests {
    /// Their project; empty for none.
    pub project: String,
    /// Whether those by descriptors are among them. They are in no project.
    pub descriptors: bool,
    /// The time of the first one, or before.
    pub since: Timestamp,
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
    /// A pause has ended it.
    #[error("stopped")]
    Stopped,
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

    /// Decides the requests that are kept by rules: those that decided up to about a second ago.
    ///
    /// Takes as long as a simulation does, and calls `pause` again and again, at least after each
    /// 1,024 requests: it is not for threads that decide. Takes at most a few hundred MiB: unless
    /// `settings` say how many keys are counted, these are 1,000,000, and the report has how many were
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`RecentError`].
    pub fn simulate(
        &self,
        settings: SimulationSettings,
        wanted: &WantedRequests,
        mut pause: impl FnMut() -> ControlFlow<()>,
    ) -> Result<RecentReport, RecentError> {
        batch::flush();
        let (segments, header, hasher) = {
            let mut recent = self.lock();
            (recent.segments_since(wanted.since)?, recent.header.clone(), recent.hasher.clone())
        };
        let mut settings = settings;
        let headers = [header];
        let found = rules_for_recordings(&settings.candidate, &headers, Some(&hasher))?;
        let mut undecidable = found.undecidable;
        settings.candidate = found.rules;
        pause_now(&mut pause)?;
        if let Some(against) = settings.against.take() {
            let found = rules_for_recordings(&against, &headers, Some(&hasher))?;
            settings.against = Some(found.rules);
            let is_new = |rule: &UndecidableRule| !undecidable.contains(rule);
            let new: Vec<_> = found.undecidable.into_iter().filter(is_new).collect();
            undecidable.extend(new);
        }
        pause_now(&mut pause)?;
        let mut notes = recording_notes(&headers, &settings.candidate, &undecidable);
        notes.insert(0, ReportNote::this_instance_alone());
        settings.max_keys.get_or_insert(MAX_KEYS);
        let candidate = settings.candidate.clone();
        let mut replay = Replay::new(settings, wanted);
        for segment in segments {
            replay.decide_segment(&segment.bytes, &mut pause)?;
        }
        let replayed = replay.finish(&mut pause)?;
        Ok(RecentReport {
            simulation: replayed.report,
            from: replayed.span.map(|(from, _)| from),
            to: replayed.span.map(|(_, to)| to),
            dropped: replayed.dropped,
            notes,
            undecidable: undecidable.into_iter().map(|rule| rule.name).collect(),
            candidate,
        })
    }

    /// Returns the time for which requests are kept.
    pub fn keep(&self) -> Micros {
        self.lock().keep
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

    /// Returns the segments that have requests since then. The one that is written goes on.
    fn segments_since(&mut self, since: Timestamp) -> Result<Vec<Segment>, RecordingError> {
        let mut segments: Vec<Segment> = self.finished.iter().cloned().collect();
        if let Some((writer, segment)) = &mut self.current {
            let bytes = writer.copy_finished()?.into();
            segments.push(Segment { bytes, ..segment.clone() });
        }
        segments.retain(|segment| segment.to >= since);
        Ok(segments)
    }

    fn end_segment(&mut self) -> Result<(), RecordingError> {
        if let Some((writer, segment)) = self.current.take() {
            let bytes = writer.finish()?.into();
            self.finished.push_back(Segment { bytes, ..segment });
        }
        Ok(())
    }
}

impl fmt::Debug for RecentTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentTraffic").finish_non_exhaustive()
    }
}
