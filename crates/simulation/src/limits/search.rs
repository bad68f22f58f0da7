//! The search for the smallest limits of one rule.
//!
//! A limit is *enough* if it and every larger one refuse at most the share. Each pass over the hits
//! evaluates some limits, and bounds what the limits between two of them can refuse:
//!
//! - If all requests of a key cost the same, none of these refuses more than the smaller of the
//!   two.
//! - Else, as long as both ends decide alike on a key, every limit between them decides so too:
//!   after the same decisions a larger limit has more left. From the first difference on, until the
//!   key has been idle for so long that its state is as new at every limit, each request counts as
//!   refused.
//! - An id that a limit never refuses is never refused by a larger one, whatever its requests cost.
//!
//! Gaps whose bound is above the share are divided, until the answer is exact or the passes are
//! used up.

use std::collections::{BTreeMap, BTreeSet};

use super::report::{CurvePoint, FoundLimit, RefusalMeasure};
use super::sweep::TrialResult;

/// What is sought: the smallest limit that refuses at most so many.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoughtLimit {
    pub(super) measure: RefusalMeasure,
    pub(super) most: u64,
}

/// The limits of one rule that were evaluated.
#[derive(Debug)]
pub(super) struct LimitSearch {
    /// The smallest and the largest limit that are considered. Above the largest one nothing
    /// changes, or the algorithm accepts no limit.
    range: (u64, u64),
    /// Whether a larger limit never refuses more requests.
    is_monotone: bool,
    sought: Vec<SoughtLimit>,
    points: BTreeMap<u64, TrialResult>,
}

impl LimitSearch {
    pub(super) fn new(range: (u64, u64), is_monotone: bool, sought: Vec<SoughtLimit>) -> Self {
        Self { range, is_monotone, sought, points: BTreeMap::new() }
    }

    /// Returns at most about `budget` limits to evaluate next, in ascending order. None if every
    /// answer is exact.
    pub(super) fn next_limits(&self, budget: usize) -> Vec<u64> {
        let (smallest, largest) = self.range;
        if self.points.is_empty() {
            let mut limits: BTreeSet<u64> =
                divided(smallest, largest, budget).into_iter().collect();
            limits.extend([smallest, largest]);
            return limits.into_iter().collect();
        }
        let gaps = self.open_gaps();
        let ends = if self.is_monotone { 0 } else { 2 };
        // Gaps at the top come first: what is found there may make those below pointless.
        let considered = gaps.len().min((budget / (ends + 1)).max(1));
        let each = (budget / considered.max(1)).saturating_sub(ends).max(1);
        let mut limits = BTreeSet::new();
        for (low, high) in gaps.into_iter().rev().take(considered) {
            limits.extend(divided(low, high, each));
            if !self.is_monotone {
                limits.extend([low, high]);
            }
        }
        limits.into_iter().collect()
    }

    /// Adds the results of limits, in ascending order.
    pub(super) fn learn(&mut self, limits: &[u64], results: &[TrialResult]) {
        // What bounds a whole gap bounds each part of it.
        let inherited = |limit: &u64| {
            let below = self.points.range(..=limit).next_back();
            below.map_or(u64::MAX, |(_, point)| point.requests_between)
        };
        let inherited: Vec<u64> = limits.iter().map(inherited).collect();
        for ((limit, result), inherited) in limits.iter().zip(results).zip(inherited) {
            let requests_between = if self.is_monotone {
                result.requests
            } else {
                inherited.min(result.requests_between)
            };
            self.points.insert(*limit, TrialResult { requests_between, ..*result });
        }
    }

    /// Returns the gaps that must be divided for some answer, in ascending order.
    fn open_gaps(&self) -> BTreeSet<(u64, u64)> {
        let mut open = BTreeSet::new();
        for sought in &self.sought {
            if self.largest_too_small(*sought) == Some(self.range.1) {
                continue;
            }
            for (gap, is_enough) in self.gaps_down_to_too_small(*sought) {
                if !is_enough && gap.1 - gap.0 > 1 {
                    open.insert(gap);
                }
            }
        }
        open
    }

