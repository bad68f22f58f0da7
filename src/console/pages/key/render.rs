//! The page of keys.

use maud::{Markup, html};
use rlaas_limiter::KeyState;

use super::forms::ChangeDraft;
use super::found::{FoundKeys, MetKey, Unmet, UnmetRule};
use super::search::KeySearch;
use crate::admin::Note;
use crate::algorithm::Outcome;
use crate::clock::Timestamp;
use crate::console::change_form::refused;
use crate::console::layout::{Frame, failure};
use crate::console::page_error::PageError;
use crate::console::pages::audit;
use crate::console::rule_words;
use crate::console::text::{foreign, number, time, wait_text};
use crate::control::{KeyGrant, KeyOverride};
use crate::plan::GrantSource;
use crate::proto_values::timestamp;
use crate::rules::{Grant, Mode};

/// The content of the page.
#[derive(Debug)]
pub(super) struct KeyPage {
    pub(super) frame: Frame,
    pub(super) search: KeySearch,
    /// `None` before a search.
    pub(super) found: Option<Result<FoundKeys, PageError>>,
    /// The change that was refused.
    pub(super) draft: Option<ChangeDraft>,
}

impl KeyPage {
    pub(super) fn render(&self) -> Markup {
        let content = html! {
            @if let Some(draft) = &self.draft {
                (refused(&draft.error))
            }
            (self.search_form())
            @match &self.found {
                None => p.notice {
                    "Type the user id of a request, and its resource and attributes if rules use them. \
                     You see every rule that it meets, and what is used and left. Nothing is counted."
                },
                Some(Err(error)) => @if self.draft.as_ref().is_none_or(|draft| draft.error != *error) {
                    (failure(&error.problem))
                },
                Some(Ok(found)) => (self.found(found)),
            }
        };
        self.frame.page("Key", &content)
    }

    fn search_form(&self) -> Markup {
        let search = &self.search;
        html! {
            form.row method="get" action="key" {
                div {
                    label for="project" { "Project (_ for none)" }
                    input id="project" name="project" value=(search.project) autocomplete="off" spellcheck="false";
                }
                (search.request.inputs())
                div {
                    label for="rule" { "Only this rule" }
                    input id="rule" name="rule" value=(search.rule) autocomplete="off" spellcheck="false";
                }
                @if !search.id.is_empty() {
                    div {
                        label for="id" { "Id of its key" }
                        input id="id" name="id" value=(search.id) autocomplete="off" spellcheck="false";
                    }
                }
                button.primary { "Show" }
            }
        }
    }

    fn found(&self, found: &FoundKeys) -> Markup {
        html! {
            @if let Some(problem) = &found.store_problem {
                p.problem role="alert" {
                    "The use of the keys can't be read: " (foreign(problem)) ". Below is what the rules say. \
                     Bans and other limits that were set for the key are not known. "
                    a href=(self.search.link()) { "Try again" }
                }
            }
            @if let Some(outlook) = &found.outlook {
                p.summary {
                    "A request would be "
                    @if outlook.is_allowed { strong.good { "allowed" } } @else { strong.bad { "refused" } }
                    @if outlook.rule.is_empty() { ": no rule is enforced for it." }
                    @else { " by rule " (rule_link(found, &outlook.rule)) "." }
                    " " a href=(self.search.link()) { "Reload" }
                }
            }
            @if !found.is_operator { p.notice { "The role operate is required to see what is used, and to reset it." } }
            h2 { "Rules that it meets" }
            @if found.keys.is_empty() { p.notice { "None." } }
            div.cards.few {
                @for (position, met) in found.keys.iter().enumerate() {
                    section.card aria-labelledby=(format!("key-{position}")) {
                        h3 id=(format!("key-{position}")) { (rule_link(found, &met.key.rule)) }
                        (self.facts(met, found))
                        (self.forms(position, met, found))
                    }
                }
            }
            (unmet(found))
            (changes(found))
        }
    }

