//! Charts: decisions in time, as SVG with a table behind it.
//!
//! The plot is stretched to the width of the page, so its labels are text of the page around it. It has
//! no style of its own: colors come from classes, for the light and the dark theme.

use std::fmt::Write;

use maud::{Markup, html};

use super::text::{foreign, grouped, time};
use crate::clock::Timestamp;
use crate::proto_values::timestamp;

/// Size of the plot, in its own units.
const WIDTH: u64 = 1_000;
const HEIGHT: u64 = 200;

/// A chart of counts in time. It plots them per second; its table has the counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart<'a> {
    /// Id of the element, unique in the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) shape: Shape,
    /// The time that the plot spans.
    pub(super) range: Interval,
    /// Intervals that were counted, oldest first.
    pub(super) points: &'a [Interval],
    pub(super) series: &'a [Series],
}

/// From a time, until another.
pub(super) type Interval = (Timestamp, Timestamp);

/// How series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Areas, each on top of that before it: parts of a whole.
    Stacked,
    /// Lines, to be compared.
    Lines,
}

/// A series: one count for each point.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) tone: Tone,
    pub(super) counts: Vec<u64>,
}

/// The meaning of a series, by which its color is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Allowed,
    NearLimit,
    Refused,
    /// Would be refused by a rule that is not enforced.
    Shadow,
    /// Decided without the store.
    Policy,
}

impl Tone {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Allowed => "tone-allowed",
            Self::NearLimit => "tone-near",
            Self::Refused => "tone-refused",
            Self::Shadow => "tone-shadow",
            Self::Policy => "tone-policy",
        }
    }
}