    /// Returns the largest evaluated limit that refuses too many.
    fn largest_too_small(&self, sought: SoughtLimit) -> Option<u64> {
        let mut points = self.points.iter().rev();
        points.find(|(_, point)| refused(point, sought) > sought.most).map(|(limit, _)| *limit)
    }

    /// Returns the gaps from the largest limit down to the largest one that refuses too many, and
    /// whether every limit in the gap is known to refuse few enough.
    fn gaps_down_to_too_small(
        &self,
        sought: SoughtLimit,
    ) -> impl Iterator<Item = ((u64, u64), bool)> {
        let too_small = self.largest_too_small(sought);
        let from = too_small.unwrap_or(self.range.0);
        let above = self.points.range(from + 1..).rev();
        above.map(|(high, _)| high).map(move |high| {
            let (low, point) =
                self.points.range(..high).next_back().expect("the smallest limit was evaluated");
            let bound = match sought.measure {
                RefusalMeasure::Requests => point.requests_between,
                RefusalMeasure::Ids => point.ids,
            };
            let is_enough = Some(*low) != too_small && bound <= sought.most;
            ((*low, *high), is_enough)
        })
    }

    /// Returns the smallest limit that is enough, as far as it is known.
    pub(super) fn answer(&self, sought: SoughtLimit) -> FoundLimit {
        let too_small = self.largest_too_small(sought);
        if too_small == Some(self.range.1) {
            return FoundLimit::Unreachable;
        }
        let at_least = too_small.map_or(self.range.0, |limit| limit + 1);
        let mut at_most = self.range.1;
        for ((low, high), is_enough) in self.gaps_down_to_too_small(sought) {
            if Some(low) == too_small || (!is_enough && high - low > 1) {
                break;
            }
            at_most = low;
        }
        if at_least == at_most {
            FoundLimit::Exactly { limit: at_most }
        } else {
            FoundLimit::Between { at_least, at_most }
        }
    }

    /// Returns the limits that were evaluated, in ascending order.
    pub(super) fn curve(&self) -> Vec<CurvePoint> {
        let point = |(limit, point): (&u64, &TrialResult)| CurvePoint {
            limit: *limit,
            requests: point.requests,
            ids: point.ids,
        };
        self.points.iter().map(point).collect()
    }
}

fn refused(point: &TrialResult, sought: SoughtLimit) -> u64 {
    match sought.measure {
        RefusalMeasure::Requests => point.requests,
        RefusalMeasure::Ids => point.ids,
    }
}

/// Returns up to `count` numbers between `low` and `high`, which are not among them: evenly spaced,
/// or with even ratios if the ends are far apart.
fn divided(low: u64, high: u64, count: usize) -> Vec<u64> {
    let between = (high - low).saturating_sub(1);
    let count = u64::try_from(count).unwrap_or(u64::MAX).min(between);
    if count == between {
        return (low + 1..high).collect();
    }
    let is_wide = high / low.max(1) > 4;
    let part = |number: u64| {
        if !is_wide {
            let of = u128::from(high - low) * u128::from(number) / u128::from(count + 1);
            return low + u64::try_from(of).unwrap_or_default();
        }
        #[expect(clippy::cast_precision_loss, reason = "limits are below 2^52")]
        let (from, ratio) = (low.max(1) as f64, high as f64 / low.max(1) as f64);
        #[expect(clippy::cast_precision_loss, reason = "few numbers")]
        let at = from * ratio.powf(number as f64 / (count + 1) as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        let at = at.round() as u64;
        at
    };
    let parts = (1..=count).map(part);
    let parts: BTreeSet<u64> = parts.map(|part| part.clamp(low + 1, high - 1)).collect();
    parts.into_iter().collect()
}
