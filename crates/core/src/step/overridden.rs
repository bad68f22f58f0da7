//! What decides an overridable hit: the override of its key, or the grant of the hit.

use super::Slot;
use crate::algorithm::Limit;
use crate::clock::Timestamp;
use crate::control::{Applied, ControlRecord};
use crate::operation::{Action, StoreHit};
use crate::rules::Grant;

/// What decides an overridable hit.
pub(super) struct Overridden {
    /// The override in force.
    pub(super) applied: Option<Box<Applied>>,
    /// The grant that decides.
    pub(super) grant: Grant,
    /// The limit by which units are returned and states removed; `None` if nothing is returned.
    pub(super) returns: Option<Limit>,
    /// The limit by which reports are counted, whatever is granted; `None` if the rule has none.
    pub(super) charges: Option<Limit>,
    /// The limit beneath a ban, by which the state of the key counts.
    pub(super) beneath: Option<Limit>,
}

impl Overridden {
    /// Reads the control record of a hit.
    pub(super) fn new(hit: &StoreHit<'_>, slot: &impl Slot) -> Self {
        let time = slot.time();
        let record = slot.control();
        let grant_of = |record: &ControlRecord| {
            let below = record.in_force_below_ban(time)?;
            Some(below.grant.within(hit.frame()))
        };
        let below_ban = record.and_then(grant_of).unwrap_or(*hit.grant);
        let in_force = record.and_then(|record| Some((record, record.in_force(time)?)));
        let applied = in_force.map(|(record, own)| {
            let record = hit.action.shows_control().then(|| {
                let mut record = record.clone();
                record.drop_ended(time);
                record
            });
            Box::new(Applied { grant: own.grant.within(hit.frame()), ends_at: own.ends_at, record })
        });
        let grant = applied.as_ref().map_or(*hit.grant, |applied| applied.grant);
        let is_banned = applied.is_some() && grant == Grant::Banned;
        let beneath = below_ban.limit().filter(|_| is_banned).copied();
        let charges = below_ban.limit().or_else(|| hit.grant.limit()).copied();
        Self { applied, grant, returns: returning_limit(hit, &below_ban), charges, beneath }
    }

    /// Returns the time when the override ends, if one decides.
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        self.applied.as_ref().map(|applied| applied.ends_at)
    }
}

/// Returns the limit by which a hit returns units: that of its key without a ban. A reset removes
/// the state whatever is granted.
fn returning_limit(hit: &StoreHit<'_>, below_ban: &Grant) -> Option<Limit> {
    let limit = below_ban.limit();
    if hit.action != Action::Reset {
        return limit.copied();
    }
    limit.or_else(|| hit.grant.limit()).copied().or_else(|| Limit::new(1, hit.window).ok())
}

/// Sets or clears overrides of the key of a hit, and drops those that have ended.
pub(super) fn change_control(hit: &StoreHit<'_>, mut slot: impl Slot) {
    let time = slot.time();
    let mut record = slot.control().cloned().unwrap_or_default();
    record.drop_ended(time);
    match (hit.action, hit.change) {
        (Action::SetOverride, Some(change)) => record.set(change.set_at(time)),
        (Action::ClearOverride(kind), _) => record.clear(kind),
        _ => {}
    }
    slot.set_control(record);
}
