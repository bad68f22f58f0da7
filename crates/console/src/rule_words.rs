//! Rules and keys in words.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{KeyPart, KeyRef, Mismatch};
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{
    Algorithm, CalendarWindow, Grant, Rule, RuleMode, UnmatchedPolicy,
};

use super::calls::field_of;
use super::fields::Link;
use super::text::{exact_span_text, foreign, grouped, joined};

/// All keys, in parts per million.
pub(super) const EVERY_KEY: u32 = 1_000_000;

/// Returns what a rule grants.
pub(super) fn rule_grant(rule: &Rule) -> String {
    let debt = rule.max_debt.map(|debt| format!(", at most {} of debt", units(debt)));
    grant(&rule.grant(), rule) + &debt.unwrap_or_default()
}

/// Returns what is granted in a window of a rule, such as `100 per 1 min, burst 20`. Slots have no window.
pub(super) fn grant(grant: &Grant, rule: &Rule) -> String {
    let burst = grant.own_burst().map(|burst| format!(", burst {}", units(burst)));
    match (grant.kind, window(rule)) {
        (Some(Kind::Limit(limit)), Some(window)) => {
            format!("{} per {window}{}", units(limit), burst.unwrap_or_default())
        }
        (Some(Kind::Limit(limit)), None) => format!("{} at once", units(limit)),
        (Some(Kind::Unlimited(_)), _) => "unlimited".to_owned(),
        (Some(Kind::Banned(_)) | None, _) => "none: every request is refused".to_owned(),
    }
}

/// Returns the window of a rule; `None` for slots.
fn window(rule: &Rule) -> Option<String> {
    let of_calendar = rule.calendar.as_ref().map(CalendarWindow::words);
    let from = rule.window_from().words();
    of_calendar.or_else(|| rule.window.as_ref().map(|window| exact_span_text(window) + from))
}

/// Returns the digits of units, in groups of three.
pub(super) fn units(units: i64) -> String {
    grouped(u64::try_from(units).unwrap_or_default())
}

/// Returns the name of an algorithm.
pub(super) fn algorithm(algorithm: Algorithm) -> String {
    algorithm.as_str_name().to_lowercase().replace('_', " ")
}

/// Says why the default rule does not apply to a request.
pub(super) const fn not_default(policy: UnmatchedPolicy) -> &'static str {
    match policy {
        UnmatchedPolicy::Deny => {
            "it is not used, since requests without a rule are refused (unmatched: deny)"
        }
        UnmatchedPolicy::Allow => {
            "it is not used, since requests without a rule pass (unmatched: allow)"
        }
        UnmatchedPolicy::DefaultRule | UnmatchedPolicy::Unspecified => {
            "another rule is enforced for this request"
        }
    }
}

/// Returns the requests to which the default rule applies.
pub(super) const fn default_requests(policy: UnmatchedPolicy) -> &'static str {
    match policy {
        UnmatchedPolicy::Deny => "no request: those without a rule are refused (unmatched: deny)",
        UnmatchedPolicy::Allow => "no request: those without a rule pass (unmatched: allow)",
        UnmatchedPolicy::DefaultRule | UnmatchedPolicy::Unspecified => {
            "requests that no other rule is enforced for"
        }
    }
}

/// Returns the mode of a rule with its meaning.
pub(super) fn rule_mode(rule: &Rule) -> String {
    let is_quota = rule.descriptor_rule.as_ref().is_some_and(|descriptor| descriptor.quota);
    match (rule.mode(), rule.enforce_ppm) {
        (RuleMode::Enforce, Some(part)) if part < EVERY_KEY => {
            format!("enforced for {} of the keys", share(part))
        }
        (RuleMode::Enforce, _) if is_quota => {
            "quota: refuses if all quotas of a request do".to_owned()
        }
        (RuleMode::Shadow, _) if is_quota => "quota in shadow: refuses nothing".to_owned(),
        (other, _) => mode(other).to_owned(),
    }
}

/// Returns a mode with its meaning.
pub(super) const fn mode(mode: RuleMode) -> &'static str {
    match mode {
        RuleMode::Enforce | RuleMode::Unspecified => "enforced",
        RuleMode::Shadow => "shadow: refuses nothing",
        RuleMode::Off => "off: ignored",
    }
}

