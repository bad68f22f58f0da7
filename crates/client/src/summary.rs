//! The summary of a verdict by the service. Its responses do not have the burst.

use rlaas_core::clock::Micros;
use rlaas_core::summary::{RuleSummary, Summary};
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, RuleDecision};

use crate::verdict::{AnsweredBy, Verdict, micros, to_message};

impl Summary for Verdict {
    fn is_allowed(&self) -> bool {
        self.is_allowed()
    }

    fn retry_after(&self) -> Option<Micros> {
        let response = self.response();
        response.retry_after.as_ref().filter(|_| !response.allowed).map(micros)
    }

    fn rules(&self) -> impl Iterator<Item = RuleSummary<'_>> {
        let response = self.response();
        let enforced = response.decisions.iter().filter(|decision| !decision.shadow);
        enforced.filter_map(|decision| rule_summary(decision, decision.allowed == response.allowed))
    }

    fn deciding_rule(&self) -> Option<RuleSummary<'_>> {
        let response = self.response();
        let of_name = |decision: &&RuleDecision| decision.rule == response.rule;
        rule_summary(response.decisions.iter().find(of_name)?, true)
    }

    fn refused_for(&self) -> Option<Micros> {
        let is_limit = self.response().reason() == Reason::OverLimit;
        let is_fresh = self.answered_by() == AnsweredBy::Server;
        self.retry_after().filter(|_| is_limit && is_fresh)
    }

    fn after(&self, elapsed: Micros) -> Self {
        let shorten = |wait: &mut Option<prost_types::Duration>| {
            if let Some(wait) = wait {
                *wait = to_message((micros(wait) - elapsed).max(Micros::from_micros(1)));
            }
        };
        let shorten_ttl = |ttl: &mut i64, algorithm: Algorithm| {
            // The time to live of a log is always the window.
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
        // The rules that allowed the request may deny it by now.
        response.decisions.retain(|decision| !decision.allowed);
        for decision in &mut response.decisions {
            shorten(&mut decision.retry_after);
            shorten(&mut decision.reset_after);
            let algorithm = decision.algorithm();
            shorten_ttl(&mut decision.ttl, algorithm);
        }
        Self::new(response, AnsweredBy::Cache)
    }
}

fn rule_summary(decision: &RuleDecision, is_relevant: bool) -> Option<RuleSummary<'_>> {
    let reason = decision.reason();
    let is_counted = !(decision.allowed && reason == Reason::StoreUnavailable);
    let reset = decision.retry_after.as_ref().or(decision.reset_after.as_ref());
    (reason != Reason::Unlimited).then(|| RuleSummary {
        name: &decision.rule,
        quota: u64::try_from(decision.limit).unwrap_or_default(),
        window: decision.window.as_ref().map(micros),
        burst: None,
        has_slots: decision.algorithm() == Algorithm::Concurrency,
        remaining: is_counted.then(|| u64::try_from(decision.remaining).unwrap_or_default()),
        reset: reset.map(micros).filter(|_| reason != Reason::Banned),
        is_relevant,
    })
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::v1::CheckResponse;

    use super::*;

    const WAIT: Micros = Micros::from_secs(7);

    fn decision(rule: &str, reason: Reason) -> RuleDecision {
        RuleDecision {
            rule: rule.to_owned(),
            allowed: !matches!(reason, Reason::OverLimit | Reason::Banned),
            limit: if reason == Reason::Banned { 0 } else { 5 },
            remaining: 2,
            retry_after: (reason == Reason::OverLimit).then(|| to_message(WAIT)),
            reset_after: Some(to_message(Micros::from_secs(9))),
            reason: reason.into(),
            ..RuleDecision::default()
        }
    }

    /// A verdict by the first of these decisions.
    fn verdict(decisions: Vec<RuleDecision>, answered_by: AnsweredBy) -> Verdict {
        let deciding = &decisions[0];
        let response = CheckResponse {
            allowed: deciding.allowed,
            rule: deciding.rule.clone(),
            reason: deciding.reason,
            retry_after: deciding.retry_after,
            decisions,
            ..CheckResponse::default()
        };
        Verdict::new(response, answered_by)
    }

    #[test]
    fn summary_has_the_numbers_of_each_reason() {
        let some = Some(2);
        for (reason, expected) in [
            (Reason::WithinLimit, Some((5, some, Some(Micros::from_secs(9))))),
            (Reason::OverLimit, Some((5, some, Some(WAIT)))),
            (Reason::Banned, Some((0, some, None))),
            (Reason::StoreUnavailable, Some((5, None, Some(Micros::from_secs(9))))),
            (Reason::Unlimited, None),
        ] {
            let verdict = verdict(vec![decision("a", reason)], AnsweredBy::Server);
            let numbers = |rule: RuleSummary<'_>| (rule.quota, rule.remaining, rule.reset);
            assert_eq!(verdict.rules().next().map(numbers), expected, "{reason:?}");
            assert_eq!(verdict.deciding_rule().map(numbers), expected, "{reason:?}");
        }
    }

    #[test]
    fn rules_that_deny_are_relevant_and_shadows_are_left_out() {
        let shadow = RuleDecision { shadow: true, ..decision("trial", Reason::OverLimit) };
        let denied = decision("minute", Reason::OverLimit);
        let decisions = vec![denied, decision("hour", Reason::WithinLimit), shadow];
        let verdict = verdict(decisions, AnsweredBy::Server);
        let relevance = |verdict: &Verdict| {
            let rules = verdict.rules().map(|rule| (rule.name.to_owned(), rule.is_relevant));
            rules.collect::<Vec<_>>()
        };
        let minute = ("minute".to_owned(), true);
        assert_eq!(relevance(&verdict), [minute.clone(), ("hour".to_owned(), false)]);
        assert_eq!(verdict.refused_for(), Some(WAIT));
        let later = verdict.after(Micros::from_secs(3));
        assert_eq!((relevance(&later), later.refused_for()), (vec![minute], None));
        assert_eq!(later.retry_after(), Some(Micros::from_secs(4)));
        assert_eq!(later.deciding_rule().and_then(|rule| rule.reset), Some(Micros::from_secs(4)));
    }

    #[test]
    fn only_refusals_by_a_limit_of_the_server_are_cached() {
        for (reason, answered_by, expected) in [
            (Reason::OverLimit, AnsweredBy::Server, Some(WAIT)),
            (Reason::OverLimit, AnsweredBy::Cache, None),
            (Reason::OverLimit, AnsweredBy::Policy, None),
            (Reason::Banned, AnsweredBy::Server, None),
            (Reason::WithinLimit, AnsweredBy::Server, None),
        ] {
            let verdict = verdict(vec![decision("a", reason)], answered_by);
            assert_eq!(verdict.refused_for(), expected, "{reason:?}, {answered_by:?}");
        }
    }
}
