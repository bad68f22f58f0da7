//! The page of a simulation.

use rlaas_core::clock::Micros;

use super::{first_rows, note_list};
use crate::chart::{
    BarChart, BarRow, ChartSeries, DurationBar, HistogramChart, Page, SeriesForm, Stacking, Stat,
    TimeChart, Tone, count_text, escaped, length_text, share_text, shortened, utc_text,
};
use crate::simulation::{
    CountsReport, GateCheck, GateResult, HitKey, ReportNote, RuleReport, SimulationReport,
    TimeSeries,
};

/// Rules that are shown with charts.
const RULES_WITH_CHARTS: usize = 12;
/// Most characters of the name of a rule in headings.
const NAME_LENGTH: usize = 120;
/// Checks of the gate that are listed.
const LISTED_CHECKS: usize = 10;

/// What the page of a simulation shows.
#[derive(Clone, Copy, Debug)]
pub struct SimulationPage<'a> {
    /// What the simulation counted.
    pub report: &'a SimulationReport,
    /// What the gate found, if there is one.
    pub gate: Option<&'a GateResult>,
    /// What the report says of itself.
    pub notes: &'a [ReportNote],
}

impl SimulationPage<'_> {
    /// Returns the page.
    pub fn html(&self) -> String {
        let report = self.report;
        let mut rules: Vec<&RuleReport> = report.rules.iter().collect();
        rules.sort_by_key(|rule| {
            let counts = &rule.counts;
            let changed = counts.allowed_to_refused + counts.refused_to_allowed;
            std::cmp::Reverse((counts.refused, changed, counts.refused_before, counts.requests))
        });
        let mut body = self.verdict() + &self.stats();
        let notes = note_list(self.notes);
        if !notes.is_empty() {
            body += &Page::section("What this report says of itself", &notes);
        }
        body += &Page::section("All requests", &self.charts_of_all());
        if !rules.is_empty() {
            body += &Page::section("Rules", &self.table(&rules));
        }
        for rule in rules.iter().take(RULES_WITH_CHARTS) {
            let heading = format!("Rule {}", shortened(&rule.rule, NAME_LENGTH));
            body += &Page::section(&heading, &self.rule(rule));
        }
        let subtitle = report.span.map_or_else(
            || "No request was decided.".to_owned(),
            |span| {
                let (from, until) = (utc_text(span.from), utc_text(span.until));
                format!("Recorded traffic from {from} until {until} (UTC)")
            },
        );
        let title = "Simulation of rate limits";
        let footer = "Made by rlaas simulate. All times are in UTC.".to_owned();
        Page { title, subtitle, body, footer }.html()
    }

    /// Returns the result in one sentence, or what the gate found.
    fn verdict(&self) -> String {
        let CountsReport { requests, refused, allowed_to_refused, refused_to_allowed, .. } =
            self.report.all;
        let share = share_text(refused, requests);
        let (refused, requests) = (count_text(refused), count_text(requests));
        let mut lines = vec![format!("{refused} of {requests} requests are refused ({share}).")];
        if self.report.is_compared {
            let share = share_text(allowed_to_refused, self.report.all.requests);
            lines.push(format!(
                "Compared with the rules in force, {} are newly refused ({share}) and {} are no \
                 longer refused.",
                count_text(allowed_to_refused),
                count_text(refused_to_allowed)
            ));
        }
        let class = match self.gate {
            None => "verdict",
            Some(gate) if gate.is_within => {
                lines.push("New denials are within --max-new-denials.".to_owned());
                "verdict good"
            }
            Some(gate) => {
                let beyond = || gate.checks.iter().filter(|check| !check.is_within);
                lines.extend(beyond().take(LISTED_CHECKS).map(beyond_text));
                let others = beyond().count().saturating_sub(LISTED_CHECKS);
                if others > 0 {
                    lines.push(format!("{} more rules are above it.", count_text(others as u64)));
                }
                "verdict bad"
            }
        };
        let lines: Vec<String> =
            lines.iter().map(|line| format!("<p>{}</p>", escaped(line))).collect();
        format!("<div class=\"{class}\">{}</div>\n", lines.concat())
    }

    fn stats(&self) -> String {
        let report = self.report;
        let all = &report.all;
        let stat = |name: &str, value: String, remark: String| Stat {
            name: name.to_owned(),
            value,
            remark,
        };
        let of_all = |count: u64| share_text(count, all.requests);
        let matched = format!("{} matched a rule", count_text(report.matched));
        let mut stats = vec![
            stat("Requests", count_text(all.requests), matched),
            stat("Refused", count_text(all.refused), of_all(all.refused)),
        ];
        if report.is_compared {
            let before = all.refused_before;
            stats.push(stat("Refused before", count_text(before), of_all(before)));
            let new = all.allowed_to_refused;
            stats.push(stat("Newly refused", count_text(new), of_all(new)));
            let gone = all.refused_to_allowed;
            stats.push(stat("No longer refused", count_text(gone), of_all(gone)));
        }
        let wait = all.longest_wait.map_or_else(|| "none".to_owned(), length_text);
        stats.push(stat("Longest wait", wait, "of a refused request".to_owned()));
        let keys: u64 = report.rules.iter().map(|rule| rule.keys).sum();
        let keys_refused: u64 = report.rules.iter().map(|rule| rule.keys_refused).sum();
        let of = format!("of {}, all rules", count_text(keys));
        stats.push(stat("Ids refused", count_text(keys_refused), of));
        if let Some(span) = report.span {
            stats.push(stat("Time", length_text(span.length), utc_text(span.from)));
        }
        Page::stats(&stats)
    }

    fn charts_of_all(&self) -> String {
        let report = self.report;
        let mut charts = self.over_time(&report.over_time.all);
        charts.push(waits(&report.all));
        charts.push(self.hardest_hit(&report.hardest_hit, true));
        Page::charts(&charts)
    }

    /// Returns requests and refusals over time. The refusals are shown again alone, because they are
    /// few of the requests.
    fn over_time(&self, series: &TimeSeries) -> Vec<String> {
        let refused = |name| ChartSeries {
            name,
            tone: Tone::First,
            form: SeriesForm::Line,
            counts: &series.refused,
        };
        let before = ChartSeries {
            name: "refused before",
            tone: Tone::Second,
            form: SeriesForm::Line,
            counts: &series.refused_before,
        };
        let requests = ChartSeries {
            name: "requests",
            tone: Tone::Neutral,
            form: SeriesForm::Area,
            counts: &series.requests,
        };
        let shadow = ChartSeries {
            name: "denied by shadow rules, not refused",
            tone: Tone::Third,
            form: SeriesForm::Line,
            counts: &series.shadow_denied,
        };
        let mut refusals = Vec::new();
        if self.report.is_compared {
            refusals.push(before);
        }
        refusals.push(refused(if self.report.is_compared { "refused after" } else { "refused" }));
        if series.shadow_denied.iter().any(|count| *count > 0) {
            refusals.push(shadow);
        }
        let chart = |title, unit, series| TimeChart {
            title,
            unit,
            from: self.report.over_time.from,
            bucket: self.report.over_time.bucket,
            series,
            stacking: Stacking::None,
        };
        let in_front = [requests].into_iter().chain(refusals.iter().cloned()).collect();
        vec![
            chart("Requests over time", "requests", in_front).figure(),
            chart("Refusals over time", "refusals", refusals).figure(),
        ]
    }

    fn hardest_hit(&self, keys: &[HitKey], is_rule_named: bool) -> String {
        let is_compared = self.report.is_compared;
        let row = |key: &HitKey| BarRow {
            name: if is_rule_named {
                format!("{} · {}", key.id, key.rule)
            } else {
                key.id.clone()
            },
            count: key.refused,
            other: is_compared.then_some(key.allowed_to_refused),
            remark: format!("{} requests", count_text(key.requests)),
        };
        BarChart {
            title: "Refused most often",
            unit: "refusals",
            names: ("refused", is_compared.then_some("newly refused")),
            rows: keys.iter().map(row).collect(),
            empty: "nobody is refused",
        }
        .figure()
    }

    fn table(&self, rules: &[&RuleReport]) -> String {
        let is_compared = self.report.is_compared;
        let mut head = vec!["rule", "algorithm", "requests", "refused", "share"];
        if is_compared {
            head.extend(["refused before", "newly refused", "no longer refused"]);
        }
        head.extend(["shadow denied", "ids", "ids refused", "longest wait"]);
        let rows = rules.iter().map(|rule| self.row(rule)).collect();
        let table = first_rows(&head, rows, "rules", |from| {
            let others = || rules[from..].iter().map(|rule| &rule.counts);
            let sum = |of: fn(&CountsReport) -> u64| others().map(of).sum::<u64>();
            let (requests, refused) = (sum(|counts| counts.requests), sum(|counts| counts.refused));
            let mut row = vec![String::new(), count_text(requests), count_text(refused)];
            row.push(share_text(refused, requests));
            if is_compared {
                row.push(count_text(sum(|counts| counts.refused_before)));
                row.push(count_text(sum(|counts| counts.allowed_to_refused)));
                row.push(count_text(sum(|counts| counts.refused_to_allowed)));
            }
            row.push(count_text(sum(|counts| counts.shadow_denied)));
            row.push(count_text(rules[from..].iter().map(|rule| rule.keys).sum()));
            row.push(count_text(rules[from..].iter().map(|rule| rule.keys_refused).sum()));
            row.push(wait_text(others().filter_map(|counts| counts.longest_wait).max()));
            row
        });
        let mut notes = Vec::new();
        if rules.len() > RULES_WITH_CHARTS {
            notes.push(format!(
                "The {RULES_WITH_CHARTS} rules with the most refusals have charts below; there are \
                 {} rules.",
                count_text(rules.len() as u64)
            ));
        }
        format!("{}<div class=\"whole\">{}</div>\n", Page::notes(&notes), table.html())
    }

    fn row(&self, rule: &RuleReport) -> Vec<String> {
        let counts = &rule.counts;
        let mut row = vec![rule_text(rule), rule.algorithm.name().to_owned()];
        row.extend([counts.requests, counts.refused].map(count_text));
        row.push(share_text(counts.refused, counts.requests));
        if self.report.is_compared {
            let CountsReport { refused_before, allowed_to_refused, refused_to_allowed, .. } =
                *counts;
            row.extend([refused_before, allowed_to_refused, refused_to_allowed].map(count_text));
        }
        row.extend([counts.shadow_denied, rule.keys, rule.keys_refused].map(count_text));
        row.push(wait_text(counts.longest_wait));
        row
    }

    fn rule(&self, rule: &RuleReport) -> String {
        let counts = &rule.counts;
        let mut notes = vec![format!(
            "{} requests of {} ids; {} refused ({}), {} ids at least once.",
            count_text(counts.requests),
            count_text(rule.keys),
            count_text(counts.refused),
            share_text(counts.refused, counts.requests),
            count_text(rule.keys_refused)
        )];
        notes.push(format!(
            "{} units were asked for, {} granted.",
            count_text(rule.units.asked),
            count_text(rule.units.granted)
        ));
        if counts.never_pass > 0 {
            notes.push(format!(
                "{} refused requests can never pass: their cost is above the limit, or the limit \
                 is 0.",
                count_text(counts.never_pass)
            ));
        }
        if counts.requests == 0 && counts.refused_before == 0 {
            return Page::notes(&notes);
        }
        let mut charts = self.over_time(&rule.over_time);
        charts.push(waits(counts));
        charts.push(self.hardest_hit(&rule.hardest_hit, false));
        Page::notes(&notes) + &Page::charts(&charts)
    }
}

