//! The hits that decide as those of a plan, and count nothing.

use crate::algorithm::Cost;
use crate::operation::Action;
use crate::plan::{Hit, Plan};
use crate::rules::Coupling;

impl Plan {
    /// Returns the costs for which the hits of this plan are decided, in order: a hit passes if a
    /// [peek](Action::Peek) for its cost does, decided by itself.
    ///
    /// They differ from the costs of the hits where several hits have one key, because the store
    /// decides those in order, each after the units that the earlier ones take.
    pub fn decided_costs(&self) -> Vec<Cost> {
        // In a banned request nothing is taken.
        let takes = self.coupling == Coupling::EachAlone || !self.is_banned();
        (0..self.hits.len()).map(|at| self.decided_cost(at, takes)).collect()
    }

    fn decided_cost(&self, at: usize, takes: bool) -> Cost {
        let hit = &self.hits[at];
        if matches!(hit.action, Action::Refund(_) | Action::Credit(_) | Action::Reset) {
            return Cost::NONE;
        }
        let own = hit.action.cost().units();
        if self.has_key_once(hit) {
            return hit.action.cost();
        }
        let same_key = self.hits.iter().enumerate().filter(|(_, other)| other.key == hit.key);
        // A look for no units passes unless there is debt, which only reports cause.
        let sees_reports = own > 0 || keeps_debt(hit);
        let before = same_key.filter(|(other, earlier)| match (self.coupling, earlier.action) {
            // Reports are counted first.
            (Coupling::AllOrNothing, Action::Report(_)) => {
                *other != at && (*other < at || !is_report(hit)) && sees_reports
            }
            (Coupling::AllOrNothing, Action::Take(_)) => *other < at && !is_report(hit) && takes,
            (Coupling::EachAlone, Action::Report(_)) => *other < at && sees_reports,
            (Coupling::EachAlone, Action::Take(_)) => *other < at && own > 0,
            _ => false,
        });
        let before = before.map(|(_, earlier)| earlier.action.cost().units());
        Cost::total(before.sum::<u64>() + own)
    }
}

fn is_report(hit: &Hit) -> bool {
    matches!(hit.action, Action::Report(_))
}

fn keeps_debt(hit: &Hit) -> bool {
    let max_debt = hit.for_store().and_then(|hit| hit.grant.limit()?.max_debt());
    max_debt.is_some_and(|units| units > 0)
}
