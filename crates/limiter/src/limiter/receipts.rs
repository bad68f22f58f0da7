//! Receipts for taken units, and their refund.

use std::sync::Arc;

use super::Limiter;
use super::execution::taken;
use crate::algorithm::{Limit, Window};
use crate::clock::Deadline;
use crate::operation::{Receipt, StoreHit, StoreId, StoreRequest};
use crate::plan::Plan;
use crate::rules::{Coupling, Grant, OnStoreFailure, Rule, RuleSet};
use crate::store::StoreError;
use crate::verdict::{HitResult, Source};

impl Limiter {
    /// Refunds the units of receipts. Units that time has restored since are not refunded, nor are
    /// units of a state that was reset; the book describes which algorithms refund exactly. If the
    /// limit of a rule has changed, no more units are given under the new limit than were taken,
    /// and none if the rule has overrides. A request id stays used: a retry still gets the reply.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of the first refund that failed. The others are done.
    pub async fn refund(
        &self,
        receipts: Vec<Receipt>,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let mut result = Ok(());
        // One by one: refunds are rare, and the receipts of one request may be in several shards.
        for receipt in receipts {
            // Of a project that was removed the limit at the time of the decision is left.
            let snapshot = self.snapshot_of_key(&receipt.key);
            let rules = snapshot.as_deref().map(|snapshot| &snapshot.rules);
            let grant = rules.map_or(Some(receipt.limit), |rules| limit_now(&receipt, rules));
            let grant = grant.map(Grant::Limited);
            let rule = rules.and_then(|rules| rules.iter().find(|rule| rule.name == receipt.rule));
            let rule = rule.filter(|_| receipt.store == StoreId::Primary);
            // By the limit of the rule itself, the state may have to be converted first.
            let own = rule
                .filter(|rule| grant == Some(rule.grant) && rule.algorithm == receipt.algorithm);
            let on_change = own.and_then(|rule| rule.on_change);
            let revision = own.and_then(|rule| rule.revision);
            let rule = rule.filter(|rule| rule.overridable);
            // The override of the key decides what is returned, else the grant. If that is not
            // known, a ban returns nothing.
            let window = |rule: &Rule| match rule.anchor_from {
                Some(_) => receipt.limit.windows(),
                None => rule.window,
            };
            let (overridable, window) =
                rule.map_or((false, Window::ZERO), |rule| (true, window(rule)));
            let Some(grant) = grant.or_else(|| overridable.then_some(Grant::Banned)) else {
                continue;
            };
            let hit = receipt.refund(&grant);
            let hit = StoreHit {
                overridable,
                on_change,
                revision,
                window: grant.limit().map_or(window, Limit::windows),
                ..hit
            };
            let store = self.store_by_id(receipt.store);
            let (coupling, shard) = (Coupling::AllOrNothing, store.shard(hit.key));
            let request =
                StoreRequest { hits: &[hit], coupling, shard, once: None, reservation: None };
            match store.execute(request, deadline).await {
                Ok(_) => self.forget_denials(&receipt.key),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

/// Returns the receipts for the units that the hits of a plan have taken.
pub(super) fn receipts(rules: &RuleSet, plan: Plan, results: &[Option<HitResult>]) -> Vec<Receipt> {
    let receipts = plan.hits.into_iter().zip(results).filter_map(|(hit, result)| {
        let HitResult { reply, source } = result.as_ref()?;
        let applied = reply.applied.as_ref().map(|applied| applied.grant);
        let own = hit.for_store()?.grant;
        let applied = *applied.as_ref().unwrap_or(own).limit()?;
        // The store looks up the override at the refund; the receipt has what is below it.
        let limit = own.limit().copied().unwrap_or(applied);
        let rule = rules.rule(hit.rule);
        let (store, limit) = match (source, rule.on_store_failure) {
            (Source::Store, _) => (StoreId::Primary, limit),
            (Source::LocalFallback, OnStoreFailure::Local(share)) => {
                (StoreId::Fallback, limit.share(share.millionths()))
            }
            _ => return None,
        };
        let taken = taken(reply)?;
        let (rule, key, algorithm) = (Arc::clone(rule.name), hit.key, hit.algorithm);
        Some(Receipt { rule, key, algorithm, limit, taken, store })
    });
    receipts.collect()
}

/// Returns the limit to refund by: the one in force for the state of a receipt, since another limit
/// could give more than was taken. Returns `None` if the rule has changed and has overrides,
/// because it is then unknown which limit applies.
fn limit_now(receipt: &Receipt, rules: &RuleSet) -> Option<Limit> {
    let Receipt { rule: name, algorithm, limit: then, store, .. } = receipt;
    let is_its_rule = |rule: &&Rule| rule.name == *name && rule.algorithm == *algorithm;
    let Some(rule) = rules.iter().find(is_its_rule) else { return Some(*then) };
    let limit = |grant: Grant| match (grant, store, rule.on_store_failure) {
        (Grant::Limited(limit), StoreId::Fallback, OnStoreFailure::Local(share)) => {
            Some(limit.share(share.millionths()))
        }
        (Grant::Limited(limit), StoreId::Primary, _) => Some(limit),
        _ => None,
    };
    let grants = rule.overrides.iter().filter_map(|other| other.grant);
    let grants = grants.chain([rule.grant]);
    // The one in force: it knows with which limits it shares the state now.
    // The anchor of a calendar is that of the request.
    let anchored = |limit: Limit| match rule.anchor_from {
        Some(_) => limit.anchored_as(then.windows()),
        None => limit,
    };
    let mut limits = grants.filter_map(|grant| limit(grant).map(anchored));
    if let Some(same) = limits.find(|now| now == then) {
        return Some(same);
    }
    let is_alone = rule.overrides.iter().all(|other| other.grant.is_none());
    let now = if rule.limit_from.is_some() {
        // That of the request: what larger ones have taken stays.
        let now = Limit::new(then.units(), rule.window).ok()?;
        *rule.with_room(Grant::Limited(now)).limit()?
    } else {
        limit(rule.grant).filter(|_| is_alone)?
    };
    let are_from_first_use =
        [now.windows(), then.windows()].iter().all(|own| own.is_from_first_use());
    if !algorithm.keyed_by_window() || are_from_first_use {
        return Some(now);
    }
    // The units were counted in a window of the old length.
    let then = Limit::new(now.units(), then.windows()).ok()?;
    now.max_debt().map_or(Some(then), |debt| then.with_max_debt(debt).ok())
}
