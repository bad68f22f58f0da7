//! When API keys were last used, by any instance, to the hour.

use std::collections::HashMap;
use std::time::Duration;

use rlaas_auth::ProjectId;
use rlaas_core::clock::{Deadline, Timestamp};
use rlaas_limiter::fleet::Register;
use rlaas_limiter::store::StoreError;

use super::{UsageRecorder, prefix};
use crate::KeyUse;

/// Time that last uses stay in the store after the last one of the project: ten years.
const TTL: Duration = Duration::from_hours(24 * 3_653);
/// Longest time that the store is waited for. Without it the uses of this instance are known.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

impl UsageRecorder {
    /// Returns the last use of each key of a project, in no order. While the store is away: as far
    /// as this instance knows.
    pub async fn last_uses(
        &self,
        project: &ProjectId,
        deadline: Deadline,
    ) -> HashMap<String, Timestamp> {
        let maps = [map(project.as_str())];
        let read = self.0.fleet.registers(&maps, deadline.or_within(READ_TIMEOUT)).await;
        let of_others = read.ok().and_then(|mut read| read.pop()).unwrap_or_default();
        let parse = |value: &[u8]| str::from_utf8(value).ok()?.parse().ok();
        let of_others = of_others.into_iter().filter_map(|(key, hour)| Some((key, parse(&hour)?)));
        let own = self.0.keyring.uses(project).into_iter().map(|used| (used.key, used.hour));
        let mut last = HashMap::new();
        for (key, hour) in of_others.chain(own) {
            let time = KeyUse::time(hour);
            let held = last.entry(key).or_insert(time);
            *held = time.max(*held);
        }
        last
    }

    pub(super) async fn write_last_uses(&self, deadline: Deadline) -> Result<(), StoreError> {
        let uses = self.0.keyring.unreported_uses();
        let register = |KeyUse { project, key, hour }: &KeyUse| Register {
            map: map(project.as_str()),
            name: key.clone(),
            value: format!("{hour:010}").into_bytes(),
        };
        let registers: Vec<_> = uses.iter().map(register).collect();
        let raised = self.0.fleet.raise(&registers, TTL, deadline).await;
        for (reported, _) in uses.iter().zip(&raised).filter(|(_, raised)| raised.is_ok()) {
            self.0.keyring.reported(reported);
        }
        raised.into_iter().try_for_each(|raised| raised.map(drop))
    }
}

/// Returns the map with the last uses of the keys of a project.
pub(super) fn map(project: &str) -> String {
    prefix(project) + "last_used"
}
