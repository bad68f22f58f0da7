//! The units that a request takes that takes what is there.

use super::{Hit, Plan};
use crate::algorithm::Limit;
use crate::operation::Action;
use crate::rules::RuleSet;
use crate::verdict::{HitResult, Source};

impl Plan {
    /// Returns the units that the request takes if it is allowed, from the results of its hits; `None` if it takes
    /// its cost or nothing. Hits say it that are enforced, have a limit, and have counted or held them.
    #[cold]
    pub fn units_taken(&self, rules: &RuleSet, results: &[Option<HitResult>]) -> Option<u64> {
        let cost = self.up_to?.units();
        let (mut units, mut least, mut is_unsure) = (None, 0, false);
        for (hit, result) in self.hits.iter().zip(results) {
            let Some((at_least, result)) = hit.at_least.zip(result.as_ref()) else { continue };
            let Some(limit) = result.grant(hit).limit().copied() else { continue };
            let has_counted = matches!(result.source, Source::Store | Source::LocalFallback);
            if hit.mode.is_shadow() || !has_counted {
                continue;
            }
            let limit = result.limit_here(&limit, rules.rule(hit.rule));
            let most_held = hit.cost_share.map(|share| share.units_at_once(&limit).max(1));
            let own = units_of(hit, result, &limit);
            least = least.max(own).max(at_least.get().into());
            match most_held {
                // A repeated reservation does not say what it has taken beside what it holds.
                _ if own == 0 => is_unsure = true,
                Some(most) if own == most || own > most && is_look(hit) => {}
                _ => units = Some(own.min(units.unwrap_or(own))),
            }
        }
        let otherwise = if is_unsure { least } else { cost };
        Some(units.unwrap_or(otherwise).min(cost))
    }
}

fn is_look(hit: &Hit) -> bool {
    matches!(hit.action, Action::Peek(_))
}

/// Returns the units that a hit has taken or holds; of a look those that it would find.
fn units_of(hit: &Hit, HitResult { reply, .. }: &HitResult, limit: &Limit) -> u64 {
    if is_look(hit) {
        let left = u64::try_from(reply.decision.remaining).unwrap_or_default();
        let left = left.saturating_sub(hit.headroom.map_or(0, |share| share.units_at_once(limit)));
        return left.min(hit.algorithm.max_cost().into());
    }
    reply.own_hold().unwrap_or(reply.taken)
}
