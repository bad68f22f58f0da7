//! A rule in words.

use maud::{Markup, html};
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{
    DescriptorRule, OnChange, OnStoreFailure, PartMatcher, Rule, RuleOverride,
};

use super::RulePage;
use crate::pages::rules::source;
use crate::rule_words::{self, share};
use crate::text::{foreign, grouped, joined, number, time};

/// Most patterns of a part, and most overrides, that are shown.
const MAX_SHOWN: usize = 20;

impl RulePage {
    /// Shows the rule, and where it comes from.
    pub(super) fn facts(&self) -> Markup {
        let rule = &self.rule;
        let is_default = rule.origin.as_ref().is_some_and(|origin| origin.kind() == Kind::BuiltIn);
        html! {
            h2 { "The rule" }
            dl.card {
                dt { "Applies to" }
                dd {
                    @match &rule.descriptor_rule {
                        Some(descriptor_rule) => (descriptor(descriptor_rule)),
                        None if is_default => (rule_words::default_requests(self.config.unmatched())),
                        None => (matchers(&rule.matchers)),
                    }
                }
                @if rule.descriptor_rule.is_none() { dt { "Counts by" } dd { (key_by(&rule.key_by)) } }
                dt { "Limit" } dd { (rule_words::rule_grant(rule)) }
                dt { "Algorithm" } dd { (rule_words::algorithm(rule.algorithm())) }
                @if !rule.limit_from.is_empty() {
                    dt { "Limits of requests" }
                    dd { "from " (foreign(&rule.limit_from)) ", in the place of that of the rule" }
                }
                @if rule.hold_share_ppm > 0 {
                    dt { "Reservations" }
                    dd { "hold at most " (share(rule.hold_share_ppm)) " of what a key may use at once" }
                }
                @if rule.near_limit_ppm > 0 {
                    dt { "Near the limit" } dd { "from " (share(rule.near_limit_ppm)) " on" }
                }
                @if !rule.notify_at_ppm.is_empty() {
                    @let parts: Vec<_> = rule.notify_at_ppm.iter().map(|part| share(*part)).collect();
                    dt { "Tells events" } dd { "at " (parts.join(", ")) " of the limit, once for each key and window" }
                }
                dt { "If the store fails" }
                dd {
                    (store_failure(rule))
                    @if rule.breaker_opens_rule { "; allowed while its circuit breaker is open" }
                }
                @if let Some(part) = rule.enforce_ppm {
                    dt { "Enforced for" } dd { (share(part)) " of the keys" }
                }
                @if let Some(policy) = on_change(rule.on_change()) { dt { "On change" } dd { (policy) } }
                dt { "Bans and other limits" }
                dd { @if rule.overridable { "can be set for single keys" } @else { "no: not overridable" } }
                (self.source())
            }
            (overrides(rule))
        }
    }

    fn source(&self) -> Markup {
        let origin = self.rule.origin.as_ref();
        let revision = origin.map_or(0, |origin| origin.revision);
        let changed_at = self.written.as_ref().and_then(|written| written.updated_at.as_ref());
        html! {
            dt { "From" }
            dd {
                (source(origin))
                @if changed_at.is_some() { br; span.muted { "last changed " (time(changed_at)) } }
            }
            @if revision > 0 { dt { "Revision" } dd { (number(revision)) " of the project" } }
        }
    }
}

/// Returns the policy of a rule for the time when the store fails.
fn store_failure(rule: &Rule) -> String {
    match rule.on_store_failure() {
        OnStoreFailure::Error | OnStoreFailure::Unspecified => {
            "the check fails, and its caller decides".to_owned()
        }
        OnStoreFailure::Allow => "requests are allowed (fail-open)".to_owned(),
        OnStoreFailure::Deny => "requests are refused (fail-closed)".to_owned(),
        OnStoreFailure::Local => {
            let part = share(rule.local_share_ppm);
            format!("each instance decides alone, by {part} of the limit")
        }
    }
}

/// Returns the name of a policy in rules files.
const fn on_change(policy: OnChange) -> Option<&'static str> {
    match policy {
        OnChange::Unspecified => None,
        OnChange::KeepUsed => Some("keep-used"),
        OnChange::KeepLeft => Some("keep-left"),
        OnChange::Scale => Some("scale"),
        OnChange::Reset => Some("reset"),
    }
}

/// Shows the requests to which a rule applies.
fn matchers(matchers: &[PartMatcher]) -> Markup {
    html! {
        @if matchers.is_empty() { "every request" }
        (joined(matchers, " and ", |PartMatcher { part, any_of }| html! {
            (foreign(part)) " "
            @if *any_of == ["*"] { "is given" } @else { (one_of(any_of)) }
        }))
    }
}

fn one_of(texts: &[String]) -> Markup {
    let left_out = texts.len().saturating_sub(MAX_SHOWN);
    html! {
        "is " (joined(texts.iter().take(MAX_SHOWN), " or ", |text| foreign(text)))
        @if left_out > 0 { " or one of " (grouped(left_out as u64)) " more" }
    }
}

/// Shows the path of a rule for descriptors.
fn descriptor(rule: &DescriptorRule) -> Markup {
    html! {
        "requests of Envoy in the domain " (foreign(&rule.domain)) " with "
        (joined(&rule.path, ", ", |step| html! {
            (foreign(&step.key))
            @if !step.value.is_empty() { " = " (foreign(&step.value)) }
        }))
    }
}

/// Shows the parts of a request whose values name the state.
fn key_by(parts: &[String]) -> Markup {
    html! {
        @if parts.is_empty() { "nothing: all requests share one count" }
        (joined(parts, ", ", |part| foreign(part)))
    }
}

fn overrides(rule: &Rule) -> Markup {
    let all = &rule.overrides;
    let item = |RuleOverride { matchers: wanted, grant, headroom_ppm }: &RuleOverride| {
        let grant = grant.map(|grant| rule_words::grant(&grant, rule));
        html! {
            li {
                (matchers(wanted)) ": " (grant.as_deref().unwrap_or_default())
                @if *headroom_ppm > 0 {
                    @if grant.is_some() { ", " }
                    "pass while " (share(*headroom_ppm)) " would be left to others"
                }
            }
        }
    };
    html! {
        @if !all.is_empty() {
            details id="overrides" {
                summary {
                    (number(all.len() as u64))
                    @if all.len() == 1 { " override" } @else { " overrides: the closest one counts" }
                }
                ul {
                    @for other in all.iter().take(MAX_SHOWN) { (item(other)) }
                    @if all.len() > MAX_SHOWN {
                        li.muted { "and " (number((all.len() - MAX_SHOWN) as u64)) " more" }
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
        let any_of = vec!["<script>\u{202e}".to_owned(); 30];
        let shown = matchers(&[PartMatcher { part: "<b>".to_owned(), any_of }]).into_string();
        assert!(!shown.contains("<script>") && !shown.contains("<b>"), "{shown}");
        assert!(shown.contains("U+202E") && shown.contains("or one of 10 more"), "{shown}");
    }
}
