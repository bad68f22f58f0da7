//! Pages of reports: complete, small, and safe whatever the traffic has.

use std::path::Path;

use rlaas_core::algorithm::{Algorithm, Limit};
use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::rules::{Mode, Rule, RuleSet};
use rlaas_simulation::simulation::{GateResult, Simulation, SimulationReport, SimulationSettings};
use rlaas_simulation::traffic::TrafficCounts;
use rlaas_simulation::{RecordedFields, RecordedRequest, SimulationPage, TimedRequest};

const HOSTILE: &str = "<script>alert('1')</script>\u{202e}gpj\0\u{1b}[2J\"&amp;";

/// Requests of users of which few are busy, for ten minutes, with a crowd in the fifth.
fn requests_of(count: u64, user: impl Fn(u64) -> String) -> Vec<TimedRequest> {
    let mut timed = Vec::new();
    let mut random: u64 = 7;
    for number in 0..count {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = random >> 33;
        // A rank below 300, the first ones more often.
        let rank = (part % 300) * (part / 300 % 300) * (part / 90_000 % 300) / 90_000;
        let in_crowd = number % 3 == 0;
        let second = if in_crowd { 250 + number * 60 / count } else { number * 600 / count };
        let at = Timestamp::from_millis(1_763_900_000_000 + second * 1_000 + part % 1_000);
        let fields = RecordedFields {
            user_id: user(rank).into(),
            cost: if rank % 5 == 4 { 3 } else { 1 },
            ..RecordedFields::default()
        };
        let request = RecordedRequest::Fields(fields);
        timed.push(TimedRequest { at, request, was_refused: false });
    }
    timed.sort_by_key(|one| one.at);
    timed
}

fn rule(name: &str, limit: u64, mode: Mode) -> Rule {
    let limit = Limit::new(limit, Micros::from_secs(10)).expect("a limit");
    Rule { name: name.into(), mode, ..Rule::new_default(Algorithm::SlidingWindowLog, limit) }
}

fn rules(names: &[&str], limit: u64) -> RuleSet {
    let mode = |at: usize| if at == 1 { Mode::Shadow } else { Mode::Enforced };
    let rules = names.iter().enumerate();
    let rules = rules.map(|(at, name)| rule(name, limit + at as u64 * 3, mode(at)));
    RuleSet::new(rule(Rule::DEFAULT, limit, Mode::Enforced), rules.collect())
}

fn simulated(
    requests: &[TimedRequest],
    candidate: RuleSet,
    against: Option<RuleSet>,
) -> SimulationReport {
    let settings = SimulationSettings { against, ..SimulationSettings::new(candidate) };
    let mut simulation = Simulation::new(settings);
    for timed in requests {
        simulation.decide(timed);
    }
    simulation.finish()
}

fn simulation_html(report: &SimulationReport, gate: Option<&str>) -> String {
    let gate = gate.map(|share| GateResult::new(report, share.parse().expect("a share")));
    let notes = report.notes(&TrafficCounts::default());
    SimulationPage { report, gate: gate.as_ref(), notes: &notes }.html()
}

/// Writes a page to the folder of the build, so that it can be looked at.
fn keep(name: &str, html: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(folder.join(name), html).expect("a file");
}

/// Checks that the page loads nothing, that its only scripts and styles are its own, and that it is well
/// formed. Returns what is shown.
fn check(html: &str) -> String {
    let (head, rest) = html.split_once("</style>").expect("styles");
    let (shown, script) = rest.split_once("<script type=\"module\">").expect("the script");
    let (script, end) = script.split_once("</script>").expect("its end");
    assert_eq!((script, end), (rlaas_simulation::chart::SCRIPT, "</body></html>"));
    assert!(head.contains("default-src 'none'"), "{head}");
    for loading in ["<script", "<style", "src=", "url(", "@import", "://", "<iframe", "<img"] {
        assert!(!shown.contains(loading), "{loading}");
    }
    assert!(!shown.contains(|char: char| char.is_control()) && !shown.contains('\u{202e}'));
    for tag in ["figure", "table", "details", "tr", "th", "td", "ul", "li", "p", "div", "data"] {
        let opened =
            shown.matches(&format!("<{tag}>")).count() + shown.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, shown.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    shown.to_owned()
}

#[test]
fn a_comparison_shows_the_limits_and_before_and_after() {
    let requests = requests_of(20_000, |rank| format!("user-{rank}"));
    let names = ["checkout", "search"];
    let report = simulated(&requests, rules(&names, 12), Some(rules(&names, 20)));
    let html = simulation_html(&report, Some("0.1%"));
    keep("simulation.html", &html);
    let shown = check(&html);
    for expected in [
        "12 per 10s, sliding-window-log",
        "20 per 10s, sliding-window-log",
        "15 per 10s, sliding-window-log, shadow",
        "search (shadow)",
        "data-series=\"1 policy, 2 refused right, 3 near right\"",
        "Newly refused",
        "above --max-new-denials",
        "open loop",
        "user-0",
    ] {
        assert!(shown.contains(expected), "{expected}");
    }
    let buckets = report.over_time.buckets.len();
    assert_eq!(shown.matches("<tr data-at=").count(), buckets);
    let within = simulation_html(&report, Some("100%"));
    assert!(within.contains("New denials are within"), "the gate");
}

#[test]
fn few_and_no_requests_are_pages_too() {
    let one = requests_of(1, |_| "alice".to_owned());
    let html = simulation_html(&simulated(&one, rules(&[], 12), None), None);
    let shown = check(&html);
    assert!(!shown.contains("Refused most often") && !shown.contains("before"), "{shown}");
    let html = simulation_html(&simulated(&[], rules(&["r"], 12), None), None);
    assert!(check(&html).contains("No request was decided"));
}

#[test]
fn hostile_names_are_shown_as_they_are_and_do_nothing() {
    let user = |rank: u64| {
        format!("{HOSTILE}{}", if rank.is_multiple_of(5) { "w".repeat(600) } else { String::new() })
    };
    let requests = requests_of(5_000, user);
    let long = "long-name-".repeat(30);
    let report = simulated(&requests, rules(&[HOSTILE, &long], 2), Some(rules(&[HOSTILE], 3)));
    let html = simulation_html(&report, Some("0%"));
    keep("simulation-hostile.html", &html);
    let shown = check(&html);
    assert!(shown.contains("&lt;script&gt;") && shown.contains(r"\u{202e}"), "{shown}");
}

#[test]
fn ten_thousand_rules_are_a_page_of_a_sane_size() {
    let requests = requests_of(5_000, |rank| format!("user-{rank}"));
    let names = ["checkout"];
    let mut report = simulated(&requests, rules(&names, 2), Some(rules(&names, 5)));
    let rule = report.rule("checkout").expect("a rule").clone();
    let renamed = |number| {
        let mut renamed = rule.clone();
        renamed.rule = format!("rule-{number}");
        renamed
    };
    report.rules = (0..10_000).map(renamed).collect();
    let html = simulation_html(&report, Some("0%"));
    let shown = check(&html);
    assert!(shown.contains("The first 200 of 10,000 rules"), "{shown}");
    assert!(html.len() < 500_000, "{} bytes", html.len());
}
