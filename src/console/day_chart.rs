//! Charts of days: a bar each, of requests that passed and that were refused.
//!
//! As in [`super::chart`] the plot is stretched to the width of the page, so that its labels are text of
//! the page around it. The page shows a table with the same numbers.

use std::fmt::Write;

use maud::{Markup, html};

use super::chart::Tone;
use super::text::grouped;
use crate::usage::Day;

/// Size of the plot, in its own units.
const WIDTH: u64 = 1_000;
const HEIGHT: u64 = 200;
/// Space between bars.
const GAP: u64 = 4;

/// A chart of counts by day.
#[derive(Clone, Copy, Debug)]
pub(super) struct DayChart<'a> {
    /// Id of the element, unique in the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    /// The days, oldest first, without gaps.
    pub(super) days: &'a [DayCounts],
}

/// Requests of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DayCounts {
    pub(super) day: Day,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

impl DayCounts {
    const fn sum(self) -> u64 {
        self.allowed.saturating_add(self.denied)
    }
}

impl DayChart<'_> {
    /// Returns the chart: a figure with its legend and the plot.
    pub(super) fn render(&self) -> Markup {
        let top = scale(self.days.iter().map(|day| day.sum()).max().unwrap_or_default());
        html! {
            figure.chart id=(self.id) {
                figcaption { span.title { (self.title) } " " span.muted { "per day (UTC)" } }
                ul.legend { (legend(Tone::Allowed, "Allowed")) (legend(Tone::Refused, "Refused")) }
                div.plot {
                    div.values aria-hidden="true" {
                        span { (grouped(top)) } span { (grouped(top / 2)) } span { "0" }
                    }
                    svg.area viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none"
                        role="img" aria-label=(self.summary()) focusable="false" {
                        path.grid d=(format!("M0,1H{WIDTH}M0,{}H{WIDTH}M0,{}H{WIDTH}", HEIGHT / 2, HEIGHT - 1)) {}
                        path.tone-refused d=(self.bars(top, DayCounts::sum)) {}
                        path.tone-allowed d=(self.bars(top, |day| day.allowed)) {}
                    }
                    div.times aria-hidden="true" {
                        @if let (Some(first), Some(last)) = (self.days.first(), self.days.last()) {
                            span { (first.day) } span { (last.day) }
                        }
                    }
                }
            }
        }
    }

    /// Returns bars from the base. Those of the sum come first, and those of a part cover them.
    fn bars(&self, top: u64, count: impl Fn(DayCounts) -> u64) -> String {
        let (mut path, days) = (String::new(), self.days.len().max(1) as u64);
        for (position, day) in (0_u64..).zip(self.days) {
            let (from, to) = (position * WIDTH / days, (position + 1) * WIDTH / days - GAP);
            let height = u128::from(count(*day)) * u128::from(HEIGHT);
            let height = height.div_ceil(u128::from(top.max(1)));
            let y = HEIGHT.saturating_sub(u64::try_from(height).unwrap_or(HEIGHT));
            if y < HEIGHT {
                let _infallible = write!(path, "M{from},{HEIGHT}V{y}H{to}V{HEIGHT}Z");
            }
        }
        path
    }

    /// Returns the chart in words.
    fn summary(&self) -> String {
        let sum = |count: fn(&DayCounts) -> u64| self.days.iter().map(count).sum::<u64>();
        format!(
            "{} per day: {} allowed and {} refused in {} days.",
            self.title,
            grouped(sum(|day| day.allowed)),
            grouped(sum(|day| day.denied)),
            self.days.len()
        )
    }
}

fn legend(tone: Tone, name: &str) -> Markup {
    html! {
        li {
            svg.swatch viewBox="0 0 10 10" aria-hidden="true" focusable="false" {
                rect class=(tone.class()) width="10" height="10" {}
            }
            (name)
        }
    }
}

/// Returns the top of the plot: the least of 2, 4 and 10 times a power of ten that is not below the
/// highest count.
fn scale(highest: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        if let Some(top) = [2, 4, 10].into_iter().find(|step| step * power >= highest) {
            return top * power;
        }
        let Some(next) = power.checked_mul(10).filter(|next| *next <= u64::MAX / 10) else {
            return highest;
        };
        power = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_stacked_and_days_without_requests_have_none() {
        let first: Day = "2026-11-01".parse().expect("a day");
        let counts = [(50, 50), (0, 0), (0, 1), (100, 0)];
        let days: Vec<_> = (0..)
            .zip(counts)
            .map(|(after, (allowed, denied))| DayCounts { day: first.plus(after), allowed, denied })
            .collect();
        let chart = DayChart { id: "usage", title: "Requests", days: &days };
        let refused = chart.bars(100, DayCounts::sum);
        assert_eq!(refused, "M0,200V0H246V200ZM500,200V198H746V200ZM750,200V0H996V200Z");
        let allowed = chart.bars(100, |day| day.allowed);
        assert_eq!(allowed, "M0,200V100H246V200ZM750,200V0H996V200Z");
        let html = chart.render().into_string();
        assert!(html.contains("150 allowed and 51 refused in 4 days"), "{html}");
        assert!(!html.contains(" style="), "{html}");
    }

    #[test]
    fn scales_are_round() {
        for (highest, top) in
            [(0, 2), (3, 4), (5, 10), (11, 20), (401, 1_000), (u64::MAX, u64::MAX)]
        {
            assert_eq!(scale(highest), top, "{highest}");
        }
    }
}
