//! A rule in words.

use maud::{Markup, html};

use super::named::{NamedRule, RuleSource};
use super::render::RulePage;
use crate::console::ConsoleContext;
use crate::console::rule_words;
use crate::console::text::{foreign, grouped, number, time};
use crate::proto_values::timestamp;
use crate::rules::descriptors::DescriptorRule;
use crate::rules::{
    EnforcedShare, Matcher, OnStoreFailure, Override, Part, Pattern, Rule, RuleSet, Share,
    TextPattern,
};

/// Most patterns of a part, and most overrides, that are shown.
const MAX_SHOWN: usize = 20;

impl RulePage {
    /// Shows the rule, and where it comes from.
    pub(super) fn facts(&self, console: &ConsoleContext, rule: NamedRule<'_>) -> Markup {
        let info = rule.info();
        html! {
            h2 { "The rule" }
            dl.card {
                dt { "Applies to" }
                dd {
                    @match rule {
                        NamedRule::Flat(rule) if &*rule.name == Rule::DEFAULT => {
                            (rule_words::default_requests(self.snapshot.rules.unmatched()))
                        }
                        NamedRule::Flat(rule) => (matcher(&rule.matcher)),
                        NamedRule::Descriptor(rule) => (descriptor(&self.snapshot.rules, rule)),
                    }
                }
                @if let NamedRule::Flat(rule) = rule { dt { "Counts by" } dd { (key_by(&rule.key_by)) } }
                dt { "Limit" } dd { (rule_words::grant(rule.grant(), info.algorithm)) }
                dt { "Algorithm" } dd { (rule_words::algorithm(info.algorithm)) }
                @if let Some(near) = info.near_limit { dt { "Near the limit" } dd { "from " (share(near)) " on" } }
                dt { "If the store fails" }
                dd {
                    (store_failure(info.on_store_failure))
                    @if info.breaker_opens { "; allowed while its circuit breaker is open" }
                }
                @if let NamedRule::Flat(rule) = rule {
                    @if rule.enforce != EnforcedShare::ALL {
                        dt { "Enforced for" } dd { (rule.enforce) " of the keys" }
                    }
                    @if let Some(policy) = rule.on_change { dt { "On change" } dd { (policy.name()) } }
                }
                dt { "Bans and other limits" }
                dd { @if info.overridable { "can be set for single keys" } @else { "no: not overridable" } }
                (self.source(console, rule))
            }
            @if let NamedRule::Flat(rule) = rule { (overrides(rule)) }
        }
    }

    fn source(&self, console: &ConsoleContext, rule: NamedRule<'_>) -> Markup {
        let source = RuleSource::new(console, &self.project, rule);
        let state = console.projects.project(&self.project).ok();
        let record = state.as_ref().and_then(|state| state.rules.rule(rule.info().name));
        html! {
            dt { "From" }
            dd {
                (source.render())
                @match (&source, record) {
                    (RuleSource::RunTime(_), Some(record)) => {
                        br; span.muted { "last changed " (time(Some(&timestamp(record.updated_at)))) }
                    }
                    (RuleSource::File(_), Some(_)) => {
                        br; span.warn { "It hides a rule of this name that was made at run time." }
                    }
                    _ => {}
                }
            }
            @if self.frame.has_instances {
                dt { "Revision" }
                dd {
                    (number(self.snapshot.revision)) " of the configuration of this instance"
                    @let catalogue = console.projects.catalogue_revision();
                    @if catalogue > 0 { ", " (number(catalogue)) " of the rules made at run time" }
                }
            } @else if let Some(state) = &state {
                dt { "Revision" }
                dd { (number(state.revision)) " of the project" }
            }
        }
    }
}

