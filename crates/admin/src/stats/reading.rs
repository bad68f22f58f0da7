//! Readings of the counters of this instance.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_telemetry::rule_counters::RuleTotals;
use rlaas_telemetry::stats::StatsSum;
use tokio::task::spawn_blocking;

use super::FleetStats;
use rlaas_core::clock::{Micros, Timestamp};

/// Time for which a reading serves all who ask for one.
const MAX_AGE: Micros = Micros::from_millis(250);

/// What each rule of this instance had counted at a moment.
#[derive(Debug)]
pub struct StatsReading {
    /// When the counters were read.
    pub at: Timestamp,
    /// By the number of the counters.
    totals: HashMap<u64, RuleTotals>,
}

impl StatsReading {
    pub(super) fn new(at: Timestamp, totals: Vec<RuleTotals>) -> Self {
        Self { at, totals: totals.into_iter().map(|totals| (totals.id, totals)).collect() }
    }

    /// Returns what was counted since an earlier reading.
    pub fn since(&self, earlier: &Self) -> StatsSum {
        let mut sum = StatsSum::default();
        for (id, RuleTotals { key, counts, .. }) in &self.totals {
            let before = earlier.totals.get(id).map(|totals| totals.counts).unwrap_or_default();
            sum.add(key, &counts.since(&before));
        }
        sum
    }
}

impl FleetStats {
    /// Reads the counters of this instance. All who ask within a quarter of a second get the same
    /// reading.
    pub async fn read(&self) -> Arc<StatsReading> {
        let mut last = self.0.reading.lock().await;
        let now = self.0.clock.now();
        let is_new = |last: &&Arc<StatsReading>| now >= last.at && now.since(last.at) < MAX_AGE;
        if let Some(last) = last.as_ref().filter(is_new) {
            return Arc::clone(last);
        }
        let metrics = Arc::clone(&self.0.metrics);
        let totals = spawn_blocking(move || metrics.rule_totals()).await.unwrap_or_default();
        let reading = Arc::new(StatsReading::new(now, totals));
        *last = Some(Arc::clone(&reading));
        reading
    }

    /// Returns the counters at the end of the last point of 10 s.
    pub fn last_reading(&self) -> Arc<StatsReading> {
        Arc::clone(&self.state().last)
    }
}
