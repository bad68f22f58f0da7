//! Previews: what a check would decide at this moment. Counts nothing, and is no decision that an
//! observer would see.
//!
//! A preview decides each hit as a dry run does, by itself and with the store's own script, in one
//! atomic step for each shard. The same step reads the state of each key.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::admin::look;
use super::{KeyState, Limiter, Snapshot, Source, Verdict};
use crate::clock::{Deadline, Micros};
use crate::operation::{Action, Shard, StoreHit};
use crate::plan::{Hit, Plan, SelectedKey};
use crate::rules::Mode;
use crate::store::StoreError;
use crate::verdict::{HitResult, HitResults, RuleDecision};

/// What a check would decide.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The state of each key, in order.
    pub states: Vec<KeyState>,
    /// The decision of the store on each hit of the plan, in order.
    pub decisions: Vec<RuleDecision>,
    /// The verdict. The deny cache may make it, as it may make that of a check.
    pub verdict: Verdict,
}

impl Limiter {
    /// Returns what a check of `plan` would decide, which `snapshot` has made; `keys` are those of
    /// its hits. Units that are left are those before the check, as in a dry run.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline. No policy applies.
    pub async fn preview(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        keys: &[SelectedKey],
        deadline: Deadline,
    ) -> Result<Preview, StoreError> {
        let costs = plan.decided_costs();
        let mut states = vec![None; keys.len()];
        let mut results: HitResults = plan.hits.iter().map(HitResult::without_store).collect();
        for (shard, positions) in self.shards_of_hits(plan) {
            let hits: SmallVec<[_; 2]> = positions
                .iter()
                .filter_map(|at| {
                    let hit = plan.hits[*at].for_store()?;
                    let decide = Action::Peek(costs[*at]);
                    Some([look(&keys[*at])?, StoreHit { action: decide, ..hit }])
                })
                .flatten()
                .collect();
            let mut replies = self.step(shard, &hits, deadline).await?.into_iter();
            for at in positions {
                states[at] = self.state(&keys[at], &mut replies);
                if results[at].is_none() {
                    let reply = replies.next();
                    results[at] = reply.map(|reply| HitResult { reply, source: Source::Store });
                }
            }
        }
        for (at, key) in keys.iter().enumerate() {
            if states[at].is_none() {
                states[at] = self.state(key, &mut std::iter::empty());
            }
        }
        let decided = plan.hits.iter().zip(&results).filter_map(|(hit, result)| {
            Some(RuleDecision::new(snapshot.rules.rule(hit.rule), hit, result.as_ref()?))
        });
        let decisions = decided.collect();
        let cached = self.find_cached_denials(plan, snapshot.revision);
        let verdict = Verdict::fold(&snapshot.rules, plan, &cached.unwrap_or(results));
        Ok(Preview { states: states.into_iter().flatten().collect(), decisions, verdict })
    }

    /// Returns for how long the deny cache of this limiter goes on to refuse each hit of a plan.
    pub fn deny_cached_for(&self, snapshot: &Snapshot, plan: &Plan) -> Vec<Option<Micros>> {
        let of_hit = |hit: &Hit| {
            let cache = self.shared.deny_cache.as_ref()?;
            let answers =
                hit.decides_cost() && hit.mode == Mode::Enforced && plan.has_key_once(hit);
            cache.holds_for(&hit.for_store()?, snapshot.revision).filter(|_| answers)
        };
        plan.hits.iter().map(of_hit).collect()
    }

    /// Returns the positions of the hits of each shard, without those that need no store.
    fn shards_of_hits(&self, plan: &Plan) -> BTreeMap<Shard, Vec<usize>> {
        let mut shards: BTreeMap<Shard, Vec<usize>> = BTreeMap::new();
        for (at, hit) in plan.hits.iter().enumerate() {
            if let Some(hit) = hit.for_store() {
                shards.entry(self.store.shard(hit.key)).or_default().push(at);
            }
        }
        shards
    }
}
