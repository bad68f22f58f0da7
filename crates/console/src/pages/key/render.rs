//! The page of keys.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::rule_explanation::Applies;
use rlaas_proto::ratelimit::admin::v1::{GrantFrom, KeyOverride, KeyState, RuleExplanation};
use rlaas_proto::ratelimit::v1::check_result::Result as Checked;
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{Grant, RuleMode};

use super::choices::Choices;
use super::recent_top_keys::RecentKeys;
use super::{FoundKeys, MatchingKey, link};
use crate::fields::FormFields;
use crate::form::RefusedForm;
use crate::key_states::{end, passes};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::pages::audit;
use crate::rule_words;
use crate::text::{foreign, number, time, wait};

/// The content of the page.
#[derive(Debug)]
pub(super) struct KeyPage {
    pub(super) frame: Frame,
    pub(super) search: FormFields,
    pub(super) choices: Choices,
    /// What is known of the user id; `None` without one.
    pub(super) recent: Option<Result<RecentKeys, PageError>>,
    /// What is found: the search with the project of its request, or the key to look at first.
    pub(super) asked: FormFields,
    /// `None` before a search.
    pub(super) found: Option<Result<FoundKeys, PageError>>,
    /// The change that was refused.
    pub(super) refused: Option<RefusedForm>,
}

impl KeyPage {
    pub(super) fn render(&self) -> Markup {
        let has_resource = !self.asked.get("resource").is_empty();
        let content = html! {
            @if let Some(refused) = &self.refused { (refused.notice()) }
            (self.choices.search_form(&self.search))
            @if has_resource { (self.outlook()) }
            (self.recent_top_keys())
            @if !has_resource { (self.outlook()) }
            @match &self.found {
                None => @if self.recent.is_none() {
                    p.notice {
                        "Type the user id. You see every rule that has refused it in the last hour, what is used \
                         and left, and what a request would get. Nothing is counted."
                    }
                },
                Some(Err(error)) => @if self.refused.as_ref().is_none_or(|refused| refused.error != *error) {
                    (failure(&error.problem))
                },
                Some(Ok(found)) => (self.found(found)),
            }
        };
        self.frame.page("Look up", &content)
    }

    fn recent_top_keys(&self) -> Markup {
        let Some(recent) = &self.recent else { return html! {} };
        html! {
            @match recent {
                Ok(recent) => (recent.render(self)),
                Err(_) if !self.frame.visitor.sees_instances() => p.notice { "The keys of this id are not known." },
                Err(error) => p.notice { "The keys of this id are not known: " (foreign(error.problem.trim_end_matches('.'))) "." },
            }
        }
    }

    /// Says what a request would get.
    fn outlook(&self) -> Markup {
        let Some(Ok(found)) = &self.found else { return html! {} };
        html! {
            @if let Some(problem) = &found.store_problem {
                p.problem role="alert" {
                    "The use of the keys can't be read: " (foreign(problem)) ". Below is what the rules say. \
                     Bans and other limits that were set for the key are not known, and changes would be \
                     refused: there is no form for them. "
                    a href=(link(&self.asked)) { "Try again" }
                }
            }
            @if let Some(outlook) = &found.outlook {
                // Without a response no rule matches.
                @let (is_allowed, rule) = match outlook {
                    Checked::Response(response) => (response.allowed, &*response.rule),
                    Checked::Error(_) => (false, ""),
                };
                p.summary {
                    "A request "
                    @if self.asked.get("resource").is_empty() { "without resource " }
                    @if found.project.is_empty() { "outside of projects " }
                    @else { "in the project " (foreign(&found.project)) " " }
                    "would be "
                    @if is_allowed { strong.good { "allowed" } } @else { strong.bad { "refused" } }
                    @if rule.is_empty() { ": no rule is enforced for it." }
                    @else { " by rule " (rule_link(found, rule)) "." }
                    " " a href=(link(&self.asked)) { "Reload" }
                }
            }
        }
    }

