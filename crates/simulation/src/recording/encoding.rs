//! The bytes of a request in the compact form.

use rlaas_core::algorithm::Limit;
use rlaas_core::rules::Request;
use rlaas_core::rules::descriptors::{DescriptorRequest, HitsAddend, RequestDescriptor};
use smallvec::SmallVec;

use super::varint::{ByteReader, push, push_signed};
use crate::{RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest};

/// Kinds of requests: the first byte of each.
const FIELDS: u8 = 0;
const DESCRIPTORS: u8 = 1;
const FIELDS_IN_PROJECT: u8 = 2;
/// Most attributes, or descriptors and entries of all of them together.
const MAX_PARTS: usize = 10_000;
/// Longest request in bytes: more than the largest valid one.
const MAX_REQUEST_LEN: usize = 5 << 20;

type Pairs = Box<[(Box<str>, Box<str>)]>;

/// Appends the bytes of a request. Attributes are sorted by name, so that equal requests have equal
/// bytes.
#[inline]
pub fn push_fields(out: &mut Vec<u8>, request: &Request<'_>) {
    push_each_field(
        out,
        PlainFields {
            project: request.project(),
            user_id: request.user_id(),
            resource: request.resource(),
            cost: request.cost().units().try_into().unwrap_or(u32::MAX),
        },
        request.attributes().iter(),
    );
}

/// Appends the bytes of a request with those of its descriptors that `keep` selects. Returns how
/// many these are; nothing is appended if there are none.
pub fn push_descriptors(
    out: &mut Vec<u8>,
    request: &DescriptorRequest<'_>,
    keep: impl Fn(&RequestDescriptor<'_>) -> bool,
) -> usize {
    let kept: SmallVec<[&RequestDescriptor<'_>; 4]> =
        request.descriptors().iter().filter(|descriptor| keep(descriptor)).collect();
    if kept.is_empty() {
        return 0;
    }
    out.push(DESCRIPTORS);
    push_text(out, request.domain());
    push(out, kept.len() as u64);
    for descriptor in &kept {
        push(out, descriptor.entries.len() as u64);
        for (key, value) in &descriptor.entries {
            push_text(out, key);
            push_text(out, value);
        }
        push_signed(
            out,
            match descriptor.hits {
                HitsAddend::Take(cost) => cost.units().cast_signed(),
                HitsAddend::Credit(cost) => -cost.units().cast_signed(),
            },
        );
        let limit = descriptor.limit.map(|limit| {
            let units = limit.grant().limit().map_or(0, Limit::units);
            (units, limit.window().as_micros())
        });
        push_limit(out, limit);
    }
    kept.len()
}

/// Appends the bytes of a recorded request.
pub(super) fn push_recorded(out: &mut Vec<u8>, request: &RecordedRequest) {
    match request {
        RecordedRequest::Fields(fields) => {
            let RecordedFields { project, user_id, resource, attributes, cost } = fields;
            let attributes = attributes.iter().map(|(name, value)| (&**name, &**value));
            let plain = PlainFields { project, user_id, resource, cost: *cost };
            push_each_field(out, plain, attributes);
        }
        RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors }) => {
            out.push(DESCRIPTORS);
            push_text(out, domain);
            push(out, descriptors.len() as u64);
            for RecordedDescriptor { entries, hits, limit } in descriptors {
                push(out, entries.len() as u64);
                for (key, value) in entries {
                    push_text(out, key);
                    push_text(out, value);
                }
                push_signed(out, *hits);
                push_limit(out, *limit);
            }
        }
    }
}

/// The fields of a request, except for its attributes.
struct PlainFields<'a> {
    project: &'a str,
    user_id: &'a str,
    resource: &'a str,
    cost: u32,
}

