//! A request that a visitor tries: whether the rule applies, and what it would decide. Counts nothing.

use std::time::Duration;

use maud::{Markup, html};
use rlaas_limiter::explain::{Applies, Explanation, Mismatch};

use super::query::RuleQuery;
use super::render::RulePage;
use crate::admin::{AdminError, explain, outlook};
use crate::algorithm::Outcome;
use crate::clock::Deadline;
use crate::console::ConsoleContext;
use crate::console::fields::Link;
use crate::console::layout::failure;
use crate::console::page_error::PageError;
use crate::console::rule_words;
use crate::console::text::{foreign, number, wait_text};
use crate::plan::KeyPart;
use crate::projects::ProjectId;
use crate::rules::{Mode, RuleSet, Unmatched};
use crate::verdict::RuleDecision;

/// Longest wait for the store.
const MAX_TIME: Duration = Duration::from_secs(5);

/// The outcome of a request for one rule.
#[derive(Debug)]
pub(super) enum TriedRequest {
    Applies {
        key: Vec<KeyPart>,
        mode: Mode,
        cost: u64,
        /// The decision of the rule, and whether the whole request would be allowed; or the failure of
        /// the store.
        decision: Result<(RuleDecision, bool), String>,
    },
    Mismatch(Mismatch),
    /// It fits, and is off.
    Off,
    /// The default rule where others are enforced, or this policy decides in its place.
    NotDefault(Unmatched),
}

/// Tries a request.
///
/// # Errors
///
/// [`PageError`] if a field is not valid.
pub(super) async fn run(
    console: &ConsoleContext,
    project: &ProjectId,
    query: &RuleQuery,
) -> Result<TriedRequest, PageError> {
    let limiter = console.administrator.limiter();
    let snapshot = limiter.project_snapshot(project.as_str());
    let snapshot = snapshot.ok_or(AdminError::UnknownProject)?;
    let (typed, of, name) = (query.tried.clone(), project.clone(), query.name.clone());
    let explained = explain(snapshot, move |rules: &RuleSet| {
        let attributes = typed.attributes()?;
        let request = typed.request(&attributes)?.in_project(of.as_str());
        let explanation = rules.explain(&request);
        let is_named = |of| **rules.rule(of).name == *name;
        let applies = explanation.rules.iter().find(|explained| is_named(explained.rule));
        if let Some(explained) = applies {
            let applies = explained.applies.clone();
            return Ok((explanation, applies));
        }
        // It is none of the nearest: why it does not apply does not depend on others.
        let alone = rules.iter().filter(|rule| *rule.name == *name).cloned().collect();
        let alone = RuleSet::new(rules.default_rule().clone(), alone).explain(&request);
        let named = alone.rules.into_iter().find(|explained| {
            explained.applies != Applies::NotDefault
                && !matches!(explained.applies, Applies::Yes(_))
        });
        let applies = named.map_or(Applies::NotDefault, |explained| explained.applies);
        Ok::<_, PageError>((explanation, applies))
    });
    let (snapshot, explained) = explained.await;
    let (Explanation { plan, keys, .. }, applies) = explained?;
    let met = match applies {
        Applies::Mismatch(mismatch) => return Ok(TriedRequest::Mismatch(mismatch)),
        Applies::Off => return Ok(TriedRequest::Off),
        Applies::NotDefault | Applies::Replaced => {
            return Ok(TriedRequest::NotDefault(snapshot.rules.unmatched()));
        }
        Applies::Yes(met) => met,
    };
    let outlook = outlook(limiter, &snapshot, &plan, &keys, Deadline::within(MAX_TIME)).await;
    let decision = match outlook.preview {
        Ok(preview) => {
            let decided = preview.decisions.get(met.hit).cloned();
            let is_allowed = preview.verdict.is_allowed();
            decided.map(|decided| (decided, is_allowed)).ok_or_else(|| "not decided".to_owned())
        }
        Err(error) => Err(AdminError::Store(error).to_string()),
    };
    let key = &keys[met.hit];
    let (parts, mode, cost) = (key.parts.clone(), key.hit.mode, met.cost.units());
    Ok(TriedRequest::Applies { key: parts, mode, cost, decision })
}

impl RulePage {
    /// Shows the form, and what the rule says of the request.
    pub(super) fn tried(&self) -> Markup {
        let RuleQuery { project, name, tried, .. } = &self.query;
        let all = tried.added_to(Link::to("key").with("project", project));
        html! {
            h2 id="try" { "Try a request" }
            @if !self.is_operator { p.notice { "The role operate is required to try requests." } }
            @else {
                form.row method="get" action="rule#try" {
                    input type="hidden" name="project" value=(project);
                    input type="hidden" name="name" value=(name);
                    (tried.inputs())
                    div {
                        label for="cost" { "Cost" }
                        input id="cost" name="cost" value=(tried.cost) placeholder="1" inputmode="numeric" autocomplete="off";
                    }
                    button.primary { "Try" }
                }
                @match &self.tried {
                    None => p.hint { "Says whether the rule applies, and what it would decide. Nothing is counted." },
                    Some(Err(error)) => (failure(&error.problem)),
                    Some(Ok(tried)) => {
                        div.card role="status" { (tried.render()) p { a href=(all) { "All rules that this request meets" } } }
                    }
                }
            }
        }
    }
}

impl TriedRequest {
    fn render(&self) -> Markup {
        html! {
            @match self {
                Self::Off => p { "The rule fits, but it is off: it is ignored." },
                Self::NotDefault(policy) => p {
                    "The rule does not apply: " (rule_words::not_default(*policy)) "."
                },
                Self::Mismatch(mismatch) => p {
                    "The rule does not apply: " (rule_words::mismatch(mismatch)) "."
                },
                Self::Applies { key, mode, cost, decision } => {
                    p {
                        "The rule applies, and takes " (number(*cost)) @if *cost == 1 { " unit" } @else { " units" }
                        " of the key " (rule_words::key_parts(key)) "."
                        @if mode.is_shadow() { " " span.warn { "It is in shadow mode for this key: it refuses nothing." } }
                    }
                    @match decision {
                        Err(problem) => p.problem { "Its decision is not known: " (foreign(problem)) "." },
                        Ok((decided, is_allowed)) => p { (decision_text(decided)) (verdict(*is_allowed)) }
                    }
                }
            }
        }
    }
}

fn decision_text(decided: &RuleDecision) -> Markup {
    let left = u64::try_from(decided.decision.remaining).unwrap_or_default();
    html! {
        @match decided.decision.outcome {
            Outcome::Allowed => { "It " strong.good { "allows" } " the request" },
            Outcome::Denied { retry_after } => {
                "It " strong.bad { "refuses" } " the request for " (wait_text(retry_after))
            }
            Outcome::Impossible => { "It " strong.bad { "never allows" } " a request of this cost" }
        }
        @if decided.grant.limit().is_some() { "; " (number(left)) " units are left now" }
        ". "
    }
}

fn verdict(is_allowed: bool) -> Markup {
    html! {
        "With all rules that it meets, the request would be "
        @if is_allowed { strong.good { "allowed" } } @else { strong.bad { "refused" } } "."
    }
}
