//! The wire format: names of keys, arguments, replies, scripts; and which requests are plain: see
//! [`ScriptId::needed`](scripts::ScriptId::needed).

pub(crate) mod call;
pub(crate) mod call_error;
pub(crate) mod keys;
pub(crate) mod request;
pub(crate) mod scripts;

use crate::algorithm::{Limit, OnChange};
use crate::operation::{Action, StoreHit, StoreRequest};
use crate::rules::Coupling;

/// Most hits of a plain request, each of which is compared with all others.
const MAX_PLAIN_HITS: usize = 8;

/// Returns `true` for a plain request. A script for all requests executes one of a rule that holds, unless units are
/// held: see `lua/check.lua`.
fn is_plain(request: StoreRequest<'_>) -> bool {
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
    is_plain_action
        && hit.cost_share.is_none()
        && hit.least().is_none()
        && hit.share_left().is_none()
        && policy(hit).is_none()
        && (max_debt(hit).is_none() || hit.max_holds.is_some())
}

/// Returns the policy for changes of the limit. Only limits are kept.
fn policy(hit: &StoreHit<'_>) -> Option<OnChange> {
    hit.on_change.filter(|_| hit.grant.limit().is_some())
}

fn max_debt(hit: &StoreHit<'_>) -> Option<u64> {
    hit.grant.limit().and_then(Limit::max_debt)
}

/// Declares the numeric fields of a hit, which follow its algorithm. Their order is that of the
/// arguments on both sides: `scripts.rs` generates the Lua lines that read them.
macro_rules! fields {
    ($list:ident $type:ident { $($field:ident),* }) => {
        /// Names of the fields, in order.
        pub(crate) const $list: &[&str] = &[$(stringify!($field)),*];

        struct $type {
            $(pub(super) $field: u64,)*
        }

        impl $type {
            fn write(&self, argument: &mut Vec<u8>) {
                $(write_number(argument, self.$field);)*
            }
        }
    };
}

fields!(HIT_FIELDS HitFields {
    keys, first_index, units, window, burst, shared_burst, shared_units, cost, mode, seen, action, max_debt
});
fields!(REFUND_FIELDS RefundFields { taken_at, taken_reset_after });

/// Encoded as -1: the limit has no debt, or the grant no limit.
const NONE: u64 = u64::MAX;

fn write_number(argument: &mut Vec<u8>, number: u64) {
    match number {
        NONE => {
            rmp::encode::write_nfix(argument, -1).expect("writing to a vector does not fail");
        }
        number => {
            rmp::encode::write_uint(argument, number).expect("writing to a vector does not fail");
        }
    }
}
