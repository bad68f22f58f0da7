//! Bounds of each key for one window: the limit from which none of its requests is refused, and
//! whether all of its requests cost the same.

use rlaas_core::algorithm::{Algorithm, window_index};
use rlaas_core::clock::Micros;

use super::hit_log::LoggedHit;

/// The units that the requests of a key cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KeyCosts {
    #[default]
    None,
    Same(u32),
    Mixed,
}

/// The requests of one key, as windows aligned to the epoch see them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyProfile {
    /// Index of the window of the last request.
    index: u64,
    /// Units in the window of the last request, in that before, and in that before it.
    units: [u64; 3],
    /// Most units in two windows that follow each other.
    most_in_two: u64,
    /// Most units in three windows that follow each other.
    most_in_three: u64,
    costs: KeyCosts,
    highest_cost: u32,
}

/// Bounds of one key for an algorithm and a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyBounds {
    /// No span of time that the algorithm looks at has more units than this.
    pub(super) units: u64,
    /// At this limit and above the same requests are refused.
    pub(super) constant_from: u64,
    /// At this limit and above none of its requests is refused; `u64::MAX`: not known of any limit.
    pub(super) never_refused_from: u64,
    /// Whether a larger limit never refuses more of its requests.
    pub(super) is_monotone: bool,
}

impl KeyProfile {
    pub(super) fn add(&mut self, hit: LoggedHit, window: Micros) {
        if hit.cost == 0 {
            return;
        }
        let index = window_index(hit.at, window);
        let [current, before, _] = self.units;
        match index - self.index {
            0 => {}
            1 => self.units = [0, current, before],
            2 => self.units = [0, 0, current],
            _ => self.units = [0; 3],
        }
        self.index = index;
        self.units[0] += u64::from(hit.cost);
        let two = self.units[0] + self.units[1];
        self.most_in_two = self.most_in_two.max(two);
        self.most_in_three = self.most_in_three.max(two + self.units[2]);
        self.highest_cost = self.highest_cost.max(hit.cost);
        self.costs = match self.costs {
            KeyCosts::None => KeyCosts::Same(hit.cost),
            KeyCosts::Same(cost) if cost == hit.cost => KeyCosts::Same(cost),
            _ => KeyCosts::Mixed,
        };
    }

    /// Returns the bounds for an algorithm.
    ///
    /// A span of one window, both ends included, lies within two aligned windows; one of two
    /// windows, which the sliding window counter looks at, lies within three. If a bucket's burst
    /// is the limit, no span of a window with more units than that means that no longer span has
    /// more than the burst and the units that are refilled.
    ///
    /// If all requests cost the same, a larger limit has allowed at least as many of them at any
    /// time, because whenever both have allowed equally many, the larger one has more left. This
    /// does not hold for the estimate of the sliding window counter.
    pub(super) fn bounds(
        &self,
        algorithm: Algorithm,
        window: Micros,
        burst: Option<u64>,
    ) -> KeyBounds {
        let is_counter = algorithm == Algorithm::SlidingWindowCounter;
        let units = if is_counter { self.most_in_three } else { self.most_in_two };
        let too_small_burst = burst.filter(|burst| units > *burst);
        // From there on the burst is refilled within a microsecond.
        let refilled = |burst: u64| burst.saturating_mul(window.as_micros());
        let fits_cost = self.highest_cost <= algorithm.max_cost();
        KeyBounds {
            units,
            constant_from: too_small_burst.map_or(units, refilled),
            never_refused_from: match too_small_burst {
                None if fits_cost => units,
                _ => u64::MAX,
            },
            is_monotone: !is_counter && self.costs != KeyCosts::Mixed,
        }
    }
}
