//! Sums of decisions and of requests.

use crate::ratelimit::admin::v1::{RequestStats, RuleStats, WatchStatsResponse};

impl RuleStats {
    /// Returns the number of decisions.
    pub fn decisions(&self) -> u64 {
        [self.near_limit, self.denied, self.shadow_denied]
            .into_iter()
            .fold(self.allowed, u64::saturating_add)
    }

    /// Adds other decisions. The names stay.
    pub fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.allowed, other.allowed);
        add(&mut self.near_limit, other.near_limit);
        add(&mut self.denied, other.denied);
        add(&mut self.shadow_denied, other.shadow_denied);
        add(&mut self.units, other.units);
        add(&mut self.degraded, other.degraded);
        add(&mut self.fail_open, other.fail_open);
        add(&mut self.not_asked, other.not_asked);
    }
}

impl RequestStats {
    /// Returns the number of requests that are valid.
    pub fn requests(&self) -> u64 {
        self.allowed.saturating_add(self.denied).saturating_add(self.failed)
    }

    /// Adds other requests. The project stays.
    pub fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.allowed, other.allowed);
        add(&mut self.denied, other.denied);
        add(&mut self.failed, other.failed);
        add(&mut self.rejected, other.rejected);
        add(&mut self.fail_open, other.fail_open);
        add(&mut self.no_rule, other.no_rule);
    }
}

impl WatchStatsResponse {
    /// Returns all decisions of the point.
    pub fn sum(&self) -> RuleStats {
        let mut sum = RuleStats::default();
        self.rules.iter().chain(&self.others).for_each(|stats| sum.add(stats));
        sum
    }

    /// Returns all requests of the point.
    pub fn request_sum(&self) -> RequestStats {
        let mut sum = RequestStats::default();
        self.requests.iter().chain(&self.other_requests).for_each(|stats| sum.add(stats));
        sum
    }
}
