//! The page of a simulation: one HTML file, which needs no network.
//!
//! Texts may come from anybody. They are shown as they are: markup is escaped, and so are characters
//! that nobody sees.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use rlaas_core::clock::Timestamp;

use crate::chart;
use crate::simulation::{
    CountsReport, GateCheck, GateResult, SimulationReport, TriedLimit, count_text, length_text,
    share_text, time_text,
};

/// Most rules, and most checks of the gate, that are shown.
const MAX_ROWS: usize = 200;
/// What the page may load: nothing. Its own script and styles are in it.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src data:; base-uri 'none'; form-action 'none'";
const STYLES: &str = include_str!("../assets/page.css");

/// What the page shows.
#[derive(Clone, Copy, Debug)]
pub struct SimulationPage<'a> {
    /// What the simulation counted.
    pub report: &'a SimulationReport,
    /// What the gate found, if there is one.
    pub gate: Option<&'a GateResult>,
    /// What the report says of itself.
    pub notes: &'a [String],
}

impl SimulationPage<'_> {
    /// Returns the page.
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    link rel="icon" href="data:,";
                    title { "Simulation of rate limits" }
                    style { (PreEscaped(STYLES)) (PreEscaped(chart::STYLES)) }
                }
                body {
                    main {
                        h1 { "Simulation of rate limits" }
                        (self.summary())
                        (self.gate())
                        h2 { "Limits that were tried" } (self.limits())
                        h2 { "Requests over time" } (self.over_time())
                        h2 { "Requests by rule" } (self.rules())
                        @if !self.report.hardest_hit.is_empty() {
                            h2 { "Refused most often" } (self.hardest_hit())
                        }
                        h2 { "Notes" }
                        ul { @for note in self.notes { li { (shown(note)) } } }
                    }
                    footer { "Made by rlaas simulate. All times are in UTC." }
                    script type="module" { (PreEscaped(chart::SCRIPT)) }
                }
            }
        };
        page.into_string()
    }

    /// Shows the result in sentences.
    fn summary(&self) -> Markup {
        let SimulationReport { all, span, is_compared, .. } = self.report;
        html! {
            p {
                @match span {
                    Some(span) => { (number(all.requests)) " requests in " (length_text(span.length)) " from " (time_text(span.from)) ": " },
                    None => "No request was decided: ",
                }
                strong { (number(all.refused)) " refused (" (share_text(all.refused, all.requests)) ")" }
                @if *is_compared {
                    ". The rules in force refuse " (number(all.refused_before)) ". "
                    strong { (number(all.allowed_to_refused)) " newly refused" } ", "
                    (number(all.refused_to_allowed)) " no longer refused"
                }
                "."
            }
        }
    }

    fn gate(&self) -> Markup {
        html! {
            @match self.gate {
                None => {},
                Some(gate) if gate.is_within => p.good { "New denials are within --max-new-denials." },
                Some(gate) => div.bad {
                    p { strong { "New denials are above --max-new-denials:" } }
                    ul { @for check in gate.checks.iter().filter(|check| !check.is_within).take(MAX_ROWS) { (beyond(check)) } }
                },
            }
        }
    }

    /// Shows the limits of both sets of rules.
    fn limits(&self) -> Markup {
        let SimulationReport { rules, is_compared, .. } = self.report;
        let limit =
            |tried: &Option<TriedLimit>| tried.as_ref().map_or("–".to_owned(), ToString::to_string);
        let rows = html! {
            @for rule in rules.iter().take(MAX_ROWS) {
                tr {
                    th scope="row" { (shown(&rule.rule)) }
                    td { (limit(&rule.candidate)) }
                    @if *is_compared {
                        td { (limit(&rule.in_force)) }
                        td { @if rule.candidate == rule.in_force { "same" } @else { strong { "changed" } } }
                    }
                }
            }
        };
        let columns: &[&str] = if *is_compared {
            &["Rule", "Tried", "In force (--against)", "Difference"]
        } else {
            &["Rule", "Tried"]
        };
        table("limits", columns, &rows, rules.len())
    }

    /// Shows the counts of each rule, and of all requests.
    fn rules(&self) -> Markup {
        let SimulationReport { rules, all, is_compared, .. } = self.report;
        let cells = |counts: &CountsReport| {
            html! {
                td { (number(counts.requests)) }
                td { (number(counts.requests - counts.refused)) }
                td { (number(counts.refused)) }
                td.share { (share_text(counts.refused, counts.requests)) }
                @if *is_compared {
                    td { (number(counts.refused_before)) }
                    td { (number(counts.allowed_to_refused)) }
                    td { (number(counts.refused_to_allowed)) }
                }
                @if all.shadow_denied > 0 { td { (number(counts.shadow_denied)) } }
            }
        };
        let rows = html! {
            @for rule in rules.iter().take(MAX_ROWS) {
                tr {
                    th scope="row" { (shown(&rule.labelled(&rule.rule))) }
                    (cells(&rule.counts))
                    td { (number(rule.keys)) } td { (number(rule.keys_refused)) }
                }
            }
            tr { th scope="row" { "All requests" } (cells(all)) td {} td {} }
        };
        let mut columns = vec!["Rule", "Requests", "Allowed", "Refused", "Share"];
        if *is_compared {
            columns.extend(["Refused before", "Newly refused", "No longer refused"]);
        }
        if all.shadow_denied > 0 {
            columns.push("Denied in shadow");
        }
        columns.extend(["Ids", "Ids refused"]);
        table("requests by rule", &columns, &rows, rules.len())
    }

    /// Shows requests and refusals, each with an axis, so that a few refusals are seen beside many
    /// requests.
    fn over_time(&self) -> Markup {
        let SimulationReport { over_time, is_compared, all, .. } = self.report;
        let bucket = over_time.bucket.as_micros() / 1_000_000;
        let from = over_time.from.as_micros() / 1_000_000;
        let until = from + bucket * over_time.buckets.len() as u64;
        let mut columns = vec!["From", "Requests", "Refused"];
        let mut series = "1 policy, 2 refused right".to_owned();
        if *is_compared {
            columns.push("Refused before");
            series += ", 3 near right";
        }
        if all.shadow_denied > 0 {
            columns.push("Denied in shadow");
            series += if *is_compared { ", 4 shadow right" } else { ", 3 shadow right" };
        }
        let rows = html! {
            @for (at, counts) in (from..).step_by(usize::try_from(bucket).unwrap_or(1)).zip(&over_time.buckets) {
                tr data-at=(at) data-seconds=(bucket) {
                    th scope="row" { (time_text(Timestamp::from_micros(at * 1_000_000))) }
                    td { (number(counts.requests)) } td { (number(counts.refused)) }
                    @if *is_compared { td { (number(counts.refused_before)) } }
                    @if all.shadow_denied > 0 { td { (number(counts.shadow_denied)) } }
                }
            }
        };
        html! {
            figure.chart data-chart="lines" data-series=(series) data-range={ (from) " " (until) } data-zone="UTC" {
                figcaption {
                    span.title { "Requests (left axis) and refusals (right axis)" }
                    ", per " (length_text(over_time.bucket))
                }
                details { summary { "Table" } (table("requests over time", &columns, &rows, 0)) }
            }
        }
    }

    fn hardest_hit(&self) -> Markup {
        let rows = html! {
            @for key in &self.report.hardest_hit {
                tr {
                    th scope="row" { (shown(&key.id)) } td { (shown(&key.rule)) }
                    td { (number(key.requests)) } td { (number(key.refused)) }
                    @if self.report.is_compared { td { (number(key.allowed_to_refused)) } }
                }
            }
        };
        let columns = ["Id", "Rule", "Requests", "Refused", "Newly refused"];
        let shown = if self.report.is_compared { 5 } else { 4 };
        table("ids refused most often", &columns[..shown], &rows, 0)
    }
}

/// Shows a table, and how many of its rows were left out.
fn table(name: &str, columns: &[&str], rows: &Markup, all: usize) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Table of " (name) } {
            table {
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody { (rows) }
            }
        }
        @if all > MAX_ROWS {
            p { "The first " (MAX_ROWS) " of " (count_text(all as u64)) " rules are shown: --json has all." }
        }
    }
}

fn beyond(check: &GateCheck) -> Markup {
    let GateCheck { rule, matched, new_denials, max_percent, .. } = check;
    html! {
        li {
            @match rule { Some(rule) => { "rule " (shown(rule)) }, None => "all rules" }
            ": " (number(*new_denials)) " of " (number(*matched)) " requests ("
            (share_text(*new_denials, *matched)) "), at most " (max_percent)
        }
    }
}

fn number(count: u64) -> Markup {
    html! { data value=(count) { (count_text(count)) } }
}

/// Returns a text from elsewhere, with escape sequences for characters that nobody sees.
fn shown(text: &str) -> String {
    text.split_inclusive(['"', '\'']).fold(String::new(), |shown, piece| {
        let plain = piece.trim_end_matches(['"', '\'']);
        format!("{shown}{}{}", plain.escape_debug(), &piece[plain.len()..])
    })
}
