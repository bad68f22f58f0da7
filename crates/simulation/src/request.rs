//! A request of recorded traffic.

use std::num::NonZeroU32;

use rlaas_core::algorithm::{Cost, Limit};
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::rules::descriptors::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, LimitOverride, RequestDescriptor,
};
use rlaas_core::rules::{InvalidRequest, Request};
use smallvec::SmallVec;

/// A request as it was recorded. Not checked against the bounds of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedRequest {
    /// A request by user, resource and attributes.
    Fields(RecordedFields),
    /// A request by descriptors, as Envoy sends them.
    Descriptors(RecordedDescriptors),
}

/// A request by user, resource and attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedFields {
    /// User or client.
    pub user_id: Box<str>,
    /// Resource; empty if there is none.
    pub resource: Box<str>,
    /// Names and values of attributes.
    pub attributes: Box<[(Box<str>, Box<str>)]>,
    /// Units to take.
    pub cost: u32,
    /// The fewest units to take, of a request that takes what is there; else 0.
    pub at_least: u32,
}

/// A request by descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedDescriptors {
    /// Domain.
    pub domain: Box<str>,
    /// Descriptors, in order.
    pub descriptors: Box<[RecordedDescriptor]>,
}

/// One descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedDescriptor {
    /// Keys and values, from the top of the tree down.
    pub entries: Box<[(Box<str>, Box<str>)]>,
    /// Units to take; negative units are returned. From `-u32::MAX` to `u32::MAX`.
    pub hits: i64,
    /// A limit that the request brought along: units, and the window in microseconds.
    pub limit: Option<(u64, u64)>,
}

/// One request and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedRequest {
    /// Time at which the request arrived.
    pub at: Timestamp,
    /// The request.
    pub request: RecordedRequest,
    /// Whether the recorded answer was a refusal: status 429.
    pub was_refused: bool,
}

impl From<&Request<'_>> for RecordedRequest {
    fn from(request: &Request<'_>) -> Self {
        let attributes = request.attributes().iter();
        Self::Fields(RecordedFields {
            user_id: request.user_id().into(),
            resource: request.resource().into(),
            attributes: attributes.map(|(name, value)| (name.into(), value.into())).collect(),
            cost: request.cost().units().try_into().unwrap_or(u32::MAX),
            at_least: request.at_least().map_or(0, NonZeroU32::get),
        })
    }
}

impl From<&DescriptorRequest<'_>> for RecordedRequest {
    fn from(request: &DescriptorRequest<'_>) -> Self {
        let descriptors = request.descriptors().iter().map(RecordedDescriptor::from).collect();
        Self::Descriptors(RecordedDescriptors { domain: request.domain().into(), descriptors })
    }
}

impl From<&RequestDescriptor<'_>> for RecordedDescriptor {
    fn from(descriptor: &RequestDescriptor<'_>) -> Self {
        let entries = descriptor.entries.iter();
        let limit = descriptor.limit.as_ref();
        Self {
            entries: entries.map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            hits: match descriptor.hits {
                HitsAddend::Take(cost) => cost.units().cast_signed(),
                HitsAddend::Credit(cost) => -cost.units().cast_signed(),
            },
            limit: limit.map(|limit| {
                let units = limit.grant().limit().map_or(0, Limit::units);
                (units, limit.window().as_micros())
            }),
        }
    }
}

impl RecordedRequest {
    /// Returns about how many bytes the request takes.
    pub(crate) fn bytes(&self) -> usize {
        let pairs = |pairs: &[(Box<str>, Box<str>)]| -> usize {
            pairs.iter().map(|(name, value)| name.len() + value.len() + 64).sum()
        };
        let texts = match self {
            Self::Fields(fields) => {
                let plain = [&fields.user_id, &fields.resource];
                plain.map(|text| text.len()).iter().sum::<usize>() + pairs(&fields.attributes)
            }
            Self::Descriptors(recorded) => {
                let descriptors =
                    recorded.descriptors.iter().map(|descriptor| pairs(&descriptor.entries) + 64);
                recorded.domain.len() + descriptors.sum::<usize>()
            }
        };
        texts + size_of::<Self>()
    }
}

/// Calls `f` with the request of recorded fields.
///
/// # Errors
///
/// [`InvalidRequest`] if a field is out of bounds.
pub fn with_request<T>(
    fields: &RecordedFields,
    f: impl FnOnce(&Request<'_>) -> T,
) -> Result<T, InvalidRequest> {
    let attributes: SmallVec<[(&str, &str); 8]> =
        fields.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
    let request = Request::user(&fields.user_id).resource(&fields.resource);
    let request = request.attributes(&attributes[..]).cost(fields.cost).build()?;
    let request = request.with_at_least(fields.at_least.into())?;
    Ok(f(&request))
}

/// Returns the request of recorded descriptors.
///
/// # Errors
///
/// [`InvalidDescriptor`] if a field is out of bounds.
pub fn descriptor_request(
    recorded: &RecordedDescriptors,
) -> Result<DescriptorRequest<'_>, InvalidDescriptor> {
    let descriptors = recorded.descriptors.iter().enumerate();
    let descriptors = descriptors.map(|(index, descriptor)| request_descriptor(index, descriptor));
    DescriptorRequest::new(&recorded.domain, descriptors.collect::<Result<_, _>>()?)
}

fn request_descriptor(
    index: usize,
    recorded: &RecordedDescriptor,
) -> Result<RequestDescriptor<'_>, InvalidDescriptor> {
    let units = u32::try_from(recorded.hits.unsigned_abs());
    let cost = Cost::new(units.map_err(|_| InvalidDescriptor::Hits { index })?);
    let hits = if recorded.hits < 0 { HitsAddend::Credit(cost) } else { HitsAddend::Take(cost) };
    let limit = recorded.limit.map(|(units, window_us)| {
        LimitOverride::new(units, Micros::from_micros(window_us))
            .map_err(|error| InvalidDescriptor::Limit { index, error })
    });
    let entries = recorded.entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    Ok(RequestDescriptor { entries, limit: limit.transpose()?, hits })
}
