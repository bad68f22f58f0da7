//! Those who watch statistics: at most 64 at a time, until the server drains.

use std::sync::atomic::Ordering;

use thiserror::Error;

use super::FleetStats;

/// Most watchers at a time.
pub const MAX_STATS_WATCHERS: usize = 64;

/// Reason why nobody may watch.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StatsWatchError {
    /// There are [`MAX_STATS_WATCHERS`] already.
    #[error("{MAX_STATS_WATCHERS} callers watch already")]
    Full,
    /// The server drains.
    #[error("the server drains")]
    Draining,
}

/// The right to watch, until it is dropped.
#[derive(Debug)]
pub struct StatsWatch(FleetStats);

impl FleetStats {
    /// Begins to watch.
    ///
    /// # Errors
    ///
    /// [`StatsWatchError`].
    pub fn watch(&self) -> Result<StatsWatch, StatsWatchError> {
        if self.0.draining.is_cancelled() {
            return Err(StatsWatchError::Draining);
        }
        let watch = StatsWatch(self.clone());
        if self.0.watchers.fetch_add(1, Ordering::Relaxed) >= MAX_STATS_WATCHERS {
            return Err(StatsWatchError::Full);
        }
        Ok(watch)
    }

    /// Ends all watches, and accepts no others: the server drains.
    pub fn drain(&self) {
        self.0.draining.cancel();
    }
}

impl StatsWatch {
    /// Returns the statistics.
    pub fn stats(&self) -> &FleetStats {
        &self.0
    }

    /// Waits until the server drains.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.0.draining.clone().cancelled_owned()
    }
}

impl Drop for StatsWatch {
    fn drop(&mut self) {
        self.0.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
