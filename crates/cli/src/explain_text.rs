//! Explanations as texts for people.

use std::fmt::Write;

use rlaas_proto::ratelimit::admin::v1::rule_explanation::Applies;
use rlaas_proto::ratelimit::admin::v1::{
    Descriptor, ExplainDescriptorsRequest, ExplainDescriptorsResponse, ExplainResponse, GrantFrom,
    KeyState, Mismatch, RuleExplanation,
};
use rlaas_proto::ratelimit::v1::check_response::Reason;
use rlaas_proto::ratelimit::v1::{CheckRequest, RuleDecision, RuleMode, WindowFrom, check_result};

use crate::code_name;
use crate::response;
use crate::text;
use crate::text::printable;

/// Follows an explanation by files.
pub const WITHOUT_SERVER: &str =
    "Explained by the files alone, for keys of which nothing has been taken.\n";

/// Explains an answer of `Check`.
pub(crate) fn of_check(explained: &ExplainResponse, request: &CheckRequest) -> String {
    check_lines(explained, request) + &end(explained.revision)
}

/// Explains an answer to Envoy.
pub(crate) fn of_descriptors(
    explained: &ExplainDescriptorsResponse,
    request: &ExplainDescriptorsRequest,
) -> String {
    descriptor_lines(explained, request) + &end(explained.revision)
}

/// Returns the explanation of an answer of `Check`, without the server's part.
pub fn check_lines(explained: &ExplainResponse, request: &CheckRequest) -> String {
    let mut lines = result(explained, request) + "\n";
    let (yes, no): (Vec<_>, Vec<_>) =
        explained.rules.iter().partition(|rule| rule.applies() == Applies::Yes);
    if !yes.is_empty() {
        lines.push_str("\nRules that apply:\n");
        for rule in &yes {
            lines.push_str(&applying(rule, "  "));
        }
    }
    if !no.is_empty() {
        lines.push_str("\nRules that do not apply, the nearest first:\n");
        let width = no.iter().map(|rule| text::value(&rule.rule).chars().count()).max();
        let is_enforced = yes.iter().any(|rule| rule.mode() == RuleMode::Enforce);
        let is_matched = !yes.is_empty() || no.iter().any(|rule| rule.applies() == Applies::Off);
        let instead = match (is_enforced, is_matched) {
            (true, _) => "another rule is enforced",
            (false, true) => "another rule matches",
            (false, false) => "the setting `unmatched` is not `default`",
        };
        for rule in no {
            let name = text::value(&rule.rule);
            let (why, width) = (why_not(rule, instead), width.unwrap_or(0));
            let _infallible = writeln!(lines, "  {name:width$}  {why}");
        }
    }
    if explained.rules_left_out > 0 {
        let _infallible = writeln!(lines, "  … and {} more", explained.rules_left_out);
    }
    lines
}

/// Returns the explanation of an answer to Envoy, without the server's part.
pub fn descriptor_lines(
    explained: &ExplainDescriptorsResponse,
    request: &ExplainDescriptorsRequest,
) -> String {
    let answer = match explained.over_limit {
        None => {
            let error = explained.store_error.as_ref().map_or("", |error| &error.message);
            format!("unknown  {}: {}", text::value(&request.domain), text::words(error))
        }
        Some(true) => format!("OVER_LIMIT  {}", text::value(&request.domain)),
        Some(false) => format!("OK  {}", text::value(&request.domain)),
    };
    let mut lines = format!("{answer}\n");
    for (explained, descriptor) in explained.descriptors.iter().zip(&request.descriptors) {
        let _infallible = writeln!(lines, "\n{}", entries(descriptor, descriptor.entries.len()));
        match &explained.rule {
            Some(rule) if rule.applies() == Applies::Yes => lines.push_str(&applying(rule, "  ")),
            Some(rule) => {
                let _infallible =
                    writeln!(lines, "  {}  {}", text::value(&rule.rule), why_not(rule, ""));
            }
            None => lines.push_str(&without_limit(explained.matched_entries, descriptor)),
        }
        if !explained.nearest.is_empty() {
            let nearest: Vec<_> = explained.nearest.iter().map(|rule| text::words(rule)).collect();
            let _infallible = writeln!(lines, "  known there: {}", nearest.join(", "));
        }
    }
    lines
}

fn end(revision: u64) -> String {
    format!("\nRevision {revision} of the configuration. Nothing was counted.\n")
}

/// Returns the first line: the answer as `rlaas check` prints it.
fn result(explained: &ExplainResponse, request: &CheckRequest) -> String {
    let user = printable(&request.user_id);
    match explained.result.as_ref().and_then(|result| result.result.as_ref()) {
        Some(check_result::Result::Response(answer)) => {
            response::to_text(answer, &request.user_id, request.cost.unwrap_or(1))
        }
        Some(check_result::Result::Error(error)) => {
            let code = code_name(error.code.into());
            format!("error    {user}: {code}: {}", text::words(&error.message))
        }
        None => {
            let error = explained.store_error.as_ref().map_or("", |error| &error.message);
            format!("unknown  {user}: {}", text::words(error))
        }
    }
}

