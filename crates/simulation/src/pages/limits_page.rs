//! The page of the limits that were found.

use super::{first_rows, note_list};
use crate::chart::{
    ChartTable, CurveChart, CurveLine, CurveMark, Page, Stat, Tone, count_text, length_text,
    share_text, shortened, utc_text,
};
use crate::limits::{
    CurvePoint, FoundLimit, LimitCurve, LimitReport, RefusalMeasure, RuleLimits, SmallestLimit,
};
use crate::simulation::ReportNote;

/// Curves that are drawn.
const MAX_CURVES: usize = 36;
/// Most characters of the name of a rule.
const NAME_LENGTH: usize = 60;

/// What the page of limits shows.
#[derive(Clone, Copy, Debug)]
pub struct LimitsPage<'a> {
    /// The limits.
    pub report: &'a LimitReport,
    /// What the report says of itself.
    pub notes: &'a [ReportNote],
}

impl LimitsPage<'_> {
    /// Returns the page.
    pub fn html(&self) -> String {
        let report = self.report;
        let mut rules: Vec<&RuleLimits> = report.rules.iter().collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.requests));
        let mut body = self.stats();
        body += &Page::section("Limits", &self.table(&rules));
        if !self.notes.is_empty() {
            body += &Page::section("What this report says of itself", &note_list(self.notes));
        }
        body += &Page::section("What a limit refuses", &charts(&rules));
        let (from, to) = (utc_text(report.from), utc_text(report.to));
        let subtitle = if report.requests == 0 {
            "No request was read.".to_owned()
        } else {
            format!("From recorded traffic, {from} until {to} (UTC)")
        };
        let title = "Limits that refuse few";
        let footer = "Made by rlaas plan. All times are in UTC.".to_owned();
        Page { title, subtitle, body, footer }.html()
    }

    fn stats(&self) -> String {
        let LimitReport { requests, unmatched, from, to, ref rules, .. } = *self.report;
        let ids: u64 = rules.iter().map(|rule| rule.ids).sum();
        let stat = |name: &str, value: String, remark: &str| Stat {
            name: name.to_owned(),
            value,
            remark: remark.to_owned(),
        };
        Page::stats(&[
            stat("Requests", count_text(requests), "were read"),
            stat("Not matched", count_text(unmatched), "by any of the rules"),
            stat("Rules", count_text(rules.len() as u64), "matched"),
            stat("Ids", count_text(ids), "of all rules"),
            stat("Time", length_text(to.since(from)), "from first to last request"),
        ])
    }

    fn table(&self, rules: &[&RuleLimits]) -> String {
        let sought = self.report.rules.iter().flat_map(|rule| &rule.curves).next();
        let sought: &[SmallestLimit] = sought.map_or(&[], |curve| &curve.limits);
        let names: Vec<String> = sought.iter().map(sought_text).collect();
        let mut head = vec!["rule", "requests", "ids", "algorithm", "window"];
        head.extend(names.iter().map(String::as_str));
        let row = |rule: &RuleLimits, curve: &LimitCurve| {
            let mut row = vec![shortened(&rule.rule, NAME_LENGTH)];
            row.extend([rule.requests, rule.ids].map(count_text));
            row.push(curve.algorithm.name().to_owned());
            row.push(length_text(curve.window));
            row.extend(curve.limits.iter().map(|limit| limit.found.to_string()));
            row
        };
        let rows = rules.iter().flat_map(|rule| rule.curves.iter().map(move |it| row(rule, it)));
        let table = first_rows(&head, rows.collect(), "rows", |_| vec!["see --json".to_owned()]);
        format!("<div class=\"whole\">{}</div>\n", table.html())
    }
}

/// Returns the name of a column: what is refused at most.
fn sought_text(limit: &SmallestLimit) -> String {
    let of = match limit.of {
        RefusalMeasure::Requests => "requests",
        RefusalMeasure::Ids => "ids",
    };
    format!("≤ {} of {of}", limit.share)
}

fn charts(rules: &[&RuleLimits]) -> String {
    let curves = || rules.iter().flat_map(|rule| rule.curves.iter().map(move |it| (rule, it)));
    let figures: Vec<String> =
        curves().take(MAX_CURVES).map(|(rule, curve)| chart(rule, curve)).collect();
    let count = curves().count();
    let mut notes = vec![
        "Both axes are logarithmic, with a share of 0 at the bottom. A ring is a limit of the \
         table. Between two points a curve is drawn straight, although it may not be; the table \
         does not depend on that."
            .to_owned(),
    ];
    if count > MAX_CURVES {
        notes.push(format!(
            "Of {} curves, the {MAX_CURVES} of the rules with the most requests are drawn.",
            count_text(count as u64)
        ));
    }
    Page::notes(&notes) + &Page::charts(&figures)
}

fn chart(rule: &RuleLimits, curve: &LimitCurve) -> String {
    let window = length_text(curve.window);
    let (name, algorithm) = (shortened(&rule.rule, NAME_LENGTH), curve.algorithm.name());
    let title = format!("{name}, {algorithm}, {window}");
    let line = |name, tone, of, total: u64| CurveLine {
        name,
        tone,
        points: curve.points.iter().map(|point| (point.limit, share(point, of, total))).collect(),
    };
    let marks = curve.limits.iter().filter_map(|limit| mark(rule, curve, limit));
    let number = format!("limit: units per {window}");
    CurveChart {
        title: &title,
        number: &number,
        share: "refused",
        lines: vec![
            line("requests", Tone::First, RefusalMeasure::Requests, rule.requests),
            line("ids refused at least once", Tone::Second, RefusalMeasure::Ids, rule.ids),
        ],
        marks: marks.collect(),
        table: table_of(rule, curve),
    }
    .figure()
}

#[expect(clippy::cast_precision_loss, reason = "a position in a picture")]
fn share(point: &CurvePoint, of: RefusalMeasure, total: u64) -> f64 {
    let refused = match of {
        RefusalMeasure::Requests => point.requests,
        RefusalMeasure::Ids => point.ids,
    };
    refused as f64 / total.max(1) as f64
}

/// Returns the mark of a limit that was found.
fn mark(rule: &RuleLimits, curve: &LimitCurve, limit: &SmallestLimit) -> Option<CurveMark> {
    let number = match limit.found {
        FoundLimit::Exactly { limit } => limit,
        FoundLimit::Between { at_most, .. } => at_most,
        FoundLimit::Unreachable => return None,
    };
    let point = curve.points.iter().find(|point| point.limit == number)?;
    let (tone, total) = match limit.of {
        RefusalMeasure::Requests => (Tone::First, rule.requests),
        RefusalMeasure::Ids => (Tone::Second, rule.ids),
    };
    let label = format!("{}: {}", sought_text(limit), limit.found);
    Some(CurveMark { number, share: share(point, limit.of, total), tone, label })
}

fn table_of(rule: &RuleLimits, curve: &LimitCurve) -> ChartTable {
    let head = ["limit", "requests refused", "share", "ids refused", "share"];
    let row = |point: &CurvePoint| {
        vec![
            count_text(point.limit),
            count_text(point.requests),
            share_text(point.requests, rule.requests),
            count_text(point.ids),
            share_text(point.ids, rule.ids),
        ]
    };
    ChartTable {
        head: head.map(str::to_owned).to_vec(),
        rows: curve.points.iter().map(row).collect(),
    }
}
