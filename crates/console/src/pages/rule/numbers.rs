//! The decisions of a rule in time, and those of its candidates beside it.

use std::iter;

use maud::{Markup, html};
use rlaas_proto::SAME_REQUESTS;
use rlaas_proto::ratelimit::admin::v1::WatchStatsResponse;
use rlaas_proto::ratelimit::v1::Candidate;

use crate::chart::{Chart, Series, Shape, Tone, per_second, rate_text, tile};
use crate::decisions::{DecisionSum, Interval, PointsCoverage, SPAN_NAME, interval, range};
use crate::pages::now::percent;
use crate::rule_words;
use crate::table::Table;
use crate::text::{grouped, number};

/// Tones of candidates, in turn: the second of a tone is dashed.
const TONES: [Tone; 4] = [Tone::Shadow, Tone::Policy, Tone::Allowed, Tone::NearLimit];

/// The decisions of a rule.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleNumbers {
    /// Intervals, oldest first.
    pub(super) points: Vec<Interval>,
    /// The decisions of the rule in each, then those of each candidate.
    counts: Vec<Vec<DecisionSum>>,
    /// The decisions of the rule on the requests that its candidates decided.
    compared: Vec<DecisionSum>,
    /// Instances of the points.
    pub(super) coverage: PointsCoverage,
}

impl RuleNumbers {
    /// Takes the rule with its candidates out of its points.
    pub(super) fn new(points: &[WatchStatsResponse], candidates: usize) -> Self {
        let mut counts = vec![vec![DecisionSum::default(); points.len()]; 1 + candidates];
        let mut compared = vec![DecisionSum::default(); points.len()];
        for (position, point) in points.iter().enumerate() {
            for stats in &point.rules {
                if stats.candidate == SAME_REQUESTS {
                    compared[position] = stats.into();
                } else if let Some(counts) = counts.get_mut(stats.candidate as usize) {
                    counts[position] = stats.into();
                }
            }
        }
        Self {
            points: points.iter().map(interval).collect(),
            counts,
            compared,
            coverage: PointsCoverage::new(points),
        }
    }

    /// Returns all decisions of the rule, or of a candidate by its number from 1.
    fn total(&self, of: usize) -> DecisionSum {
        sum(self.counts.get(of).into_iter().flatten())
    }

    /// Shows the decisions at a glance.
    pub(super) fn tiles(&self) -> Markup {
        let interval = self.points.last().copied().unwrap_or_default();
        let last = self.counts.first().and_then(|of| of.last()).copied().unwrap_or_default();
        let total = self.total(0);
        let tile = |name: &str, rate: u64, all: u64, more: &str| {
            let rate = html! { (rate_text(per_second(rate, interval))) "/s" };
            tile(name, &rate, &html! { (number(all)) " in " (SPAN_NAME) (more) })
        };
        let part = |count| format!(", {}", percent(count, total.decisions()));
        html! {
            dl.tiles {
                (tile("Decisions", last.decisions(), total.decisions(), ""))
                (tile("Refused", last.denied, total.denied, &part(total.denied)))
                (tile("Refused in shadow mode", last.shadow_denied, total.shadow_denied, &part(total.shadow_denied)))
                (tile("Near the limit", last.near_limit, total.near_limit, &part(total.near_limit)))
                (tile("Without the store", last.degraded, total.degraded, ""))
            }
        }
    }

    /// Shows the charts, and a table of the candidates.
    pub(super) fn charts(&self, candidates: &[Candidate]) -> Markup {
        let range = range(&self.points);
        let counts = |of: usize| self.counts.get(of).map(Vec::as_slice).unwrap_or_default();
        let decisions = Series::outcomes(counts(0));
        let live = "The rule, on the same requests";
        let live = Series::new(live, Tone::Refused, &self.compared, refused);
        let tones = TONES.into_iter().cycle().zip(candidates);
        let others = tones.enumerate().map(|(at, (tone, candidate))| {
            Series::new(name(at + 1, candidate), tone, counts(at + 1), refused)
        });
        let beside: Vec<_> = iter::once(live).chain(others).collect();
        let chart = |id, title, shape, series| {
            Chart { id, title, shape, range, points: &self.points, series }.render()
        };
        html! {
            (chart("decisions", "Decisions of the rule", Shape::Stacked, &decisions))
            @if !candidates.is_empty() {
                (chart("beside", "Refused by the rule and by its candidates", Shape::Lines, &beside))
                (self.table(candidates))
            }
        }
    }

    /// Returns `true` if the rule has decided nothing that was counted.
    pub(super) fn is_empty(&self) -> bool {
        self.total(0).decisions() == 0
    }

    fn table(&self, candidates: &[Candidate]) -> Markup {
        let compared = sum(&self.compared);
        let left_out = self.total(0).decisions().saturating_sub(compared.decisions());
        let caption = format!(
            "The rule and its candidates, in the last {SPAN_NAME}. Candidates refuse nothing: this is what they \
             would refuse in the place of the rule. Left out: {} decisions of the rule that no candidate \
             counted, by bans, overrides and policies, or from before it had candidates.",
            grouped(left_out)
        );
        let of_candidates = candidates.iter().enumerate();
        let of_candidates = of_candidates.map(|(at, of)| (name(at + 1, of), self.total(at + 1)));
        let rows: Vec<_> = iter::once(("The rule, on the same requests".to_owned(), compared))
            .chain(of_candidates)
            .collect();
        let table = Table::<(String, DecisionSum)>::new("candidates", &caption)
            .text("Limit", |(name, _)| html! { (name) })
            .right("Decisions", |(_, counts)| number(counts.decisions()))
            .right("Refused", |(_, counts)| number(refused(counts)))
            .right("Share refused", |(_, counts)| {
                html! { (percent(refused(counts), counts.decisions())) }
            })
            .right("Units taken", |(_, counts)| number(counts.units));
        table.rows(&rows)
    }
}

fn sum<'a>(counts: impl IntoIterator<Item = &'a DecisionSum>) -> DecisionSum {
    let mut sum = DecisionSum::default();
    counts.into_iter().for_each(|counts| sum.add(counts));
    sum
}

/// Returns requests that a limit refuses, enforced or not.
fn refused(counts: &DecisionSum) -> u64 {
    counts.denied.saturating_add(counts.shadow_denied)
}

fn name(number: usize, candidate: &Candidate) -> String {
    format!("Candidate {number}: {}", rule_words::candidate(candidate))
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::RuleStats;

    use super::*;

    #[test]
    fn a_rule_is_counted_apart_from_its_candidates() {
        let stats = |candidate, allowed| RuleStats { candidate, allowed, ..RuleStats::default() };
        let rules = vec![stats(0, 1), stats(1, 2), stats(2, 3), stats(SAME_REQUESTS, 4)];
        let point = WatchStatsResponse { rules, ..WatchStatsResponse::default() };
        // A candidate that the rule does not have any more is left out.
        let numbers = RuleNumbers::new(&[point, WatchStatsResponse::default()], 1);
        let allowed: Vec<_> = numbers.counts[0].iter().map(|counts| counts.allowed).collect();
        assert_eq!(allowed, [1, 0]);
        assert_eq!((numbers.total(1).allowed, numbers.counts.len()), (2, 2));
        assert_eq!(sum(&numbers.compared).allowed, 4);
        assert!(!numbers.is_empty() && RuleNumbers::new(&[], 0).is_empty());
    }
}
