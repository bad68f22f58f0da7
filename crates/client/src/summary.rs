//! What callers are told of a verdict by the service. The length of a window and a burst are not in
//! its responses.

use rlaas_core::clock::Span;
use rlaas_core::summary::{RuleSummary, Summary};
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, RuleDecision};

use crate::verdict::{AnsweredBy, Verdict, span, to_message};

impl Summary for Verdict {
    fn is_allowed(&self) -> bool {
        self.is_allowed()
    }

    fn retry_after(&self) -> Option<Span> {
        let response = self.response();
        response.retry_after.as_ref().filter(|_| !response.allowed).map(span)
    }

    fn rules(&self) -> impl Iterator<Item = RuleSummary<'_>> {
        let response = self.response();
        let enforced = response.decisions.iter().filter(|decision| !decision.shadow);
        enforced.filter_map(|decision| of_rule(decision, decision.allowed == response.allowed))
    }

    fn deciding_rule(&self) -> Option<RuleSummary<'_>> {
        let response = self.response();
        let of_name = |decision: &&RuleDecision| decision.rule == response.rule;
        of_rule(response.decisions.iter().find(of_name)?, true)
    }

    fn refused_for(&self) -> Option<Span> {
        let is_limit = self.response().reason() == Reason::OverLimit;
        let is_fresh = self.answered_by() == AnsweredBy::Server;
        self.retry_after().filter(|_| is_limit && is_fresh)
    }

    fn after(&self, elapsed: Span) -> Self {
        let shorten = |wait: &mut Option<prost_types::Duration>| {
            if let Some(wait) = wait {
                *wait = to_message((span(wait) - elapsed).max(Span::from_micros(1)));
            }
        };
        let shorten_ttl = |ttl: &mut i64, algorithm: Algorithm| {
            // Of a log it is always the window.
            if algorithm != Algorithm::SlidingWindowLog {
                let seconds = i64::try_from(elapsed.as_micros() / 1_000_000).unwrap_or(i64::MAX);
                *ttl = ttl.saturating_sub(seconds).max(1);
            }
        };
        let mut response = self.response().clone();
        response.source = Source::DenyCache.into();
        shorten(&mut response.retry_after);
        shorten(&mut response.reset_after);
        let algorithm = response.algorithm();
        shorten_ttl(&mut response.ttl, algorithm);
        // Those that allowed may have changed since.
        response.decisions.retain(|decision| !decision.allowed);
        for decision in &mut response.decisions {
            shorten(&mut decision.retry_after);
            shorten(&mut decision.reset_after);
            let algorithm = decision.algorithm();
            shorten_ttl(&mut decision.ttl, algorithm);
        }
        Self::new(response, AnsweredBy::Remembered)
    }
}

fn of_rule(decision: &RuleDecision, is_told: bool) -> Option<RuleSummary<'_>> {
    let reason = decision.reason();
    let is_counted = !(decision.allowed && reason == Reason::StoreUnavailable);
    let reset = decision.retry_after.as_ref().or(decision.reset_after.as_ref());
    (reason != Reason::Unlimited).then(|| RuleSummary {
        name: &decision.rule,
        quota: u64::try_from(decision.limit).unwrap_or_default(),
        window: None,
        burst: None,
        remaining: is_counted.then(|| u64::try_from(decision.remaining).unwrap_or_default()),
        reset: reset.map(span).filter(|_| reason != Reason::Banned),
        is_told,
    })
}