/// Returns lines about a rule that applies.
fn applying(rule: &RuleExplanation, indent: &str) -> String {
    let mut lines = String::new();
    let shadow =
        if rule.mode() == RuleMode::Shadow { ", in shadow mode: never refuses" } else { "" };
    let name = text::value(&rule.rule);
    let known = rule.decision.as_ref().zip(rule.state.as_ref());
    let outcome = known.map(|(decided, state)| outcome(decided, state, rule.cost));
    let outcome = outcome.unwrap_or_else(|| "unknown, the store is away".to_owned());
    let _infallible = writeln!(lines, "{indent}{name}  {outcome}{shadow}");
    let mut detail = |text: String| {
        let _infallible = writeln!(lines, "{indent}  {text}");
    };
    detail(granted(rule));
    if let Some(key) = &rule.key {
        detail(format!(
            "key {}, in the store {}",
            text::key(Some(key)),
            text::value(&key.storage_key)
        ));
    }
    for other in rule.state.iter().flat_map(|state| &state.overrides) {
        detail(crate::keys::override_line(other));
    }
    if let Some(wait) = &rule.deny_cached_for {
        let wait = text::wait(Some(wait));
        detail(format!("this instance goes on to refuse for {wait}, from its deny cache"));
    }
    lines
}

/// Returns what a rule decides, and what is used.
fn outcome(decided: &RuleDecision, state: &KeyState, cost: u64) -> String {
    let used = text::key_use(state);
    let is_whole = !state.reset_after.as_ref().is_some_and(text::is_positive);
    let reset = if is_whole { String::new() } else { format!(", resets {}", state.reset_words()) };
    match decided.reason() {
        Reason::Banned => "denies: banned".to_owned(),
        Reason::Unlimited => "allows: unlimited".to_owned(),
        Reason::CostAboveLimit => format!("denies: a cost of {cost} is more than it ever grants"),
        _ if decided.allowed => format!("allows: {used}{reset}"),
        _ => {
            let passes = state.end_words(decided.retry_after.as_ref());
            format!("denies: {used}, passes {passes}{reset}")
        }
    }
}

/// Returns the grant of a rule and where it comes from.
fn granted(rule: &RuleExplanation) -> String {
    let from = match (rule.grant_from(), rule.rule_override) {
        (GrantFrom::RuleOverride, Some(position)) => format!("overrides[{position}] of the rule"),
        (GrantFrom::KeyOverride, _) => "an override of this key".to_owned(),
        _ => "the rule".to_owned(),
    };
    let place = rule.state.as_ref().map_or("", |state| &*state.limit_from);
    let from = match rule.grant_from() {
        GrantFrom::Request => format!("from {}", text::value(place)),
        _ => format!("by {from}"),
    };
    let algorithm = rule.decision.as_ref().and_then(|decided| {
        let name = decided.algorithm().as_str_name().to_lowercase();
        rlaas_core::algorithm::Algorithm::from_name(&name)
            .map(rlaas_core::algorithm::Algorithm::name)
    });
    let algorithm = algorithm.map_or(String::new(), |name| format!(", {name}"));
    let window = match (&rule.calendar, rule.window_from(), &rule.decision) {
        (Some(calendar), ..) => format!(" per {}", calendar.words()),
        (None, from @ WindowFrom::FirstUse, Some(decided)) => {
            format!(" per {}{}", text::wait(decided.window.as_ref()), from.words())
        }
        _ => String::new(),
    };
    let part = |words: &str, ppm: u32| {
        text::share(ppm).map_or(String::new(), |share| format!(", {words} {share}"))
    };
    let held = part("held by at most", rule.hold_share_ppm);
    let left = part("leaves to others", rule.headroom_ppm);
    format!("{}{window}{algorithm}{held}{left}, {from}", text::grant(rule.grant.as_ref()))
}

/// Returns why a rule does not apply, and of the default rule what `instead` says.
fn why_not(rule: &RuleExplanation, instead: &str) -> String {
    match rule.applies() {
        Applies::Off => "it is off".to_owned(),
        Applies::NotDefault => instead.to_owned(),
        Applies::Replaced => "the limit of another descriptor replaces it".to_owned(),
        _ => rule.mismatch.as_ref().map_or_else(String::new, mismatch),
    }
}

fn mismatch(mismatch: &Mismatch) -> String {
    let part = text::value(&mismatch.part);
    let wanted: Vec<_> = mismatch.wanted.iter().map(|wanted| text::value(wanted)).collect();
    let wanted = match &*wanted {
        [any] if any == "*" => "is needed".to_owned(),
        [only] => format!("must be {only}"),
        several => format!("must be one of {}", several.join(", ")),
    };
    match &mismatch.got {
        Some(got) => format!("{part} {wanted}, not {}", text::value(got)),
        None => format!("{part} {wanted}, and the request has none"),
    }
}

fn without_limit(matched: u32, descriptor: &Descriptor) -> String {
    let matched = usize::try_from(matched).unwrap_or(usize::MAX);
    let known = entries(descriptor, matched);
    match descriptor.entries.get(matched) {
        Some(entry) => {
            let after = if matched == 0 { String::new() } else { format!(" after {known}") };
            let entry = format!("{}={}", text::value(&entry.key), text::value(&entry.value));
            format!("  passes: {entry} is not known{after}\n")
        }
        None => "  passes: there is no limit at this level\n".to_owned(),
    }
}

/// Returns the first entries of a descriptor.
fn entries(descriptor: &Descriptor, count: usize) -> String {
    let entries = descriptor.entries.iter().take(count);
    let entry =
        entries.map(|entry| format!("{}={}", text::value(&entry.key), text::value(&entry.value)));
    entry.collect::<Vec<_>>().join(", ")
}
