//! Explanations: what a check would decide, and why. Counts nothing.

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::clock::{Deadline, Micros};
use crate::plan::{Plan, SelectedKey};
use crate::rules::RuleSet;
use crate::store::StoreError;
use rlaas_limiter::{Limiter, Preview, Snapshot};

use super::MAX_TIME;

/// Number of rules up to which they are looked at in place: more of them would delay the decisions of
/// the same worker.
const MAX_RULES_IN_PLACE: usize = 500;

/// What the store, and the deny cache of this instance, add to an explanation.
#[derive(Debug)]
pub struct Outlook {
    /// The states of keys, and the verdict; or the failure of the store.
    pub preview: Result<Preview, StoreError>,
    /// For each hit of the plan, the time that the deny cache goes on to refuse it.
    pub deny_cached_for: Vec<Option<Micros>>,
}

/// Explains by the rules in force of `snapshot`, which it returns too. `explain` may take long: with many rules it
/// runs on a thread of its own.
pub async fn explain<T: Send + 'static>(
    snapshot: Arc<Snapshot>,
    explain: impl FnOnce(&RuleSet) -> T + Send + 'static,
) -> (Arc<Snapshot>, T) {
    let rules = snapshot.rules.iter().count() + snapshot.rules.descriptors().count();
    if rules <= MAX_RULES_IN_PLACE {
        let explained = explain(&snapshot.rules);
        return (snapshot, explained);
    }
    let explaining = tokio::task::spawn_blocking(move || {
        let explained = explain(&snapshot.rules);
        (snapshot, explained)
    });
    explaining.await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// Returns what a check of `plan` would decide at this moment.
pub async fn outlook(
    limiter: &Limiter,
    snapshot: &Snapshot,
    plan: &Plan,
    keys: &[SelectedKey],
    deadline: Deadline,
) -> Outlook {
    let deny_cached_for = limiter.deny_cached_for(snapshot, plan);
    let preview = limiter.preview(snapshot, plan, keys, deadline.or_within(MAX_TIME)).await;
    Outlook { preview, deny_cached_for }
}
