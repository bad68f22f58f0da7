//! How long refused requests have to wait.

use rlaas_core::algorithm::Outcome;
use rlaas_core::clock::Micros;

/// Upper bounds of the classes of waits, in milliseconds. A further class has no bound.
const BOUNDS_MS: [u64; 20] = [
    1,
    10,
    100,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    1_800_000,
    3_600_000,
    10_800_000,
    21_600_000,
    86_400_000,
    604_800_000,
    2_592_000_000,
];

/// Waits of refused requests, by classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    counts: [u64; BOUNDS_MS.len() + 1],
    longest: Option<Micros>,
}

/// Refused requests whose waits are in one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitClass {
    /// Longest wait of the class; `None` for the class without a bound.
    pub up_to: Option<Micros>,
    /// Requests in the class: those that wait for longer than the class before.
    pub refused: u64,
}

impl Waits {
    pub(super) fn record(&mut self, wait: Micros) {
        let class = BOUNDS_MS.partition_point(|bound| Micros::from_millis(*bound) < wait);
        self.counts[class] += 1;
        self.longest = self.longest.max(Some(wait));
    }

    /// Returns the longest wait; `None` if no request waits.
    pub(super) fn longest(&self) -> Option<Micros> {
        self.longest
    }

    /// Returns the classes from the first to the last one that has requests.
    pub(super) fn classes(&self) -> Vec<WaitClass> {
        let bounds = BOUNDS_MS.iter().map(|bound| Some(Micros::from_millis(*bound)));
        let classes = bounds.chain([None]).zip(self.counts);
        let mut classes: Vec<_> =
            classes.map(|(up_to, refused)| WaitClass { up_to, refused }).collect();
        let used = classes.iter().rposition(|class| class.refused > 0).map_or(0, |last| last + 1);
        classes.truncate(used);
        let unused = classes.iter().position(|class| class.refused > 0).unwrap_or_default();
        classes.drain(..unused);
        classes
    }
}

/// Returns the wait of a denial; `None` if the request is allowed or can never pass.
pub(super) fn wait_of(outcome: Outcome) -> Option<Micros> {
    match outcome {
        Outcome::Denied { retry_after } => Some(retry_after),
        Outcome::Allowed | Outcome::Impossible => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_classes() {
        let mut waits = Waits::default();
        assert_eq!((waits.classes(), waits.longest()), (Vec::new(), None));
        for millis in [1_000, 1_001, 2_000, 4_000_000_000] {
            waits.record(Micros::from_millis(millis));
        }
        let classes = waits.classes();
        let class =
            |up_to: u64, refused| WaitClass { up_to: Some(Micros::from_millis(up_to)), refused };
        assert_eq!(classes[..2], [class(1_000, 1), class(2_000, 2)]);
        assert_eq!(classes.last(), Some(&WaitClass { up_to: None, refused: 1 }));
        assert_eq!(waits.longest(), Some(Micros::from_millis(4_000_000_000)));
    }
}
