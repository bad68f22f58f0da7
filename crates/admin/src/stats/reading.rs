//! Readings of the counters of this instance.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas_telemetry::rule_counters::RuleTotals;
use rlaas_telemetry::sharded::{RequestCounters, RequestCounts};
use rlaas_telemetry::stats::StatsSum;
use tokio::task::spawn_blocking;

use super::FleetStats;
use rlaas_core::clock::{Micros, Timestamp};

/// Time for which a reading serves all who ask for one.
const MAX_AGE: Micros = Micros::from_millis(250);

/// What each rule and project of this instance had counted at a moment.
#[derive(Debug)]
pub struct StatsReading {
    /// When the counters were read.
    pub at: Timestamp,
    /// By the number of the counters.
    totals: HashMap<u64, RuleTotals>,
    /// By project. Another project of the same id has other counters.
    requests: HashMap<Arc<str>, (Arc<RequestCounters>, RequestCounts)>,
}

impl StatsReading {
    pub(super) fn new(
        at: Timestamp,
        totals: Vec<RuleTotals>,
        projects: Vec<(Arc<str>, Arc<RequestCounters>)>,
    ) -> Self {
        let requests = projects.into_iter().map(|(project, counters)| {
            let counts = counters.counts();
            (project, (counters, counts))
        });
        let totals = totals.into_iter().map(|totals| (totals.id, totals)).collect();
        Self { at, totals, requests: requests.collect() }
    }

    /// Returns what was counted since an earlier reading.
    pub fn since(&self, earlier: &Self) -> StatsSum {
        let mut sum = StatsSum::default();
        for (id, RuleTotals { key, counts, .. }) in &self.totals {
            let before = earlier.totals.get(id).map(|totals| totals.counts).unwrap_or_default();
            sum.add(key, &counts.since(&before));
        }
        for (project, (counters, counts)) in &self.requests {
            let before = earlier.counts_of(project, counters).unwrap_or_default();
            sum.add_requests(project, &counts.since(&before));
        }
        // Projects that were removed since: of them all that was counted.
        for (project, (counters, before)) in &earlier.requests {
            if self.counts_of(project, counters).is_none() {
                sum.add_requests(project, &counters.counts().since(before));
            }
        }
        sum
    }

    /// Returns the requests of a project as these counters had them.
    fn counts_of(&self, project: &str, counters: &Arc<RequestCounters>) -> Option<RequestCounts> {
        let (own, counts) = self.requests.get(project)?;
        Arc::ptr_eq(own, counters).then_some(*counts)
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
        let read = move || (metrics.rule_totals(), metrics.project_counters());
        let (totals, projects) = spawn_blocking(read).await.unwrap_or_default();
        let reading = Arc::new(StatsReading::new(now, totals, projects));
        *last = Some(Arc::clone(&reading));
        reading
    }

    /// Returns the counters at the end of the last point of 10 s.
    pub fn last_reading(&self) -> Arc<StatsReading> {
        Arc::clone(&self.state().last)
    }
}
