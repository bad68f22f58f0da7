//! Which requests are plain: see [`ScriptId::needed`](super::scripts::ScriptId::needed).

use crate::algorithm::{Limit, OnChange};
use crate::operation::{Action, StoreHit, StoreRequest};
use crate::rules::Coupling;

/// Most hits of a plain request, each of which is compared with all others.
const MAX_PLAIN_HITS: usize = 8;

/// Returns `true` for a plain request.
pub(super) fn is_plain(request: StoreRequest<'_>) -> bool {
    let StoreRequest { hits, coupling, once, .. } = request;
    coupling == Coupling::AllOrNothing
        && once.is_none()
        && hits.len() <= MAX_PLAIN_HITS
        && hits.iter().enumerate().all(|(at, hit)| {
            is_plain_hit(hit) && hits[..at].iter().all(|other| other.key != hit.key)
        })
}

fn is_plain_hit(hit: &StoreHit<'_>) -> bool {
    let is_plain_action = match hit.action {
        Action::Take(_) => true,
        // The reply to an overridable look has notes.
        Action::Peek(_) => !hit.overridable,
        _ => false,
    };
    is_plain_action && max_debt(hit).is_none() && policy(hit).is_none() && hit.max_holds.is_none()
}

/// Returns the policy for changes of the limit. Only limits are kept.
pub(super) fn policy(hit: &StoreHit<'_>) -> Option<OnChange> {
    hit.on_change.filter(|_| hit.grant.limit().is_some())
}

pub(super) fn max_debt(hit: &StoreHit<'_>) -> Option<u64> {
    hit.grant.limit().and_then(Limit::max_debt)
}
