//! From the fields of a line to its request and time, as the settings and the format say.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rlaas_core::clock::Micros;

use crate::request::RecordedRequest;
use crate::traffic::mapping::{Condition, Fields, Mapping, RequestError};
use crate::traffic::stamp::{Stamp, StampError, StampReader};

/// What the lines of logs are mapped to.
#[derive(Debug)]
pub(crate) struct LogMapping {
    pub(super) mapping: Mapping,
    pub(super) conditions: Vec<Condition>,
    /// Whether stamps are those of the end, so that the duration is before them.
    pub(super) is_stamped_at_end: bool,
    pub(super) skip_statuses: Vec<u16>,
    pub(super) fields: SeenFields,
}

/// The fields that expressions use, and whether a line of any input had a value for each.
#[derive(Debug)]
pub(super) struct SeenFields {
    names: Vec<String>,
    is_seen: Vec<AtomicBool>,
    unseen: AtomicUsize,
}

impl SeenFields {
    pub(super) fn new(names: &[String]) -> Self {
        let is_seen = names.iter().map(|_| AtomicBool::new(false)).collect();
        Self { names: names.to_vec(), is_seen, unseen: AtomicUsize::new(names.len()) }
    }

    /// Looks for values of fields that no line had so far.
    fn add(&self, fields: &impl Fields) {
        if self.unseen.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (number, is_seen) in self.is_seen.iter().enumerate() {
            let is_new = !is_seen.load(Ordering::Relaxed) && fields.value(number).is_some();
            if is_new && !is_seen.swap(true, Ordering::Relaxed) {
                self.unseen.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the names of the fields that no line had so far.
    pub(super) fn absent(&self) -> Vec<String> {
        let fields = self.names.iter().zip(&self.is_seen);
        let absent = fields.filter(|(_, is_seen)| !is_seen.load(Ordering::Relaxed));
        absent.map(|(name, _)| name.clone()).collect()
    }
}

/// What a line is.
#[derive(Debug)]
pub(super) enum LineOutcome {
    /// A request.
    Request(MappedLine),
    /// Left out by a condition.
    Skipped,
    /// Left out by its status.
    SkippedByStatus,
    /// Without a user id or a descriptor.
    Anonymous,
}

/// A line that is a request.
#[derive(Debug)]
pub(super) struct MappedLine {
    pub(super) request: RecordedRequest,
    pub(super) stamp: Stamp,
    /// What is before the stamp; `None` if it should be known and is not.
    pub(super) duration: Option<Micros>,
    pub(super) was_refused: bool,
}

/// Why a line can't be a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum MapLineError {
    /// The time can't be read.
    #[error(transparent)]
    Stamp(#[from] StampError),
    /// The duration can't be read.
    #[error("duration must be a number, not below 0")]
    Duration,
    /// The parts of the request are out of bounds.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The status of requests that were refused.
const TOO_MANY_REQUESTS: u16 = 429;

impl LogMapping {
    /// Maps the fields of a line.
    ///
    /// # Errors
    ///
    /// [`MapLineError`] if the line can't be a request.
    pub(super) fn map(
        &self,
        fields: &impl Fields,
        stamps: &mut StampReader,
        scratch: &mut Vec<u8>,
    ) -> Result<LineOutcome, MapLineError> {
        self.fields.add(fields);
        if !self.conditions.iter().all(|condition| condition.holds(fields, scratch)) {
            return Ok(LineOutcome::Skipped);
        }
        let status = self.mapping.status(fields, scratch);
        if status.is_some_and(|status| self.skip_statuses.contains(&status)) {
            return Ok(LineOutcome::SkippedByStatus);
        }
        let Some(request) = self.mapping.request.request(fields, scratch)? else {
            return Ok(LineOutcome::Anonymous);
        };
        let time = self.mapping.time.as_ref().and_then(|time| time.value.value(fields, scratch));
        let stamp = stamps.read(time.ok_or(StampError::Absent)?)?;
        let duration = self.duration(fields, scratch)?;
        let was_refused = status == Some(TOO_MANY_REQUESTS);
        Ok(LineOutcome::Request(MappedLine { request, stamp, duration, was_refused }))
    }

    fn duration(
        &self,
        fields: &impl Fields,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Micros>, MapLineError> {
        if !self.is_stamped_at_end {
            return Ok(Some(Micros::ZERO));
        }
        let Some(duration) = &self.mapping.duration else { return Ok(None) };
        duration.duration(fields, scratch).map_err(|_| MapLineError::Duration)
    }
}
