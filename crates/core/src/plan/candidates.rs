//! The candidates of the rules that a request meets.

use smallvec::SmallVec;

use super::{Hit, Plan};
use crate::algorithm::{Algorithm, Window};
use crate::operation::{Action, StoreHit};
use crate::rules::{Grant, Key, Mode, Request, Rule};

/// A candidate of the rule of a hit, with a key of its own.
#[derive(Clone, Debug)]
pub struct CandidateHit {
    /// Position of the rule's hit in the plan.
    pub of: usize,
    /// Position among the candidates of the rule.
    pub position: usize,
    /// Name of the state.
    pub key: Key,
    /// Algorithm of the candidate.
    pub algorithm: Algorithm,
    /// Limit of the candidate.
    pub grant: Grant,
}

impl CandidateHit {
    /// Returns a hit for the store with this action.
    pub fn for_store(&self, action: Action) -> StoreHit<'_> {
        let hit = StoreHit::new(&self.key, self.algorithm, &self.grant, action);
        StoreHit { mode: Mode::Shadow, ..hit }
    }
}

impl Plan {
    /// Adds the hits of these candidates, which are those of rules whose hits are at these positions
    /// of the plan, to the hits of a store request, which are in the order of the positions.
    pub fn add_candidates<'a>(
        &'a self,
        candidates: &[usize],
        positions: &[usize],
        hits: &mut SmallVec<[StoreHit<'a>; 2]>,
    ) {
        for candidate in candidates.iter().map(|at| &self.candidates[*at]) {
            let of = positions.iter().position(|position| *position == candidate.of);
            if let Some((of, index)) = of.and_then(|of| Some((of, u8::try_from(of).ok()?))) {
                let hit = candidate.for_store(hits[of].action);
                hits.push(StoreHit { candidate_of: Some(index), ..hit });
            }
        }
    }
}

/// Adds the candidates of the rule of a hit, which will be at `position`. None counts a request with
/// an override, which would be decided by the override in the place of the candidate, too.
#[cold]
pub(super) fn push(
    candidates: &mut Vec<CandidateHit>,
    position: usize,
    rule: &Rule,
    hit: &Hit,
    request: &Request<'_>,
) {
    if rule.closest_override(request).is_none() {
        candidates.extend(of_rule(rule, position, &hit.key, hit.window));
    }
}

/// Returns the candidates of a rule for a key of it, in the windows of the key; none if it grants no limit.
pub(super) fn of_rule<'r>(
    rule: &'r Rule,
    of: usize,
    key: &'r Key,
    window: Window,
) -> impl Iterator<Item = CandidateHit> + 'r {
    let candidates = rule.grant.limit().map_or(&[][..], |_| &rule.candidates);
    candidates.iter().enumerate().map(move |(position, candidate)| CandidateHit {
        of,
        position,
        key: key.of_candidate(position + 1, candidate),
        algorithm: candidate.algorithm,
        grant: Grant::Limited(candidate.limit.anchored_as(window)),
    })
}