    fn found(&self, found: &FoundKeys) -> Markup {
        html! {
            @if !found.is_operator { p.notice { "The role operate is required to see what is used, and to reset it." } }
            h2 { @if self.asked.get("id").is_empty() { "Rules that it meets" } @else { "The key" } }
            @if found.keys.is_empty() { p.notice { "None." } }
            div.cards.few {
                @for (position, met) in found.keys.iter().enumerate() {
                    section.card aria-labelledby=(format!("key-{position}")) {
                        h3 id=(format!("key-{position}")) { (rule_link(found, &met.rule.name)) }
                        (self.facts(met, found))
                        (self.forms(position, met))
                    }
                }
            }
            (unmet(found))
            (changes(found))
        }
    }

    /// Returns `true` while the store would refuse changes.
    pub(super) fn is_store_away(&self) -> bool {
        let has_problem = matches!(&self.found, Some(Ok(found)) if found.store_problem.is_some());
        has_problem || self.frame.visitor.store.is_away
    }

    fn facts(&self, met: &MatchingKey, found: &FoundKeys) -> Markup {
        let (grant, mode) = (met.granted(), met.met.mode());
        let parts = met.met.key.as_ref().map(|key| &*key.parts).unwrap_or_default();
        let is_limit = matches!(grant.kind, Some(Kind::Limit(_)));
        html! {
            dl {
                @if !parts.is_empty() || found.is_operator {
                    dt { "Key" } dd { (rule_words::key_parts(parts)) }
                }
                dt { "Limit" }
                dd {
                    (rule_words::grant(&grant, &met.rule))
                    @if is_limit { ", " (rule_words::algorithm(met.rule.algorithm())) }
                    br;
                    span.muted {
                        (origin(&grant, met.met.grant_from()))
                        @if !met.rule.limit_from.is_empty() {
                            "; requests have limits of their own, from " (foreign(&met.rule.limit_from))
                        }
                    }
                }
                @if mode != RuleMode::Enforce && mode != RuleMode::Unspecified {
                    dt { "Mode" } dd { span.warn { (rule_words::mode(mode)) } }
                }
                @match &met.met.state {
                    Some(state) => (used(met, state)),
                    None => @if found.is_operator { dt { "Used" } dd { span.muted { "not known" } } }
                }
                @if met.met.deny_cached_for.is_some() {
                    dt { "Deny cache" } dd {
                        @if self.frame.visitor.sees_instances() { "this instance " }
                        "refuses for " (wait(met.met.deny_cached_for.as_ref())) " more"
                    }
                }
            }
        }
    }
}

impl MatchingKey {
    /// Returns what is granted to the key.
    fn granted(&self) -> Grant {
        if let Some(grant) = self.met.grant {
            return grant;
        }
        match &self.met.state {
            Some(state) if state.limit != self.rule.max_requests => {
                Grant::of_limit(state.limit, state.capacity())
            }
            _ => self.rule.grant(),
        }
    }

    /// Returns the limit in force and its burst, under a ban those of the rule, as fields of a form have them.
    pub(super) fn limit_in_force(&self) -> [String; 2] {
        let granted = self.granted();
        let is_banned = matches!(granted.kind, Some(Kind::Banned(_)));
        let grant = if is_banned { self.rule.grant() } else { granted };
        let burst = grant.own_burst().map(|burst| burst.to_string()).unwrap_or_default();
        match grant.kind {
            Some(Kind::Limit(limit)) => [limit.to_string(), burst],
            Some(Kind::Unlimited(_)) => ["unlimited".to_owned(), String::new()],
            _ => Default::default(),
        }
    }

    /// Returns `true` if so much is used that the rule says so.
    fn is_near(&self, state: &KeyState) -> bool {
        let Grant { kind: Some(Kind::Limit(units)), burst } = self.granted() else { return false };
        let at_once = i128::from(if burst > 0 { burst } else { units });
        let used = at_once - i128::from(state.remaining);
        let part = i128::from(self.rule.near_limit_ppm);
        part > 0 && used * 1_000_000 >= at_once * part
    }
}

fn rule_link(found: &FoundKeys, rule: &str) -> Markup {
    rule_words::rule_link(&found.project, rule)
}