impl Chart<'_> {
    /// Returns the chart: a figure with its legend, the plot, and the table.
    pub(super) fn render(&self) -> Markup {
        let rates = self.rates();
        let top = scale(highest(&rates));
        html! {
            figure.chart id=(self.id) {
                figcaption {
                    span.title { (self.title) }
                    " " span.muted { "per second" }
                }
                ul.legend {
                    @for (at, series) in self.series.iter().enumerate() {
                        li {
                            svg.swatch viewBox="0 0 10 10" aria-hidden="true" focusable="false" {
                                @if self.dashes(at).is_none() {
                                    rect class=(series.tone.class()) width="10" height="10" {}
                                } @else {
                                    rect class=(series.tone.class()) width="4" height="10" {}
                                    rect class=(series.tone.class()) x="6" width="4" height="10" {}
                                }
                            }
                            (foreign(&series.name))
                        }
                    }
                }
                div.plot {
                    div.values aria-hidden="true" {
                        span { (rate_text(top)) } span { (rate_text(top / 2.0)) } span { "0" }
                    }
                    svg.area viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none"
                        role="img" aria-label=(self.summary()) focusable="false" {
                        path.grid d=(format!("M0,1H{WIDTH}M0,{}H{WIDTH}M0,{}H{WIDTH}", HEIGHT / 2, HEIGHT - 1)) {}
                        (self.paths(&rates, top))
                    }
                    div.times aria-hidden="true" {
                        (time(Some(&timestamp(self.range.0)))) (time(Some(&timestamp(self.range.1))))
                    }
                }
                (self.table())
            }
        }
    }

    /// Returns the sums up to each series if they are stacked, else the series themselves, per second.
    fn rates(&self) -> Vec<Vec<f64>> {
        let mut below = vec![0.0; self.points.len()];
        let rates = self.series.iter().map(|series| {
            let own = self.own_rates(series);
            if self.shape == Shape::Lines {
                return own;
            }
            below.iter_mut().zip(&own).for_each(|(sum, rate)| *sum += rate);
            below.clone()
        });
        rates.collect()
    }

    /// Returns the counts of a series per second.
    fn own_rates(&self, series: &Series) -> Vec<f64> {
        let counts = self.points.iter().zip(&series.counts);
        counts.map(|(point, count)| per_second(*count, *point)).collect()
    }

    /// Draws the series. Of stacked ones the highest comes first, and those below cover it.
    fn paths(&self, rates: &[Vec<f64>], top: f64) -> Markup {
        let drawn = self.series.iter().zip(rates).enumerate().rev();
        html! {
            @for (at, (series, rates)) in drawn {
                @match self.shape {
                    Shape::Stacked => path class=(series.tone.class()) d=(self.path(rates, top)) {},
                    Shape::Lines => path.line.(series.tone.class())
                        stroke-dasharray=[self.dashes(at)] d=(self.path(rates, top)) {},
                }
            }
        }
    }

    /// Returns the dashes of a line whose tone is that of a line before it.
    fn dashes(&self, at: usize) -> Option<&'static str> {
        let is_again = self.series[..at].iter().any(|one| one.tone == self.series[at].tone);
        (is_again && self.shape == Shape::Lines).then_some("6 4")
    }

    /// Returns steps through rates. An area goes down to the base where nothing was counted, a line
    /// is interrupted.
    fn path(&self, rates: &[f64], top: f64) -> String {
        let is_area = self.shape == Shape::Stacked;
        let mut path = String::new();
        let mut at = None;
        let close = |path: &mut String| {
            if is_area {
                let _infallible = write!(path, "V{HEIGHT}Z");
            }
        };
        for ((since, until), rate) in self.points.iter().zip(rates) {
            let (from, to) = (self.x(*since), self.x(*until));
            if to <= from {
                continue;
            }
            let y = height(*rate, top);
            if at == Some(from) {
                let _infallible = write!(path, "V{y}H{to}");
            } else {
                if at.is_some() {
                    close(&mut path);
                }
                let base = if is_area { HEIGHT } else { y };
                let _infallible = write!(path, "M{from},{base}V{y}H{to}");
            }
            at = Some(to);
        }
        if at.is_some() {
            close(&mut path);
        }
        path
    }

    /// Returns the place of a time in the plot.
    fn x(&self, at: Timestamp) -> u64 {
        let (from, until) = self.range;
        let whole = u128::from(until.since(from).as_micros().max(1));
        let part = u128::from(at.max(from).min(until).since(from).as_micros());
        u64::try_from(part * u128::from(WIDTH) / whole).unwrap_or(WIDTH)
    }

    /// Returns the chart in words.
    fn summary(&self) -> String {
        let mut summary = format!("{}, per second.", self.title);
        for series in self.series {
            let rates = self.own_rates(series);
            let highest = rates.iter().copied().fold(0.0, f64::max);
            let last = rates.last().copied().unwrap_or_default();
            let (last, highest) = (rate_text(last), rate_text(highest));
            let _infallible = write!(summary, " {}: {last} now, at most {highest}.", series.name);
        }
        summary
    }

    fn table(&self) -> Markup {
        let counted = |row: &usize| self.series.iter().any(|one| one.counts.get(*row) > Some(&0));
        let name = format!("Table of {}", self.title.to_lowercase());
        let rows: Vec<usize> = (0..self.points.len()).rev().filter(counted).collect();
        html! {
            details id=(format!("{}-table", self.id)) {
                summary { (name) }
                @if rows.is_empty() { p.hint { "Nothing was counted in this time." } } @else {
                    div.scroll tabindex="0" role="region"
                        aria-label=(name) {
                        table {
                            caption { "Counts, newest first. Intervals without any are left out." }
                            thead { tr {
                                th scope="col" { "From" }
                                @for series in self.series { th.right scope="col" { (foreign(&series.name)) } }
                            } }
                            tbody { @for row in rows { (self.row(row)) } }
                        }
                    }
                }
            }
        }
    }

    fn row(&self, row: usize) -> Markup {
        html! {
            tr {
                th scope="row" { (time(Some(&timestamp(self.points[row].0)))) }
                @for series in self.series {
                    td.right { (grouped(series.counts.get(row).copied().unwrap_or_default())) }
                }
            }
        }
    }
}

fn highest(rates: &[Vec<f64>]) -> f64 {
    rates.iter().flatten().copied().fold(0.0, f64::max)
}

/// Returns a count per second of its interval.
pub(super) fn per_second(count: u64, (since, until): Interval) -> f64 {
    let micros = until.since(since).as_micros().max(1);
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let rate = count as f64 * 1e6 / micros as f64;
    rate
}

