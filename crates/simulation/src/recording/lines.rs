//! The lines of a recording: the header, then an object for each request.

use std::collections::BTreeMap;

use rlaas_core::clock::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{LineProblem, RecordingError};
use super::header::{Header, VERSION};
use crate::{RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest};

/// How the first line of a recording begins.
const FIRST_BYTES: &[u8] = b"{\"rlaas_recording\":";
/// How recordings began before they were lines.
const BINARY_FIRST_BYTES: &[u8] = b"RLAASREC";

/// A line after the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedLine {
    /// A request.
    Request {
        /// Time at which it was decided.
        at: Timestamp,
        /// The request.
        request: RecordedRequest,
        /// Whether it was refused.
        was_refused: bool,
    },
    /// So many requests were lost at this point.
    Lost(u64),
}

#[derive(Serialize, Deserialize)]
struct HeaderLine {
    rlaas_recording: u64,
    #[serde(flatten)]
    header: Header,
}

/// A line after the header, as JSON.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LineObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    at_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<BTreeMap<Box<str>, Box<str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptors: Option<Vec<DescriptorObject>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    /// Alone in its line.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorObject {
    entries: Vec<EntryObject>,
    #[serde(default = "one_hit")]
    hits: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<LimitObject>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryObject {
    key: Box<str>,
    #[serde(default)]
    value: Box<str>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitObject {
    units: u64,
    window_us: u64,
}

fn one_hit() -> i64 {
    1
}

impl Header {
    /// Reads the first line of an input; `None` if it is not that of a recording.
    ///
    /// # Errors
    ///
    /// [`RecordingError`] if this version can't read the recording.
    pub fn read(line: &[u8]) -> Result<Option<Self>, RecordingError> {
        if line.starts_with(BINARY_FIRST_BYTES) {
            return Err(RecordingError::Binary);
        }
        if !line.starts_with(FIRST_BYTES) {
            return Ok(None);
        }
        let HeaderLine { rlaas_recording: version, header } =
            serde_json::from_slice(line).map_err(RecordingError::Header)?;
        if version > VERSION { Err(RecordingError::Newer(version)) } else { Ok(Some(header)) }
    }

    /// Appends the first line of a recording.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        append(out, &HeaderLine { rlaas_recording: VERSION, header: self.clone() });
    }
}

impl RecordedLine {
    /// Reads a line after the header.
    ///
    /// # Errors
    ///
    /// [`LineProblem`] if the line is not one of a recording.
    pub fn read(line: &[u8]) -> Result<Self, LineProblem> {
        let object: LineObject = serde_json::from_slice(line)?;
        let LineObject { at_us, project, user_id, resource, attributes, cost, .. } = object;
        let has_fields = user_id.is_some() || project.is_some() || resource.is_some();
        let has_fields = has_fields || attributes.is_some() || cost.is_some();
        let request = match (user_id, object.domain, object.descriptors) {
            (Some(user_id), None, None) => RecordedRequest::Fields(RecordedFields {
                project: project.unwrap_or_default(),
                user_id,
                resource: resource.unwrap_or_default(),
                attributes: attributes.unwrap_or_default().into_iter().collect(),
                cost: cost.unwrap_or(1),
            }),
            (None, Some(domain), Some(descriptors)) if !has_fields => {
                let descriptors = descriptors.into_iter().map(RecordedDescriptor::from).collect();
                RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors })
            }
            (None, None, None) if !has_fields && at_us.is_none() => {
                return object.lost.map(Self::Lost).ok_or(LineProblem::Neither);
            }
            _ => return Err(LineProblem::Neither),
        };
        let at_us = at_us.filter(|_| object.lost.is_none()).ok_or(LineProblem::Neither)?;
        let (at, was_refused) = (Timestamp::from_micros(at_us), object.refused);
        Ok(Self::Request { at, request, was_refused })
    }

    /// Returns about how many bytes the request of the line takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Request { request, .. } => request.bytes(),
            Self::Lost(_) => 0,
        }
    }

    /// Appends the line.
    pub(super) fn append_to(self, out: &mut Vec<u8>) {
        let object = match self {
            Self::Lost(count) => LineObject { lost: Some(count), ..LineObject::default() },
            Self::Request { at, request, was_refused } => {
                let (at_us, refused) = (Some(at.as_micros()), was_refused);
                LineObject { at_us, refused, ..LineObject::from(request) }
            }
        };
        append(out, &object);
    }
}

fn append(out: &mut Vec<u8>, line: &impl Serialize) {
    serde_json::to_writer(&mut *out, line).expect("memory takes all, and keys of maps are texts");
    out.push(b'\n');
}

impl From<RecordedRequest> for LineObject {
    fn from(request: RecordedRequest) -> Self {
        match request {
            RecordedRequest::Fields(fields) => Self {
                project: Some(fields.project).filter(|text| !text.is_empty()),
                user_id: Some(fields.user_id),
                resource: Some(fields.resource).filter(|text| !text.is_empty()),
                attributes: Some(fields.attributes.into_iter().collect())
                    .filter(|all: &BTreeMap<_, _>| !all.is_empty()),
                cost: Some(fields.cost),
                ..Self::default()
            },
            RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors }) => Self {
                domain: Some(domain),
                descriptors: Some(descriptors.into_iter().map(DescriptorObject::from).collect()),
                ..Self::default()
            },
        }
    }
}

impl From<RecordedDescriptor> for DescriptorObject {
    fn from(RecordedDescriptor { entries, hits, limit }: RecordedDescriptor) -> Self {
        let entries = entries.into_iter().map(|(key, value)| EntryObject { key, value }).collect();
        let limit = limit.map(|(units, window_us)| LimitObject { units, window_us });
        Self { entries, hits, limit }
    }
}

impl From<DescriptorObject> for RecordedDescriptor {
    fn from(DescriptorObject { entries, hits, limit }: DescriptorObject) -> Self {
        const MAX_HITS: i64 = u32::MAX as i64;
        Self {
            entries: entries.into_iter().map(|entry| (entry.key, entry.value)).collect(),
            hits: hits.clamp(-MAX_HITS, MAX_HITS),
            limit: limit.map(|limit| (limit.units, limit.window_us)),
        }
    }
}
