//! Rules and keys in words.

use maud::{Markup, html};
use rlaas_limiter::explain::Mismatch;

use super::fields::{Link, UNNAMED};
use super::text::{exact_span_text, foreign, grouped};
use crate::algorithm::{Algorithm, Limit};
use crate::clock::Micros;
use crate::control::KeyGrant;
use crate::plan::KeyPart;
use crate::rules::{Grant, Mode, Unmatched};

/// Returns the units that a rule grants.
pub(super) fn grant(grant: Grant, algorithm: Algorithm) -> String {
    match grant {
        Grant::Limited(limit) => self::limit(&limit, algorithm),
        Grant::Banned => "none: every request is refused".to_owned(),
        Grant::Unlimited => "unlimited".to_owned(),
    }
}

/// Returns a limit, such as `100 per 1 min, at most 20 at once`.
pub(super) fn limit(limit: &Limit, algorithm: Algorithm) -> String {
    let has_burst = algorithm.has_burst() && limit.burst() != limit.units();
    let burst = has_burst.then(|| format!(", at most {} at once", grouped(limit.burst())));
    let debt = limit.max_debt().map(|debt| match algorithm.max_debt(limit) {
        most if debt == most => ", with debt".to_owned(),
        _ => format!(", at most {} of debt", grouped(debt)),
    });
    let (units, window) = (grouped(limit.units()), exact_span_text(limit.window()));
    format!("{units} per {window}{}{}", burst.unwrap_or_default(), debt.unwrap_or_default())
}

/// Returns what an override grants in a window.
pub(super) fn key_grant(grant: KeyGrant, of: Micros) -> String {
    match grant {
        KeyGrant::Limited { units, burst } => {
            let text = format!("{} per {}", grouped(units.into()), exact_span_text(of));
            let at_once = format!(", at most {} at once", grouped(burst.into()));
            if burst == units { text } else { text + &at_once }
        }
        KeyGrant::Unlimited => "unlimited".to_owned(),
        KeyGrant::Banned => "banned".to_owned(),
    }
}

/// Returns the name of an algorithm.
pub(super) fn algorithm(algorithm: Algorithm) -> String {
    algorithm.name().replace('-', " ")
}

/// Says why the default rule does not apply to a request.
pub(super) const fn not_default(policy: Unmatched) -> &'static str {
    match policy {
        Unmatched::DefaultRule => "another rule is enforced for this request",
        Unmatched::Deny => {
            "it is not used, since requests without a rule are refused (unmatched: deny)"
        }
        Unmatched::Allow => "it is not used, since requests without a rule pass (unmatched: allow)",
    }
}

/// Returns the requests to which the default rule applies.
pub(super) const fn default_requests(policy: Unmatched) -> &'static str {
    match policy {
        Unmatched::DefaultRule => "requests that no other rule is enforced for",
        Unmatched::Deny => "no request: those without a rule are refused (unmatched: deny)",
        Unmatched::Allow => "no request: those without a rule pass (unmatched: allow)",
    }
}

/// Returns a mode with its meaning.
pub(super) const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforced => "enforced",
        Mode::Shadow => "shadow: refuses nothing",
        Mode::Quota => "quota: refuses if all quotas of a request do",
        Mode::ShadowQuota => "quota in shadow: refuses nothing",
        Mode::Off => "off: ignored",
    }
}

/// Shows the parts of a key with their values.
pub(super) fn key_parts(parts: &[KeyPart]) -> Markup {
    html! {
        @if parts.is_empty() { span.muted { "all requests" } }
        @for (position, part) in parts.iter().enumerate() {
            @if position > 0 { ", " }
            (foreign(&part.name)) " = "
            @match &part.value {
                Some(value) => (foreign(value)),
                None => span.muted { "none" }
            }
        }
    }
}

/// Says which part of a request does not fit a rule.
pub(super) fn mismatch(mismatch: &Mismatch) -> Markup {
    html! {
        (foreign(&mismatch.part)) " must be "
        @for (position, wanted) in mismatch.wanted.iter().enumerate() {
            @if position > 0 { " or " }
            (foreign(wanted))
        }
        @match &mismatch.got {
            Some(got) => { ", not " (foreign(got)) },
            None => ", and is not given"
        }
    }
}

/// Shows the name of a rule as a link to its page. The project is empty for rules of files.
pub(super) fn rule_link(project: &str, rule: &str) -> Markup {
    let project = if project.is_empty() { UNNAMED } else { project };
    html! { a href=(Link::to("rule").with("project", project).with("name", rule)) { (foreign(rule)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_say_what_they_grant() {
        let limit = Limit::new(1_000, Micros::from_secs(60)).expect("a limit");
        let burst = limit.with_burst(20).expect("a burst");
        assert_eq!(self::limit(&limit, Algorithm::FixedWindow), "1,000 per 1 min");
        assert_eq!(
            grant(Grant::Limited(burst), Algorithm::TokenBucket),
            "1,000 per 1 min, at most 20 at once"
        );
        let odd = Limit::new(5, Micros::from_secs(5_415)).expect("a limit");
        assert_eq!(self::limit(&odd, Algorithm::FixedWindow), "5 per 1 h 30 min 15 s");
        let hour = Micros::from_secs(3_600);
        assert_eq!(key_grant(KeyGrant::Limited { units: 5, burst: 5 }, hour), "5 per 1 h");
    }
}
