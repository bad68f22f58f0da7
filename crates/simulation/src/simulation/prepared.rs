//! Recorded requests, planned once.

use rlaas_core::algorithm::Cost;
use rlaas_core::clock::Micros;
use rlaas_core::plan::{Hit, Plan};
use rlaas_core::rules::descriptors::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, LimitOverride, RequestDescriptor,
};
use rlaas_core::rules::{InvalidRequest, Request};
use rlaas_limiter::{Limiter, PreparedCheck, PreparedDescriptors};
use smallvec::SmallVec;

use super::verdict::InvalidRecord;
use crate::request::{RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest};

/// A request that was planned, with the positions of its hits in the report.
#[derive(Debug)]
pub(super) struct PreparedRequest {
    pub(super) check: PreparedKind,
    pub(super) hits: SmallVec<[HitPosition; 1]>,
}

/// How a request is decided.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all requests are of the largest kind")]
pub(super) enum PreparedKind {
    /// By user, resource and attributes.
    Check(PreparedCheck),
    /// By descriptors. Boxed because it is large and the other kind must stay small.
    Descriptors(Box<PreparedDescriptors>),
    /// Not at all.
    Invalid(InvalidRecord),
}

/// Where a hit is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct HitPosition {
    /// Position of the rule among all rules.
    pub(super) rule: usize,
    /// Position of the key among all keys.
    pub(super) key: usize,
}

impl PreparedRequest {
    /// Plans a request; `position_of` returns where a hit is counted.
    pub(super) fn new(
        limiter: &Limiter,
        request: &RecordedRequest,
        position_of: impl FnMut(&Hit) -> HitPosition,
    ) -> Self {
        let check = PreparedKind::new(limiter, request).unwrap_or_else(PreparedKind::Invalid);
        let hits = check.plan().map(|plan| plan.hits.iter().map(position_of).collect());
        Self { hits: hits.unwrap_or_default(), check }
    }
}

impl PreparedKind {
    fn new(limiter: &Limiter, request: &RecordedRequest) -> Result<Self, InvalidRecord> {
        match request {
            RecordedRequest::Fields(fields) => {
                with_request(fields, |request| Self::Check(limiter.prepare(request)))
                    .map_err(InvalidRecord::from)
            }
            RecordedRequest::Descriptors(descriptors) => {
                let request = descriptor_request(descriptors)?;
                let prepared = limiter.prepare_descriptors(&request)?;
                Ok(Self::Descriptors(Box::new(prepared)))
            }
        }
    }

    /// Returns the hits of the request.
    fn plan(&self) -> Option<&Plan> {
        match self {
            Self::Check(check) => Some(check.plan()),
            Self::Descriptors(check) => Some(check.plan()),
            Self::Invalid(_) => None,
        }
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
    let descriptors = descriptors.map(|(index, one)| request_descriptor(index, one));
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