/// Returns a rate as text: two decimals below 10, one below 100.
pub(super) fn rate_text(rate: f64) -> String {
    let text = match rate {
        ..10.0 => format!("{rate:.2}"),
        10.0..100.0 => format!("{rate:.1}"),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        _ => return grouped(rate.round() as u64),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the top of the plot: the least of 1, 2 and 5 times a power of ten that is not below the
/// highest rate.
fn scale(highest: f64) -> f64 {
    if !(highest > 0.0 && highest.is_finite()) {
        return 1.0;
    }
    let power = 10_f64.powf(highest.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= highest).unwrap_or(10.0 * power)
}

/// Returns the distance of a rate from the upper edge. One above 0 is seen.
fn height(rate: f64, top: f64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "200")]
    let share = rate / top * HEIGHT as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 200")]
    let share = share.clamp(0.0, 200.0).ceil() as u64;
    HEIGHT.saturating_sub(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;

    const T0: Timestamp = Timestamp::from_millis(1_700_000_100_000);

    fn at(seconds: u64) -> Timestamp {
        T0 + Micros::from_secs(seconds)
    }

    fn series(name: &str, tone: Tone, counts: &[u64]) -> Series {
        Series { name: name.to_owned(), tone, counts: counts.to_vec() }
    }

    #[test]
    fn areas_are_stacked_and_end_where_nothing_was_counted() {
        let points = [(at(0), at(10)), (at(10), at(20)), (at(50), at(60))];
        let series = [
            series("Allowed", Tone::Allowed, &[50, 100, 0]),
            series("Refused", Tone::Refused, &[50, 0, 100]),
        ];
        let chart = Chart {
            id: "a",
            title: "Decisions",
            shape: Shape::Stacked,
            range: (at(0), at(100)),
            points: &points,
            series: &series,
        };
        let rates = chart.rates();
        let top = scale(highest(&rates));
        assert!((top - 10.0).abs() < f64::EPSILON);
        assert_eq!(chart.path(&rates[0], top), "M0,200V100H100V0H200V200ZM500,200V200H600V200Z");
        assert_eq!(chart.path(&rates[1], top), "M0,200V0H100V0H200V200ZM500,200V0H600V200Z");
        let lines = Chart { shape: Shape::Lines, ..chart };
        let rates = lines.rates();
        assert_eq!(lines.path(&rates[1], top), "M0,100V100H100V200H200M500,0V0H600");
        let html = chart.render().into_string();
        assert_eq!(html.matches("<tr>").count(), 4, "{html}");
        assert!(html.contains("Refused: 10 now, at most 10."), "{html}");
        assert!(!html.contains(" style="), "{html}");
    }

    #[test]
    fn points_outside_of_the_range_and_names_of_others_do_nothing() {
        let points = [(at(0), at(10)), (at(300), at(310))];
        let series = [series("<b>\u{202e}", Tone::Shadow, &[1, 2])];
        let range = (at(100), at(200));
        let chart = Chart {
            id: "a",
            title: "x",
            shape: Shape::Lines,
            range,
            points: &points,
            series: &series,
        };
        assert_eq!(chart.path(&chart.rates()[0], 1.0), "");
        let html = chart.render().into_string();
        assert!(!html.contains("<b>") && html.contains("U+202E"), "{html}");
        let empty = Chart { points: &[], series: &[], ..chart };
        assert!(empty.render().into_string().contains("Nothing was counted"));
    }

    #[test]
    fn rates_and_scales_are_round() {
        for (rate, text, top) in [
            (0.0, "0", 1.0),
            (0.03, "0.03", 0.05),
            (0.5, "0.5", 0.5),
            (7.25, "7.25", 10.0),
            (12.34, "12.3", 20.0),
            (1_234.6, "1\u{202f}235", 2_000.0),
            (
                f64::INFINITY,
                "18\u{202f}446\u{202f}744\u{202f}073\u{202f}709\u{202f}551\u{202f}615",
                1.0,
            ),
        ] {
            assert_eq!(rate_text(rate), text);
            assert!((scale(rate) - top).abs() < 1e-9, "{rate}: {}", scale(rate));
        }
    }
}
