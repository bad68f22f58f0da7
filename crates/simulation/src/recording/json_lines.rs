//! Recordings as JSON lines: the header, then an object for each request.

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};

use rlaas_core::clock::Timestamp;
use serde::{Deserialize, Serialize};

use super::compact::MAX_DICTIONARY;
use super::error::{LineProblem, RecordingError};
use super::header::{Header, VERSION};
use super::writer::DEFAULT_DICTIONARY_BYTES;
use crate::{
    Dictionary, RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest,
    TimedRequest,
};

/// Longest line in bytes: more than the largest valid request, escaped.
const MAX_LINE: u64 = 32 << 20;

/// Writes a recording as JSON lines.
#[derive(Debug)]
pub struct JsonLinesWriter<W>(W);

/// Reads the lines after the header.
#[derive(Debug)]
pub(super) struct JsonLinesReader {
    /// Number of the line that was read last, from 1.
    line: u64,
    buffer: Vec<u8>,
    max_dictionary: usize,
}

#[derive(Serialize, Deserialize)]
struct HeaderLine {
    rlaas_recording: u64,
    #[serde(flatten)]
    header: Header,
}

/// A line after the header.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RequestLine {
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
    descriptors: Option<Vec<DescriptorLine>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    /// Requests that the writer lost at this point: alone in its line.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorLine {
    entries: Vec<EntryLine>,
    #[serde(default = "one_hit")]
    hits: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<LimitLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryLine {
    key: Box<str>,
    #[serde(default)]
    value: Box<str>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitLine {
    units: u64,
    window_us: u64,
}

fn one_hit() -> i64 {
    1
}

impl<W: Write> JsonLinesWriter<W> {
    /// Begins a recording: writes the header.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn new(output: W, header: &Header) -> Result<Self, RecordingError> {
        let mut writer = Self(output);
        let header = header.clone();
        writer.line(&HeaderLine { rlaas_recording: VERSION.into(), header })?;
        Ok(writer)
    }

    /// Writes a request.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn write(
        &mut self,
        at: Timestamp,
        request: &RecordedRequest,
        was_refused: bool,
    ) -> Result<(), RecordingError> {
        let line = RequestLine {
            at_us: Some(at.as_micros()),
            refused: was_refused,
            ..RequestLine::from(request)
        };
        self.line(&line)
    }

    /// Writes that requests were lost at this point.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn write_lost(&mut self, count: u64) -> Result<(), RecordingError> {
        if count == 0 {
            return Ok(());
        }
        self.line(&RequestLine { lost: Some(count), ..RequestLine::default() })
    }

    /// Ends the recording, and returns the output.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn finish(mut self) -> Result<W, RecordingError> {
        self.0.flush()?;
        Ok(self.0)
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), RecordingError> {
        serde_json::to_writer(&mut self.0, line).map_err(std::io::Error::from)?;
        Ok(self.0.write_all(b"\n")?)
    }
}

impl JsonLinesReader {
    /// Reads the header.
    pub(super) fn new(input: &mut impl BufRead) -> Result<(Header, Self), RecordingError> {
        let mut lines = Self { line: 0, buffer: Vec::new(), max_dictionary: 0 };
        if !lines.read_line(input)? {
            return Err(RecordingError::NotARecording);
        }
        let first: HeaderLine =
            serde_json::from_slice(&lines.buffer).map_err(|_| RecordingError::NotARecording)?;
        let HeaderLine { rlaas_recording: version, header } = first;
        if version > VERSION.into() {
            return Err(RecordingError::Newer(version));
        }
        if version == 0 {
            return Err(RecordingError::NotARecording);
        }
        let bytes =
            Some(header.dictionary_bytes).filter(|bytes| (1..=MAX_DICTIONARY).contains(bytes));
        let bytes = bytes.unwrap_or(DEFAULT_DICTIONARY_BYTES);
        lines.max_dictionary = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok((header, lines))
    }