fn beyond_text(check: &GateCheck) -> String {
    let of = check.rule.as_ref().map_or_else(
        || "in all".to_owned(),
        |rule| format!("for rule {}", shortened(rule, NAME_LENGTH)),
    );
    format!(
        "Above --max-new-denials {of}: {} of {} requests ({}), at most {}.",
        count_text(check.new_denials),
        count_text(check.matched),
        share_text(check.new_denials, check.matched),
        check.max_percent
    )
}

/// Returns the name of a rule, with what is special about it.
fn rule_text(rule: &RuleReport) -> String {
    rule.labelled(&shortened(&rule.rule, NAME_LENGTH))
}

fn wait_text(wait: Option<Micros>) -> String {
    wait.map_or_else(|| "–".to_owned(), length_text)
}

fn waits(counts: &CountsReport) -> String {
    let mut above = Micros::ZERO;
    let bars = counts.waits.iter().map(|class| {
        let longest = counts.longest_wait.unwrap_or_default();
        let up_to = class.up_to.unwrap_or(longest.max(above));
        let bar = DurationBar { above, up_to, count: class.refused };
        above = up_to;
        bar
    });
    HistogramChart {
        title: "Waits of refused requests",
        unit: "refusals",
        length: "time until the request would pass",
        bars: bars.collect(),
        empty: "no request waits",
    }
    .figure()
}
