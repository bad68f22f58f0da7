//! Those who watch statistics: at most 64 at a time, until the server drains.

use std::sync::PoisonError;

use rlaas_telemetry::decisions::WatchError;
use rlaas_telemetry::holder::Holder;

use super::FleetStats;

/// Most watchers at a time.
pub const MAX_STATS_WATCHERS: usize = 64;

/// The right to watch, until it is dropped.
#[derive(Debug)]
pub struct StatsWatch {
    stats: FleetStats,
    holder: Holder,
}

impl FleetStats {
    /// Begins to watch.
    ///
    /// # Errors
    ///
    /// [`WatchError`].
    pub fn watch(&self, holder: Holder) -> Result<StatsWatch, WatchError> {
        if self.0.draining.is_cancelled() {
            return Err(WatchError::Draining);
        }
        let mut watchers = self.0.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        if !holder.has_capacity(MAX_STATS_WATCHERS, watchers.iter()) {
            return Err(WatchError::Full(MAX_STATS_WATCHERS));
        }
        watchers.push(holder.clone());
        Ok(StatsWatch { stats: self.clone(), holder })
    }

    /// Ends all watches, and accepts no others: the server drains.
    pub fn drain(&self) {
        self.0.draining.cancel();
    }
}

impl StatsWatch {
    /// Returns the statistics.
    pub fn stats(&self) -> &FleetStats {
        &self.stats
    }

    /// Waits until the server drains.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.stats.0.draining.clone().cancelled_owned()
    }
}

impl Drop for StatsWatch {
    fn drop(&mut self) {
        let mut watchers = self.stats.0.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = watchers.iter().position(|held| *held == self.holder) {
            watchers.swap_remove(place);
        }
    }
}