    fn facts(&self, met: &MetKey, found: &FoundKeys) -> Markup {
        let hit = &met.key.hit;
        let (grant, from) = match &met.state {
            Some(state) => (state.grant, state.grant_from),
            None => (hit.grant, met.key.grant_from),
        };
        html! {
            dl {
                dt { "Key" } dd { (rule_words::key_parts(&met.key.parts)) }
                dt { "Limit" }
                dd {
                    (rule_words::grant(grant, hit.algorithm))
                    @if grant.limit().is_some() { ", " (rule_words::algorithm(hit.algorithm)) }
                    br;
                    span.muted { (origin(grant, from)) }
                }
                @if hit.mode != Mode::Enforced {
                    dt { "Mode" } dd { span.warn { (rule_words::mode(hit.mode)) } }
                }
                @match &met.state {
                    Some(state) => (used(met, state)),
                    None => @if found.is_operator { dt { "Used" } dd { span.muted { "not known" } } }
                }
                @if let Some(cached) = met.deny_cached_for {
                    dt { "Deny cache" } dd {
                        @if self.frame.has_instances { "this instance " }
                        "refuses for " (wait_text(cached)) " more"
                    }
                }
            }
        }
    }
}

fn rule_link(found: &FoundKeys, rule: &str) -> Markup {
    rule_words::rule_link(found.project.as_str(), rule)
}

const fn origin(grant: Grant, from: GrantSource) -> &'static str {
    match (from, grant) {
        (GrantSource::Rule, _) => "from the rule",
        (GrantSource::RuleOverride, _) => "from an override in the rule",
        (GrantSource::KeyOverride, Grant::Banned) => "from a ban of this key",
        (GrantSource::KeyOverride, _) => "set for this key",
    }
}

fn used(met: &MetKey, state: &KeyState) -> Markup {
    let decision = &state.decision;
    let left = u64::try_from(decision.remaining).unwrap_or_default();
    let debt = decision.remaining.min(0).unsigned_abs();
    let limit = state.grant.limit();
    let is_near = met
        .near_limit
        .zip(limit)
        .is_some_and(|(share, limit)| share.is_used(limit, decision.remaining));
    html! {
        @if limit.is_some() {
            dt { "Used" }
            dd {
                (number(decision.current_count)) " used, " (number(left)) " left"
                @if debt > 0 { ", " span.bad { (number(debt)) " of debt" } }
                " " (meter(decision.current_count, left))
                @if is_near { " " span.warn { "near the limit" } }
            }
            dt { "Whole again" }
            dd {
                @if decision.reset_after.as_micros() == 0 { span.good { "now" } }
                @else { "in " (wait_text(decision.reset_after)) }
            }
            @if let Outcome::Denied { retry_after } = decision.outcome {
                dt { "Next request" }
                dd { span.bad { "passes in " (wait_text(retry_after)) } }
            }
        } @else {
            dt { "Used" } dd { span.muted { "nothing is counted" } }
        }
        @for one in state.overrides.iter() { (key_override(met, one)) }
        dt { "Stored as" }
        dd.mono { (foreign(&state.storage_key)) }
    }
}

fn meter(used: u64, left: u64) -> Markup {
    let whole = used.saturating_add(left).max(1);
    html! {
        meter min="0" max=(whole) high=(whole / 5 * 4) optimum="0" value=(used) aria-label="Used" {}
    }
}

/// Shows a ban, or another limit, with its end.
fn key_override(met: &MetKey, one: &KeyOverride) -> Markup {
    let Note { created_at_us, actor, reason } = Note::from_bytes(&one.note);
    let set_at = (created_at_us > 0).then(|| timestamp(Timestamp::from_micros(created_at_us)));
    html! {
        dt { @if one.grant == KeyGrant::Banned { "Ban" } @else { "Other limit" } }
        dd {
            strong { (rule_words::key_grant(one.grant, met.key.hit.window)) }
            " until " (time(Some(&timestamp(one.ends_at)))) br;
            span.muted {
                "set"
                @if !actor.is_empty() { " by " (foreign(&actor)) }
                @if let Some(set_at) = &set_at { ", " (time(Some(set_at))) }
                @if !reason.is_empty() { ": " (foreign(&reason)) }
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
                    @for rule in &found.unmet { li { (rule_link(found, &rule.rule)) ": " (why(rule)) } }
                    @if found.left_out > 0 { li.muted { "and " (number(found.left_out as u64)) " more" } }
                }
            }
        }
    }
}

fn why(unmet: &UnmetRule) -> Markup {
    html! {
        @match &unmet.why {
            Unmet::Off => "it is off",
            Unmet::NotDefault(policy) => (rule_words::not_default(*policy)),
            Unmet::Mismatch(mismatch) => (rule_words::mismatch(mismatch)),
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
