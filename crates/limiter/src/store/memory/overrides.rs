//! Overrides with a journal: a change is on disk before it is made, and its reply follows.
//!
//! The thread of the journal makes the changes, in the order in which they are on disk. So a caller
//! that goes away leaves memory and disk alike, and of two changes of one key the same is the later
//! one after a restart.

use std::num::{NonZeroU32, NonZeroU64};

use tracing::error;

use super::{KeyLocation, MemoryStore, lock};
use crate::algorithm::{Algorithm, OnChange, Window};
use crate::clock::Timestamp;
use crate::control::{KeyOverride, OverrideChange, OverrideKind};
use crate::journal::{Change, RestoredValue, Space};
use crate::operation::{Action, Reply, StoreHit, StoreRequest};
use crate::rules::{Grant, Key, Mode, Share};
use crate::store::StoreError;

const BAN: u8 = 1;
const GRANT: u8 = 2;

/// A [`StoreHit`] that owns what it refers to.
struct OwnedHit {
    key: Key,
    algorithm: Algorithm,
    grant: Grant,
    window: Window,
    overridable: bool,
    on_change: Option<OnChange>,
    revision: Option<NonZeroU64>,
    action: Action,
    change: Option<OverrideChange>,
    mode: Mode,
    max_holds: Option<u32>,
    cost_share: Option<Share>,
    headroom: Option<Share>,
    at_least: Option<NonZeroU32>,
}

impl OwnedHit {
    fn new(hit: &StoreHit<'_>) -> Self {
        let StoreHit {
            algorithm,
            window,
            overridable,
            on_change,
            revision,
            action,
            mode,
            max_holds,
            cost_share,
            headroom,
            at_least,
            ..
        } = *hit;
        let (key, grant, change) = (hit.key.clone(), *hit.grant, hit.change.cloned());
        Self {
            key,
            algorithm,
            grant,
            window,
            overridable,
            on_change,
            revision,
            action,
            change,
            mode,
            max_holds,
            cost_share,
            headroom,
            at_least,
        }
    }

    fn as_hit(&self) -> StoreHit<'_> {
        let Self {
            key,
            algorithm,
            grant,
            window,
            overridable,
            on_change,
            revision,
            action,
            change,
            mode,
            ..
        } = self;
        StoreHit {
            key,
            algorithm: *algorithm,
            grant,
            window: *window,
            overridable: *overridable,
            on_change: *on_change,
            revision: *revision,
            action: *action,
            change: change.as_ref(),
            mode: *mode,
            max_holds: self.max_holds,
            cost_share: self.cost_share,
            headroom: self.headroom,
            at_least: self.at_least,
        }
    }
}

impl MemoryStore {
    /// Returns `true` if the journal must have the request before it is executed.
    pub(in crate::store) fn must_record(&self, request: &StoreRequest<'_>) -> bool {
        self.journal.is_some() && request.hits.iter().any(changes_override)
    }

    /// Records the changes of overrides, then executes the request at the time at which they were
    /// recorded. Changes of overrides have no request id in the store.
    pub(in crate::store) async fn record_and_execute(
        &self,
        request: StoreRequest<'_>,
    ) -> Result<Reply, StoreError> {
        let Some(journal) = self.journal() else { return self.try_execute(request) };
        self.check_space(request.hits)?;
        let time = self.clock.now();
        let mut records = Vec::new();
        for hit in request.hits.iter().filter(|hit| changes_override(hit)) {
            push_records(&mut records, hit, time);
        }
        let changes: Vec<_> = records.iter().map(OverrideRecord::as_change).collect();
        let hits: Vec<_> = request.hits.iter().map(OwnedHit::new).collect();
        let (store, coupling, shard) = (self.clone(), request.coupling, request.shard);
        let executed = journal.write_then(&changes, move || {
            let hits: Vec<_> = hits.iter().map(OwnedHit::as_hit).collect();
            // Other changes may have used the space meanwhile.
            store.check_space(&hits)?;
            let request =
                StoreRequest { hits: &hits, coupling, shard, once: None, reservation: None };
            Ok(store.execute_at(request, Some(time)))
        });
        executed.await?
    }

    /// Restores overrides that the journal has.
    pub(super) fn restore_overrides(&self, values: &[RestoredValue]) {
        let now = self.clock.now();
        for RestoredValue { name, value, .. } in values {
            let key = name.split_first().map(|(_, key)| key);
            let (Some(key), Ok(kept)) = (key, postcard::from_bytes::<KeyOverride>(value)) else {
                error!("an override in the journal is of a later version: not restored");
                continue;
            };
            let KeyLocation { stripe, .. } = self.location_of(key);
            let mut stripe = lock(&self.stripes[stripe]);
            let mut record = stripe.control(key).cloned().unwrap_or_default();
            record.set(kept);
            if stripe.has_space_for_control(key, now) {
                stripe.set_control(key, record, now);
            } else {
                error!("no space for an override of the journal (store.memory.max-keys)");
            }
        }
    }
}

fn changes_override(hit: &StoreHit<'_>) -> bool {
    hit.overridable && hit.action.changes_control()
}

/// A change of one override, as it is in the journal.
struct OverrideRecord {
    /// The kind, and the key.
    name: Vec<u8>,
    /// The override. `None`: it is removed.
    set: Option<(Vec<u8>, Timestamp)>,
}

impl OverrideRecord {
    fn new(kind: u8, hit: &StoreHit<'_>, set: Option<&KeyOverride>) -> Self {
        let encode = |set| postcard::to_allocvec(set).expect("memory can be written");
        Self {
            name: [&[kind], hit.key.as_bytes()].concat(),
            set: set.map(|set| (encode(set), set.ends_at)),
        }
    }

    fn as_change(&self) -> Change<'_> {
        let (space, name) = (Space::CONTROL, &*self.name);
        match &self.set {
            Some((value, ends_at)) => {
                Change::Put { space, name, value, expires_at: Some(*ends_at) }
            }
            None => Change::Delete { space, name },
        }
    }
}

fn push_records(records: &mut Vec<OverrideRecord>, hit: &StoreHit<'_>, time: Timestamp) {
    let mut push = |kind, set: Option<&KeyOverride>| {
        records.push(OverrideRecord::new(kind, hit, set));
    };
    match (hit.action, hit.change) {
        (Action::SetOverride, Some(change)) => {
            let set = change.set_at(time);
            push(if set.kind() == OverrideKind::Ban { BAN } else { GRANT }, Some(&set));
        }
        (Action::ClearOverride(kind), _) => {
            if kind != OverrideKind::Grant {
                push(BAN, None);
            }
            if kind != OverrideKind::Ban {
                push(GRANT, None);
            }
        }
        _ => {}
    }
}
