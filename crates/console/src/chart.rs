//! Charts: counts in time, as a table above which a script draws the chart.
//!
//! Without scripts the table is all there is.

use maud::{Markup, html};
use prost_types::Timestamp;
use rlaas_proto::ratelimit::admin::v1::{RequestStats, RuleStats};

use super::assets::CHART;
use super::decisions::Interval;
use super::text::{foreign, grouped, number, time};

/// A chart of counts in time. It draws them per second; its table has the counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart<'a> {
    /// Id of the element, unique in the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) shape: Shape,
    /// The time that the chart spans.
    pub(super) range: Interval,
    /// Intervals that were counted, oldest first.
    pub(super) points: &'a [Interval],
    pub(super) series: &'a [Series],
}

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
    /// Not decided.
    Failed,
    /// Would be refused by a rule that is not enforced.
    Shadow,
    /// Decided without the store.
    Policy,
}

impl Series {
    /// Creates the series of one count of decisions or requests.
    pub(super) fn new<T>(
        name: impl Into<String>,
        tone: Tone,
        counted: &[T],
        count: impl Fn(&T) -> u64,
    ) -> Self {
        Self { name: name.into(), tone, counts: counted.iter().map(count).collect() }
    }

    /// Returns the series of all requests, by their outcome.
    pub(super) fn requests(requests: &[RequestStats]) -> [Self; 4] {
        let new =
            |name, tone, count: fn(&RequestStats) -> u64| Self::new(name, tone, requests, count);
        [
            new("Allowed", Tone::Allowed, |stats| stats.allowed.saturating_sub(stats.fail_open)),
            new("Allowed because the store failed", Tone::Policy, |stats| stats.fail_open),
            new("Refused", Tone::Refused, |stats| stats.denied),
            new("Failed", Tone::Failed, |stats| stats.failed),
        ]
    }

    /// Returns the series of all decisions, by their outcome.
    pub(super) fn outcomes(decisions: &[RuleStats]) -> [Self; 4] {
        let new =
            |name, tone, count: fn(&RuleStats) -> u64| Self::new(name, tone, decisions, count);
        [
            new("Allowed", Tone::Allowed, |stats| stats.allowed),
            new("Allowed, near the limit", Tone::NearLimit, |stats| stats.near_limit),
            new("Refused in shadow mode only", Tone::Shadow, |stats| stats.shadow_denied),
            new("Refused", Tone::Refused, |stats| stats.denied),
        ]
    }
}

impl Tone {
    /// Returns the variable of the style sheet.
    const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::NearLimit => "near",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Shadow => "shadow",
            Self::Policy => "policy",
        }
    }
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Self::Stacked => "areas",
            Self::Lines => "lines",
        }
    }
}

impl Chart<'_> {
    /// Returns the figure, marked for the script.
    pub(super) fn render(&self) -> Markup {
        let columns = (1..).zip(self.series);
        let series: Vec<_> =
            columns.map(|(column, series)| format!("{column} {}", series.tone.name())).collect();
        let (from, until) = (self.range.0.seconds, self.range.1.seconds);
        html! {
            figure.chart id=(self.id) data-chart=(self.shape.name()) data-series=(series.join(","))
                data-range={ (from) " " (until) } data-per="second" {
                figcaption {
                    span.title { (self.title) }
                    " " span.muted { "per second" }
                }
                (self.table())
            }
        }
    }

    fn table(&self) -> Markup {
        let name = format!("Table of {}", self.title.to_lowercase());
        html! {
            details id=(format!("{}-table", self.id)) {
                summary { (name) }
                @if self.points.is_empty() { p.hint { "Nothing was counted in this time." } } @else {
                    div.scroll tabindex="0" role="region" aria-label=(name) {
                        table {
                            caption { "Counts, newest first." }
                            thead { tr {
                                th scope="col" { "From" }
                                @for series in self.series { th.right scope="col" { (foreign(&series.name)) } }
                            } }
                            tbody { @for (row, point) in self.points.iter().enumerate().rev() { (self.row(row, *point)) } }
                        }
                    }
                }
            }
        }
    }

    fn row(&self, row: usize, (since, until): Interval) -> Markup {
        html! {
            tr data-at=(since.seconds) data-seconds=(until.seconds - since.seconds) {
                th scope="row" { (time(Some(&since))) }
                @for series in self.series {
                    td.right { (count(series.counts.get(row).copied().unwrap_or_default())) }
                }
            }
        }
    }
}

/// Shows a number with what it is, and what else is to be said.
pub(super) fn tile(name: &str, value: &Markup, more: &Markup) -> Markup {
    html! { div.tile { dt { (name) } dd.value { (value) } dd.more { (more) } } }
}

/// Returns the script that draws the charts of a page, now and when it has new content. It stands
/// outside of what a live page replaces.
pub(super) fn script() -> Markup {
    html! { script type="module" src=(CHART.path()) {} }
}

/// Returns a count. One that is shown as its digits needs no value beside them, which halves the page
/// of a chart with many points.
fn count(count: u64) -> Markup {
    html! { @if count < 1_000 { (count) } @else { (number(count)) } }
}

/// Returns a count per second of its interval.
pub(super) fn per_second(count: u64, (since, until): Interval) -> f64 {
    let micros = |at: Timestamp| at.seconds * 1_000_000 + i64::from(at.nanos) / 1_000;
    let length = (micros(until) - micros(since)).max(1);
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let rate = count as f64 * 1e6 / length as f64;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds: 1_700_000_100 + seconds, nanos: 0 }
    }

    fn series(name: &str, tone: Tone, counts: &[u64]) -> Series {
        Series { name: name.to_owned(), tone, counts: counts.to_vec() }
    }

    #[test]
    fn a_chart_is_a_table_that_says_how_it_is_drawn() {
        let points = [(at(0), at(10)), (at(10), at(20)), (at(50), at(60))];
        let series = [
            series("Allowed", Tone::Allowed, &[50, 1_000, 0]),
            series("<b>\u{202e}", Tone::Refused, &[50, 0, 100]),
        ];
        let chart = Chart {
            id: "a",
            title: "Decisions",
            shape: Shape::Stacked,
            range: (at(0), at(100)),
            points: &points,
            series: &series,
        };
        let html = chart.render().into_string();
        let marks = "data-chart=\"areas\" data-series=\"1 allowed,2 refused\" \
                     data-range=\"1700000100 1700000200\" data-per=\"second\"";
        assert!(html.contains(marks), "{html}");
        assert!(html.contains("<tr data-at=\"1700000150\" data-seconds=\"10\">"), "{html}");
        assert_eq!(html.matches("<tr data-at=").count(), 3, "{html}");
        assert!(html.contains("<data class=\"number\" value=\"1000\">"), "{html}");
        assert!(!html.contains("<b>") && html.contains("U+202E"), "{html}");
        let empty = Chart { points: &[], series: &[], shape: Shape::Lines, ..chart };
        let html = empty.render().into_string();
        assert!(html.contains("Nothing was counted") && html.contains("\"lines\""), "{html}");
    }

    #[test]
    fn rates_have_three_digits() {
        for (rate, text) in [
            (0.0, "0"),
            (0.03, "0.03"),
            (7.25, "7.25"),
            (12.34, "12.3"),
            (1_234.6, "1,235"),
            (f64::INFINITY, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(rate_text(rate), text);
        }
    }
}