/// Says why a rule refuses nothing; nothing of one that is enforced.
pub(super) const fn refuses_nothing(mode: RuleMode) -> Option<&'static str> {
    match mode {
        RuleMode::Enforce | RuleMode::Unspecified => None,
        RuleMode::Shadow => Some("in shadow, refuses nothing"),
        RuleMode::Off => Some("off, refuses nothing"),
    }
}

/// Returns parts per million as a percentage.
pub(super) fn share(millionths: u32) -> String {
    let (whole, part) = (millionths / 10_000, millionths % 10_000);
    let part = format!(".{part:04}");
    format!("{whole}{} %", part.trim_end_matches('0').trim_end_matches('.'))
}

/// Shows the parts of a key with their values.
pub(super) fn key_parts(parts: &[KeyPart]) -> Markup {
    html! {
        @if parts.is_empty() { span.muted { "all requests" } }
        (joined(parts, ", ", |part| html! {
            (foreign(&part.name)) "="
            @match &part.value {
                Some(value) => (foreign(value)),
                None => span.muted { "none" }
            }
        }))
    }
}

/// Shows a key by its parts, or by its id where that is all that is known, as of a long one.
pub(super) fn key_text(key: &KeyRef) -> Markup {
    html! { @if key.parts.is_empty() { (foreign(&key.id)) } @else { (key_parts(&key.parts)) } }
}

/// Says which part of a request does not fit a rule.
pub(super) fn mismatch(mismatch: &Mismatch) -> Markup {
    html! {
        (foreign(&mismatch.part)) " must be " (joined(&mismatch.wanted, " or ", |wanted| foreign(wanted)))
        @match &mismatch.got {
            Some(got) => { ", not " (foreign(got)) },
            None => ", and is not given"
        }
    }
}

/// Shows the project of a rule by its id, which is empty for rules of files.
pub(super) fn project_name(id: &str) -> Markup {
    html! { @if id.is_empty() { span.muted { "none" } } @else { (foreign(id)) } }
}

/// Returns the link to the page of a rule. The project is empty for rules of files.
pub(super) fn rule_page(project: &str, rule: &str) -> Link {
    Link::to("rule").with("project", field_of(project)).with("name", rule)
}

/// Shows the name of a rule as a link to its page. The project is empty for rules of files.
pub(super) fn rule_link(project: &str, rule: &str) -> Markup {
    html! { a href=(rule_page(project, rule)) { (foreign(rule)) } }
}

#[cfg(test)]
mod tests {
    use prost_types::Duration;
    use rlaas_proto::ratelimit::v1::calendar_window;

    use super::*;

    #[test]
    fn rules_say_what_they_grant() {
        let rule = |max_requests, seconds, burst| Rule {
            max_requests,
            window: Some(Duration { seconds, nanos: 0 }),
            burst,
            ..Rule::default()
        };
        assert_eq!(rule_grant(&rule(1_000, 60, 1_000)), "1,000 per 1 min");
        assert_eq!(rule_grant(&rule(1_000, 60, 20)), "1,000 per 1 min, burst 20");
        let unit = calendar_window::Unit::Month.into();
        let calendar = Some(CalendarWindow { unit, anchor: 15, ..CalendarWindow::default() });
        let monthly = Rule { calendar, window: None, ..rule(1_000, 60, 1_000) };
        assert_eq!(rule_grant(&monthly), "1,000 per month from day 15 (UTC)");
        assert_eq!(rule_grant(&rule(5, 5_415, 5)), "5 per 1 h 30 min 15 s");
        assert_eq!(rule_grant(&rule(0, 60, 0)), "none: every request is refused");
        assert_eq!(rule_grant(&rule(i64::MAX, 60, 0)), "unlimited");
        let enforced = RuleMode::Enforce.into();
        let half = Rule { mode: enforced, enforce_ppm: Some(500_000), ..rule(1, 1, 1) };
        assert_eq!(rule_mode(&half), "enforced for 50 % of the keys");
        assert_eq!((&*share(825_000), &*share(1_000_000)), ("82.5 %", "100 %"));
    }
}
