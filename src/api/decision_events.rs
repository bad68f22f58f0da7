//! Decisions of all protocols for those who watch them.
//!
//! The key of the rule that decided is resolved from the request again, and only for an event that
//! somebody wants. While nobody watches, a decision costs one comparison.

use rlaas_telemetry::decisions::{DecidedKey, DecisionEvent, Requester};
use rlaas_telemetry::metrics::Metrics;

use crate::plan::{RuleIndex, Selector, SelectorTarget};
use crate::rules::Request;
use crate::rules::descriptors::{DescriptorRequest, HitsAddend, RequestDescriptor};
use rlaas_limiter::{CheckError, DescriptorVerdict, Limiter, RuleDecision, Verdict};

/// The protocol and the RPC of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) api: &'static str,
    pub(super) method: &'static str,
}

/// Offers the decision on a request to those who watch.
#[inline]
pub(super) fn decided(
    metrics: &Metrics,
    limiter: &Limiter,
    origin: Origin,
    request: &Request<'_>,
    decided: &Result<Verdict, CheckError>,
) {
    let Ok(verdict) = decided else { return };
    let requester = Requester { project: request.project(), user_id: Some(request.user_id()) };
    metrics.decisions.decided(requester, verdict, |decided_at| DecisionEvent {
        decided_at,
        project: request.project().to_owned(),
        api: origin.api,
        method: origin.method,
        key: verdict
            .deciding_position()
            .and_then(|_| key(limiter, request, &verdict.deciding().rule)),
        cost: request.cost().units(),
        verdict: verdict.clone(),
    });
}

/// Returns `true` if somebody wants to see requests after they were decided.
#[inline]
pub(super) fn are_wanted(metrics: &Metrics) -> bool {
    metrics.decisions.are_active()
}

/// Offers the decision on a request by descriptors to those who watch.
pub(super) fn descriptors_decided(
    metrics: &Metrics,
    limiter: &Limiter,
    origin: Origin,
    request: &DescriptorRequest<'_>,
    decided: &Result<DescriptorVerdict, CheckError>,
) {
    let Ok(verdict) = decided else { return };
    let watchers = &metrics.decisions;
    // The verdict is copied for the filter.
    if !watchers.are_active() {
        return;
    }
    let answers = request.descriptors().iter().zip(&verdict.answers);
    let answered: Vec<(&RequestDescriptor<'_>, &RuleDecision)> = answers
        .filter_map(|(descriptor, answer)| Some((descriptor, &answer.as_ref()?.decided)))
        .collect();
    let folded = if answered.is_empty() {
        if verdict.is_refused {
            return;
        }
        Verdict::unmatched()
    } else {
        Verdict::from_decisions(answered.iter().map(|(_, decided)| (*decided).clone()).collect())
    };
    let deciding = folded.deciding_position().and_then(|position| answered.get(position));
    let requester = Requester { project: request.project(), user_id: None };
    watchers.decided(requester, &folded, |decided_at| DecisionEvent {
        decided_at,
        project: request.project().to_owned(),
        api: origin.api,
        method: origin.method,
        key: deciding.and_then(|(descriptor, decided)| {
            descriptor_key(limiter, request, descriptor, decided)
        }),
        cost: deciding.map_or(0, |(descriptor, _)| match descriptor.hits {
            HitsAddend::Take(cost) => cost.units(),
            HitsAddend::Credit(_) => 0,
        }),
        verdict: folded.clone(),
    });
}

/// Returns the key of a rule that a request meets by the rules of its project that are in force.
fn key(limiter: &Limiter, request: &Request<'_>, rule: &str) -> Option<DecidedKey> {
    let snapshot = limiter.project_snapshot(request.project())?;
    let target = SelectorTarget::Request(request);
    let selected = snapshot.rules.select(&Selector { target, rule: Some(rule) });
    let selected = selected.ok()?.pop()?;
    Some(DecidedKey { parts: selected.parts, id: selected.hit.key.id().to_owned() })
}

/// Returns the key that a descriptor meets.
fn descriptor_key(
    limiter: &Limiter,
    request: &DescriptorRequest<'_>,
    descriptor: &RequestDescriptor<'_>,
    decided: &RuleDecision,
) -> Option<DecidedKey> {
    let (project, domain) = (request.project(), request.domain());
    if !project.is_empty() {
        return key(limiter, &descriptor.request(project), &decided.rule);
    }
    let target = SelectorTarget::Descriptor { domain, entries: &descriptor.entries };
    let snapshot = limiter.snapshot();
    let selected = snapshot.rules.select(&Selector { target, rule: None }).ok()?.pop()?;
    // The limit of a request has a key of its own.
    let is_override = matches!(decided.index, RuleIndex::Descriptor { is_override: true, .. });
    let id = if is_override { String::new() } else { selected.hit.key.id().to_owned() };
    Some(DecidedKey { parts: selected.parts, id })
}