    pub(super) fn next(
        &mut self,
        input: &mut impl BufRead,
        dictionary: &mut Dictionary,
        lost: &mut u64,
    ) -> Result<Option<TimedRequest>, RecordingError> {
        while self.read_line(input)? {
            let line = match serde_json::from_slice::<RequestLine>(&self.buffer) {
                Ok(line) => line,
                Err(error) if error.is_eof() => return Err(self.problem(LineProblem::Truncated)),
                Err(error) => return Err(self.problem(LineProblem::Json(error))),
            };
            if let RequestLine { lost: Some(count), at_us: None, .. } = line {
                *lost = lost.saturating_add(count);
                continue;
            }
            let was_refused = line.refused;
            let Some((at, request)) = line.into_request() else {
                return Err(self.problem(LineProblem::Neither));
            };
            if dictionary.bytes() + request.bytes() > self.max_dictionary {
                dictionary.clear();
            }
            let at = Timestamp::from_micros(at);
            return Ok(Some(TimedRequest { at, request: dictionary.number(request), was_refused }));
        }
        Ok(None)
    }

    /// Reads the next line that is not empty. Returns `false` at the end.
    fn read_line(&mut self, input: &mut impl BufRead) -> Result<bool, RecordingError> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = input.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut self.buffer)?;
            if read as u64 > MAX_LINE {
                return Err(self.problem(LineProblem::TooLong));
            }
            if read == 0 || !self.buffer.trim_ascii().is_empty() {
                return Ok(read > 0);
            }
        }
    }

    fn problem(&self, problem: LineProblem) -> RecordingError {
        RecordingError::Line { line: self.line, problem }
    }
}

impl RequestLine {
    fn into_request(self) -> Option<(u64, RecordedRequest)> {
        let request = match (self.user_id, self.domain, self.descriptors) {
            (Some(user_id), None, None) => RecordedRequest::Fields(RecordedFields {
                project: self.project.unwrap_or_default(),
                user_id,
                resource: self.resource.unwrap_or_default(),
                attributes: self.attributes.unwrap_or_default().into_iter().collect(),
                cost: self.cost.unwrap_or(1),
            }),
            (None, Some(domain), Some(descriptors))
                if self.project.is_none()
                    && self.resource.is_none()
                    && self.attributes.is_none()
                    && self.cost.is_none() =>
            {
                let descriptors = descriptors.into_iter().map(RecordedDescriptor::from).collect();
                RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors })
            }
            _ => return None,
        };
        Some((self.at_us?, request)).filter(|_| self.lost.is_none())
    }
}

impl From<&RecordedRequest> for RequestLine {
    fn from(request: &RecordedRequest) -> Self {
        match request {
            RecordedRequest::Fields(fields) => Self {
                project: Some(fields.project.clone()).filter(|text| !text.is_empty()),
                user_id: Some(fields.user_id.clone()),
                resource: Some(fields.resource.clone()).filter(|text| !text.is_empty()),
                attributes: Some(fields.attributes.iter().cloned().collect())
                    .filter(|all: &BTreeMap<_, _>| !all.is_empty()),
                cost: Some(fields.cost),
                ..Self::default()
            },
            RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors }) => Self {
                domain: Some(domain.clone()),
                descriptors: Some(descriptors.iter().map(DescriptorLine::from).collect()),
                ..Self::default()
            },
        }
    }
}

impl From<&RecordedDescriptor> for DescriptorLine {
    fn from(RecordedDescriptor { entries, hits, limit }: &RecordedDescriptor) -> Self {
        let entry = |(key, value): &(Box<str>, Box<str>)| EntryLine {
            key: key.clone(),
            value: value.clone(),
        };
        let entries = entries.iter().map(entry).collect();
        let limit = limit.map(|(units, window_us)| LimitLine { units, window_us });
        Self { entries, hits: *hits, limit }
    }
}

impl From<DescriptorLine> for RecordedDescriptor {
    fn from(DescriptorLine { entries, hits, limit }: DescriptorLine) -> Self {
        const MAX_HITS: i64 = u32::MAX as i64;
        Self {
            entries: entries.into_iter().map(|entry| (entry.key, entry.value)).collect(),
            hits: hits.clamp(-MAX_HITS, MAX_HITS),
            limit: limit.map(|limit| (limit.units, limit.window_us)),
        }
    }
}
