//! Thresholds: parts of a limit that a key has used, which are told once the verdict stands.

use std::sync::Arc;

use super::Limiter;
use super::observers::RuleObservers;
use crate::observer::Reached;
use crate::operation::HitReply;
use crate::plan::Hit;
use crate::rules::RuleSet;

impl Limiter {
    /// Reports the thresholds that a hit has reached by taking `units`, after which its key was as in `reply`.
    /// `stays` is the count now, if the units were given back since.
    pub(super) fn report_reached(
        &self,
        rules: &RuleSet,
        observers: &RuleObservers,
        hit: &Hit,
        reply: &HitReply,
        units: u64,
        stays: Option<u64>,
    ) {
        let rule = rules.rule(hit.rule);
        let limit = hit.counted_grant(reply).limit();
        let Some(limit) = limit.filter(|_| units > 0) else { return };
        let decision = &reply.decision;
        let after = decision.current_count;
        let count = stays.unwrap_or(after);
        for threshold in rule.notify_at {
            let units_at = threshold.threshold(limit);
            if after.saturating_sub(units) < units_at && after.min(count) >= units_at {
                self.shared.observer.reached(Reached {
                    project: rules.project().to_owned(),
                    rule: Arc::clone(rule.name),
                    observed_as: observers.name(hit.rule, &rule).to_owned(),
                    key: hit.key.clone(),
                    threshold: *threshold,
                    count,
                    limit: limit.units(),
                    at: decision.at,
                    window_ends_at: decision.at + decision.reset_after,
                    is_shadow: hit.mode.is_shadow(),
                });
            }
        }
    }
}
