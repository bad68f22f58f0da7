//! Axes: from values to positions from 0 to 1, with round numbers as ticks.

use rlaas_core::clock::Timestamp;

use super::numbers::{as_f64, axis_text};
use super::time_chart::time_in_utc;

/// A position on an axis with its label.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AxisTick {
    pub(super) place: f64,
    pub(super) label: String,
}

/// An axis of counts from 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountAxis {
    step: u64,
    steps: u64,
}

impl CountAxis {
    /// Most steps.
    const MAX_STEPS: u64 = 5;

    /// Creates an axis up to `largest` or the next round number.
    pub(super) fn new(largest: u64) -> Self {
        let largest = largest.max(1);
        let powers = (0..19).map(|power| 10_u64.pow(power));
        let mut steps = powers.flat_map(|power| [power, power * 2, power.saturating_mul(5)]);
        let step = steps.find(|step| largest.div_ceil(*step) <= Self::MAX_STEPS);
        let step = step.unwrap_or(u64::MAX / Self::MAX_STEPS);
        Self { step, steps: largest.div_ceil(step) }
    }

    pub(super) fn place(self, value: u64) -> f64 {
        as_f64(value) / (as_f64(self.step) * as_f64(self.steps))
    }

    pub(super) fn ticks(self) -> Vec<AxisTick> {
        let tick = |number: u64| {
            let value = as_f64(self.step) * as_f64(number);
            AxisTick { place: as_f64(number) / as_f64(self.steps), label: axis_text(value) }
        };
        (0..=self.steps).map(tick).collect()
    }
}

/// A logarithmic axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogAxis {
    low: f64,
    high: f64,
}

impl LogAxis {
    /// Creates an axis between two values above 0. One value alone is in the middle.
    pub(super) fn new(low: f64, high: f64) -> Self {
        if high > low { Self { low, high } } else { Self { low: low / 2.0, high: low * 2.0 } }
    }

    /// Creates an axis whose ends are powers of ten.
    pub(super) fn whole_decades(low: f64, high: f64) -> Self {
        Self::new(10_f64.powf(low.log10().floor()), 10_f64.powf(high.log10().ceil()))
    }

    pub(super) fn place(self, value: f64) -> f64 {
        (value / self.low).ln() / (self.high / self.low).ln()
    }

    /// Returns the round numbers on the axis: 1, 2 and 5 times a power of ten, or only the powers
    /// if there are many.
    pub(super) fn ticks(self) -> Vec<AxisTick> {
        let decades = (self.high / self.low).log10();
        let multiples: &[f64] = if decades > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = (-6..20).map(|power| 10_f64.powi(power));
        let values = powers.flat_map(|power| multiples.iter().map(move |part| part * power));
        let rounding = 1e-9;
        let is_on_axis = |value: &f64| {
            *value >= self.low * (1.0 - rounding) && *value <= self.high * (1.0 + rounding)
        };
        let values: Vec<f64> = values.filter(is_on_axis).collect();
        let every = values.len().div_ceil(7).max(1);
        let tick = |value: f64| AxisTick { place: self.place(value), label: axis_text(value) };
        values.into_iter().step_by(every).map(tick).collect()
    }
}

/// An axis of time in UTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeAxis {
    from: u64,
    until: u64,
}

impl TimeAxis {
    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * Self::SECOND;
    /// Steps between ticks, in seconds.
    const STEPS: [u64; 25] = [
        1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
        86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 15_552_000, 31_536_000,
    ];
    /// Most ticks.
    const MAX_TICKS: u64 = 6;

    /// Creates an axis from a time until a later one.
    pub(super) fn new(from: Timestamp, until: Timestamp) -> Self {
        let from = from.as_micros();
        Self { from, until: until.as_micros().max(from + 1) }
    }

    pub(super) fn place(self, at: Timestamp) -> f64 {
        as_f64(at.as_micros().saturating_sub(self.from)) / as_f64(self.until - self.from)
    }

    /// Returns round times: of the day if the axis is shorter than two days, else dates.
    pub(super) fn ticks(self) -> Vec<AxisTick> {
        let length = self.until - self.from;
        let steps = Self::STEPS.iter().map(|step| step * Self::SECOND);
        let mut steps = steps.chain((1..200).map(|years| years * 10 * 365 * Self::DAY));
        let step = steps.find(|step| length / step < Self::MAX_TICKS).unwrap_or(length);
        let format = match step {
            step if step < 60 * Self::SECOND => "%H:%M:%S",
            step if step < Self::DAY && length < 2 * Self::DAY => "%H:%M",
            step if step < Self::DAY => "%d %b %Hh",
            step if step < 180 * Self::DAY => "%d %b",
            _ => "%b %Y",
        };
        let first = self.from.div_ceil(step);
        let times = (first..).map(|number| number.saturating_mul(step));
        let times = times.take_while(|at| *at <= self.until).take(20);
        let tick = |at: u64| {
            let at = Timestamp::from_micros(at);
            Some(AxisTick { place: self.place(at), label: time_in_utc(at, format)? })
        };
        times.filter_map(tick).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: Vec<AxisTick>) -> Vec<String> {
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn counts_have_round_steps() {
        for (largest, expected) in [
            (0, vec!["0", "1"]),
            (1, vec!["0", "1"]),
            (3, vec!["0", "1", "2", "3"]),
            (7, vec!["0", "2", "4", "6", "8"]),
            (1_234, vec!["0", "500", "1000", "1500"]),
            (100_000, vec!["0", "20k", "40k", "60k", "80k", "100k"]),
        ] {
            assert_eq!(labels(CountAxis::new(largest).ticks()), expected, "{largest}");
        }
        assert!(CountAxis::new(u64::MAX).place(u64::MAX) <= 1.0);
    }

    #[test]
    fn logarithms_have_powers_of_ten_or_parts_of_them() {
        assert_eq!(labels(LogAxis::new(1.0, 5_000.0).ticks()), ["1", "10", "100", "1000"]);
        assert_eq!(labels(LogAxis::new(3.0, 60.0).ticks()), ["5", "10", "20", "50"]);
        assert_eq!(labels(LogAxis::new(1.0, 1.0).ticks()), ["0.5", "1", "2"]);
    }

    #[test]
    fn times_are_round_and_in_utc() {
        let at = |seconds: u64| Timestamp::from_millis(1_700_000_000_000 + seconds * 1_000);
        let ticks = |seconds| labels(TimeAxis::new(at(0), at(seconds)).ticks());
        assert_eq!(
            ticks(10),
            ["22:13:20", "22:13:22", "22:13:24", "22:13:26", "22:13:28", "22:13:30"]
        );
        assert_eq!(ticks(3_600), ["22:15", "22:30", "22:45", "23:00"]);
        assert_eq!(ticks(10 * 86_400), ["15 Nov", "17 Nov", "19 Nov", "21 Nov", "23 Nov"]);
        assert!(ticks(0).len() <= 1);
    }

    #[test]
    fn far_times_are_no_panic() {
        for (from, until) in [(0, u64::MAX), (u64::MAX - 5, u64::MAX), (0, 1)] {
            let axis = TimeAxis::new(Timestamp::from_micros(from), Timestamp::from_micros(until));
            assert!(axis.ticks().len() <= 20);
        }
    }
}
