//! Recorded requests, planned once.

use rlaas_core::algorithm::{Algorithm, Cost};
use rlaas_core::clock::Micros;
use rlaas_core::operation::Action;
use rlaas_core::plan::{Hit, Plan};
use rlaas_core::rules::descriptors::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, LimitOverride, RequestDescriptor,
};
use rlaas_core::rules::{InvalidRequest, Request};
use rlaas_limiter::{Limiter, PreparedCheck, PreparedDescriptors};
use smallvec::SmallVec;

use super::verdict::InvalidRecord;
use crate::request::{RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest};

/// Requests in one piece of [`PreparedRequests`].
const PIECE_LEN: usize = 1_024;

/// A request that was planned, with the counts of each of its hits.
#[derive(Debug)]
pub(super) struct PreparedRequest {
    pub(super) check: PreparedKind,
    pub(super) hits: SmallVec<[HitCounts; 1]>,
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

/// Counts of one hit of a request. They are kept beside its plan, whose memory a decision reads
/// anyway, and are added up by key when the plan is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HitCounts {
    /// Position of the rule in the report.
    pub(super) rule: u32,
    /// Units that the hit asks for.
    pub(super) units: u32,
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) allowed_to_refused: u64,
    pub(super) longest_wait: Micros,
}

impl PreparedRequest {
    /// Plans a request; `rule_of` returns the position of the rule of a hit in the report.
    pub(super) fn new(
        limiter: &Limiter,
        request: &RecordedRequest,
        rule_of: impl FnMut(&Hit) -> u32,
    ) -> Self {
        let check = PreparedKind::new(limiter, request).unwrap_or_else(PreparedKind::Invalid);
        let mut rule_of = rule_of;
        let counts = |hit: &Hit| {
            let units = match hit.action {
                Action::Take(cost) | Action::Report(cost) => cost.units(),
                _ => 0,
            };
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            HitCounts { rule: rule_of(hit), units, ..HitCounts::default() }
        };
        let hits = check.plan().map(|plan| plan.hits.iter().map(counts).collect());
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
    pub(super) fn plan(&self) -> Option<&Plan> {
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

/// Returns the shortest time that matters to a limit: its window, or the time between two units.
pub(super) fn shortest_time(hit: &Hit) -> Option<Micros> {
    let limit = hit.grant.limit()?;
    Some(match hit.algorithm {
        Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            Micros::from_micros(limit.window().as_micros() / limit.units())
        }
        Algorithm::FixedWindow | Algorithm::SlidingWindowCounter | Algorithm::SlidingWindowLog => {
            limit.window()
        }
    })
}

/// Planned requests by their numbers, in pieces, so that growing copies nothing.
#[derive(Debug, Default)]
pub(super) struct PreparedRequests(Vec<Vec<Option<PreparedRequest>>>);

impl PreparedRequests {
    /// Returns the request of a number, which `prepare` makes if it is new.
    #[inline]
    pub(super) fn entry(
        &mut self,
        number: u32,
        prepare: impl FnOnce() -> PreparedRequest,
    ) -> &mut PreparedRequest {
        let (piece, at) = (number as usize / PIECE_LEN, number as usize % PIECE_LEN);
        if piece >= self.0.len() {
            self.0.resize_with(piece + 1, Vec::new);
        }
        let piece = &mut self.0[piece];
        if piece.is_empty() {
            piece.resize_with(PIECE_LEN, || None);
        }
        piece[at].get_or_insert_with(prepare)
    }

    /// Returns the number of requests.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.iter().flatten().flatten().count()
    }

    /// Removes and returns all requests.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PreparedRequest> {
        std::mem::take(&mut self.0).into_iter().flatten().flatten()
    }
}
