//! The decisions of a rule in time.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{RuleStats, WatchStatsResponse};

use crate::chart::{Chart, Series, Shape, per_second, rate_text, tile};
use crate::decisions::{Interval, PointsCoverage, SPAN_NAME, interval, range};
use crate::pages::now::percent;
use crate::text::number;
use crate::visit::Visitor;

/// The decisions of a rule.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleNumbers {
    /// Intervals, oldest first.
    pub(super) points: Vec<Interval>,
    /// The decisions of the rule in each.
    counts: Vec<RuleStats>,
    /// Instances of the points.
    pub(super) coverage: PointsCoverage,
}

impl RuleNumbers {
    /// Takes the rule out of its points.
    pub(super) fn new(points: &[WatchStatsResponse]) -> Self {
        Self {
            points: points.iter().map(interval).collect(),
            counts: points.iter().map(WatchStatsResponse::sum).collect(),
            coverage: PointsCoverage::new(points),
        }
    }

    /// Returns all decisions of the rule.
    fn total(&self) -> RuleStats {
        let mut total = RuleStats::default();
        self.counts.iter().for_each(|stats| total.add(stats));
        total
    }

    /// Shows the decisions at a glance.
    pub(super) fn tiles(&self, visitor: &Visitor) -> Markup {
        let interval = self.points.last().copied().unwrap_or_default();
        let last = self.counts.last().cloned().unwrap_or_default();
        let (total, of_part) = (self.total(), self.coverage.part(visitor));
        let tile = |name: &str, rate: u64, all: u64, more: &str| {
            let rate = html! { (rate_text(per_second(rate, interval))) "/s" };
            tile(name, &rate, &html! { (of_part) (number(all)) " in " (SPAN_NAME) (more) })
        };
        let part = |count| format!(", {}", percent(count, total.decisions()));
        html! {
            dl.tiles {
                (tile("Decisions", last.decisions(), total.decisions(), ""))
                (tile("Refused", last.denied, total.denied, &part(total.denied)))
                (tile("Refused in shadow mode", last.shadow_denied, total.shadow_denied, &part(total.shadow_denied)))
                (tile("Near the limit", last.near_limit, total.near_limit, &part(total.near_limit)))
                (tile("Without the store", last.degraded, total.degraded, ""))
                @if total.not_asked > 0 {
                    (tile("Not asked", last.not_asked, total.not_asked, ": another rule refuses, as the server remembers"))
                }
            }
        }
    }

    /// Shows the chart.
    pub(super) fn chart(&self) -> Markup {
        let chart = Chart {
            id: "decisions",
            title: "Decisions of the rule",
            shape: Shape::Stacked,
            range: range(&self.points),
            points: &self.points,
            series: &Series::outcomes(&self.counts),
        };
        chart.render()
    }

    /// Returns `true` if the rule has decided nothing that was counted.
    pub(super) fn is_empty(&self) -> bool {
        self.total().decisions() == 0
    }
}