const fn origin(grant: &Grant, from: GrantFrom) -> &'static str {
    match (from, &grant.kind) {
        (GrantFrom::Rule | GrantFrom::Unspecified, _) => "from the rule",
        (GrantFrom::RuleOverride, _) => "from an override in the rule",
        (GrantFrom::Request, _) => "from the request",
        (GrantFrom::KeyOverride, Some(Kind::Banned(_))) => "from a ban of this key",
        (GrantFrom::KeyOverride, _) => "set for this key",
    }
}

fn used(met: &MatchingKey, state: &KeyState) -> Markup {
    let reset = state.reset_words();
    html! {
        @if matches!(met.granted().kind, Some(Kind::Limit(_))) {
            dt { "Used" }
            dd {
                (state.use_words(rule_words::units)) " " (meter(state))
                @if met.is_near(state) { " " span.warn { "near the limit" } }
            }
            @if state.holds > 0 {
                dt { "Held" }
                dd {
                    (number(u64::try_from(state.held).unwrap_or_default())) " by "
                    (number(u64::try_from(state.holds).unwrap_or_default())) " reservations"
                }
            }
            dt { "Resets" }
            dd { @if reset == "now" { span.good { (reset) } } @else { (end(state, state.reset_after.as_ref())) } }
            @if state.retry_after.is_some() {
                dt { "Next request" }
                dd {
                    @if let Some(why) = rule_words::refuses_nothing(met.met.mode()) { span.warn { (why) } }
                    @else { (passes(state)) }
                }
            }
        } @else {
            dt { "Used" } dd { span.muted { "nothing is counted" } }
        }
        @for entry in &state.overrides { (key_override(met, entry)) }
        dt { "Stored as" }
        dd.mono { (foreign(met.met.key.as_ref().map_or("", |key| &*key.storage_key))) }
    }
}

fn meter(state: &KeyState) -> Markup {
    let whole = state.capacity().max(1);
    html! {
        meter min="0" max=(whole) high=(whole / 5 * 4) optimum="0" value=(state.used) aria-label="Used" {}
    }
}

/// Shows a ban, or another limit, with its end.
pub(super) fn key_override(met: &MatchingKey, entry: &KeyOverride) -> Markup {
    let grant = entry.grant.unwrap_or_default();
    let is_ban = entry.is_ban();
    html! {
        dt { @if is_ban { "Ban" } @else { "Other limit" } }
        dd {
            strong { @if is_ban { "banned" } @else { (rule_words::grant(&grant, &met.rule)) } }
            " until " (time(entry.expires_at.as_ref())) br;
            span.muted {
                "set"
                @if !entry.actor.is_empty() { " by " (foreign(&entry.actor)) }
                @if entry.created_at.is_some() { ", " (time(entry.created_at.as_ref())) }
                @if !entry.reason.is_empty() { ": " (foreign(&entry.reason)) }
            }
        }
    }
}

fn unmet(found: &FoundKeys) -> Markup {
    html! {
        @if !found.unmet.is_empty() {
            details id="unmet" open[found.keys.is_empty()] {
                summary { "Rules that it does not meet" }
                ul {
                    @for rule in &found.unmet { li { (rule_link(found, &rule.rule)) ": " (why(found, rule)) } }
                    @if found.left_out > 0 { li.muted { "and " (number(found.left_out.into())) " more" } }
                }
            }
        }
    }
}

fn why(found: &FoundKeys, rule: &RuleExplanation) -> Markup {
    html! {
        @match (rule.applies(), &rule.mismatch) {
            (_, Some(mismatch)) => (rule_words::mismatch(mismatch)),
            (Applies::Off, _) => "it is off",
            (Applies::Hidden, _) => "a file has a rule of this name",
            _ => (rule_words::not_default(found.config.unmatched())),
        }
    }
}

fn changes(found: &FoundKeys) -> Markup {
    html! {
        @match &found.changes {
            None => {},
            Some(changes) => {
                h2 { "Last changes of these keys" }
                @match changes {
                    Err(problem) => p.notice { "Not known: " (foreign(problem)) "." },
                    Ok(entries) if entries.is_empty() => p.notice { "Nobody has changed them." },
                    Ok(entries) => (audit::table(entries)),
                }
            }
        }
    }
}