/// Returns a policy for the time when the store fails.
fn store_failure(policy: OnStoreFailure) -> String {
    match policy {
        OnStoreFailure::Error => "the check fails, and its caller decides".to_owned(),
        OnStoreFailure::Allow => "requests are allowed (fail-open)".to_owned(),
        OnStoreFailure::Deny => "requests are refused (fail-closed)".to_owned(),
        OnStoreFailure::Local(part) => {
            format!("each instance decides alone, by {} of the limit", share(part))
        }
    }
}

/// Returns a share as a percentage.
fn share(share: Share) -> String {
    let (whole, part) = (share.millionths() / 10_000, share.millionths() % 10_000);
    let part = format!(".{part:04}");
    format!("{whole}{} %", part.trim_end_matches('0').trim_end_matches('.'))
}

/// Shows the requests to which a rule applies.
fn matcher(matcher: &Matcher) -> Markup {
    html! {
        @if matcher.patterns.is_empty() { "every request" }
        @for (position, (part, pattern)) in matcher.patterns.iter().enumerate() {
            @if position > 0 { " and " }
            (foreign(&part.to_string())) " "
            @match pattern {
                Pattern::Present => "is given",
                Pattern::OneOf(texts) => (one_of(texts))
            }
        }
    }
}

fn one_of(texts: &[TextPattern]) -> Markup {
    html! {
        "is "
        @for (position, text) in texts.iter().take(MAX_SHOWN).enumerate() {
            @if position > 0 { " or " }
            (foreign(&text.to_text()))
        }
        @if texts.len() > MAX_SHOWN { " or one of " (grouped((texts.len() - MAX_SHOWN) as u64)) " more" }
    }
}

/// Shows the path of a rule for descriptors.
fn descriptor(rules: &RuleSet, rule: &DescriptorRule) -> Markup {
    let placed = rules.descriptors().placed();
    let placed = placed.iter().find(|placed| placed.rule.name == rule.name);
    html! {
        @match placed {
            None => "requests of Envoy that bring a limit of their own",
            Some(placed) => {
                "requests of Envoy in the domain " (foreign(placed.domain)) " with "
                @for (position, step) in placed.path.iter().enumerate() {
                    @if position > 0 { ", " }
                    (foreign(step.key))
                    @if let Some(value) = step.value { " = " (foreign(value)) }
                }
            }
        }
    }
}

/// Shows the parts of a request whose values name the state.
fn key_by(parts: &[Part]) -> Markup {
    html! {
        @if parts.is_empty() { "nothing: all requests share one count" }
        @for (position, part) in parts.iter().enumerate() {
            @if position > 0 { ", " }
            (foreign(&part.to_string()))
        }
    }
}

fn overrides(rule: &Rule) -> Markup {
    let one = |one: &Override| {
        html! { li { (matcher(&one.matcher)) ": " (rule_words::grant(one.grant, rule.algorithm)) } }
    };
    html! {
        @if !rule.overrides.is_empty() {
            details id="overrides" {
                summary {
                    (number(rule.overrides.len() as u64))
                    @if rule.overrides.len() == 1 { " override" } @else { " overrides: the closest one counts" }
                }
                ul {
                    @for other in rule.overrides.iter().take(MAX_SHOWN) { (one(other)) }
                    @if rule.overrides.len() > MAX_SHOWN {
                        li.muted { "and " (number((rule.overrides.len() - MAX_SHOWN) as u64)) " more" }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_patterns_do_nothing() {
        let texts = vec![TextPattern::Exact("<script>\u{202e}".to_owned()); 30];
        let of = Part::Attribute("<b>".to_owned());
        let shown = matcher(&Matcher { patterns: vec![(of, Pattern::OneOf(texts))] }).into_string();
        assert!(!shown.contains("<script>") && !shown.contains("<b>"), "{shown}");
        assert!(shown.contains("U+202E") && shown.contains("or one of 10 more"), "{shown}");
    }

    #[test]
    fn shares_are_percentages() {
        assert_eq!(share(Share::new(825_000).expect("a share")), "82.5 %");
        assert_eq!(share(Share::HALF), "50 %");
    }
}