#[inline]
fn push_each_field<'a>(
    out: &mut Vec<u8>,
    PlainFields { project, user_id, resource, cost }: PlainFields<'_>,
    attributes: impl Iterator<Item = (&'a str, &'a str)>,
) {
    let mut attributes: SmallVec<[(&str, &str); 8]> = attributes.collect();
    attributes.sort_unstable();
    if project.is_empty() {
        out.push(FIELDS);
    } else {
        out.push(FIELDS_IN_PROJECT);
        push_text(out, project);
    }
    push_text(out, user_id);
    push_text(out, resource);
    push(out, cost.into());
    push(out, attributes.len() as u64);
    for (name, value) in attributes {
        push_text(out, name);
        push_text(out, value);
    }
}

/// Appends a limit that a descriptor brought along: units, and window in microseconds.
fn push_limit(out: &mut Vec<u8>, limit: Option<(u64, u64)>) {
    push(out, limit.is_some().into());
    if let Some((units, window_us)) = limit {
        push(out, units);
        push(out, window_us);
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    push(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads a request. `None` if the bytes are not those of a request.
pub(super) fn read_request(reader: &mut ByteReader<'_>) -> Option<RecordedRequest> {
    let mut parts = MAX_PARTS;
    match reader.byte()? {
        kind @ (FIELDS | FIELDS_IN_PROJECT) => Some(RecordedRequest::Fields(RecordedFields {
            project: if kind == FIELDS { Box::default() } else { reader.text()?.into() },
            user_id: reader.text()?.into(),
            resource: reader.text()?.into(),
            cost: reader.number()?.try_into().ok()?,
            attributes: pairs(reader, &mut parts)?,
        })),
        DESCRIPTORS => {
            let domain = reader.text()?.into();
            let count = count(reader, &mut parts)?;
            let descriptors: Option<_> =
                (0..count).map(|_| descriptor(reader, &mut parts)).collect();
            let descriptors = descriptors?;
            Some(RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors }))
        }
        _ => None,
    }
}

fn descriptor(reader: &mut ByteReader<'_>, parts: &mut usize) -> Option<RecordedDescriptor> {
    const MAX_HITS: i64 = u32::MAX as i64;
    let entries = pairs(reader, parts)?;
    let hits = reader.signed().filter(|hits| (-MAX_HITS..=MAX_HITS).contains(hits))?;
    let limit = match reader.byte()? {
        0 => None,
        1 => Some((reader.number()?, reader.number()?)),
        _ => return None,
    };
    Some(RecordedDescriptor { entries, hits, limit })
}

fn pairs(reader: &mut ByteReader<'_>, parts: &mut usize) -> Option<Pairs> {
    let count = count(reader, parts)?;
    (0..count).map(|_| Some((reader.text()?.into(), reader.text()?.into()))).collect()
}

fn count(reader: &mut ByteReader<'_>, parts: &mut usize) -> Option<usize> {
    let count = usize::try_from(reader.number()?).ok()?;
    *parts = parts.checked_sub(count)?;
    Some(count)
}

/// Returns the bytes that a request takes in the dictionary, by the measure of the format: 128, 64
/// for each attribute, descriptor and entry, and those of all texts.
pub(super) fn dictionary_bytes(request: &RecordedRequest) -> u64 {
    let pairs = |pairs: &[(Box<str>, Box<str>)]| -> usize {
        pairs.iter().map(|(one, other)| 64 + one.len() + other.len()).sum()
    };
    let bytes = match request {
        RecordedRequest::Fields(fields) => {
            let plain = [&fields.project, &fields.user_id, &fields.resource];
            plain.map(|text| text.len()).iter().sum::<usize>() + pairs(&fields.attributes)
        }
        RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors }) => {
            let descriptors = descriptors.iter().map(|one| 64 + pairs(&one.entries));
            domain.len() + descriptors.sum::<usize>()
        }
    };
    128 + bytes as u64
}

/// Returns the request of these bytes; `None` if it is too long, has too many parts, or hits out of
/// bounds.
pub(super) fn decode(encoded: &[u8]) -> Option<RecordedRequest> {
    if encoded.len() > MAX_REQUEST_LEN {
        return None;
    }
    let mut reader = ByteReader::new(encoded, 0);
    read_request(&mut reader).filter(|_| reader.position() == encoded.len())
}
