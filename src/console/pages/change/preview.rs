//! The rules of a text on the requests that this instance has recorded.

use std::mem;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{KeyPart, KeyRef};
use rlaas_simulation::simulation::{CountsReport, HitKey, RuleReport};

use super::form::ChangeForm;
use super::plan::{ChangePlan, MAX_TIME, plan};
use super::{ChangeResult, admitted_form, respond, sees_ids};
use crate::admin::AdminError;
use crate::admin::messages::{hide_values, key_part};
use crate::admin::projects::{ProjectError, Trial, TriedRules};
use crate::clock::{Deadline, Timestamp};
use crate::console::Console;
use crate::console::action::{Action, RulesAction};
use crate::console::project_access::OPERATE_OR_ADMIN;
use crate::console::project_problem::FormError;
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, number, time, wait_text};
use crate::console::visitor::ConsoleVisitor;
use crate::projects::Others;
use crate::projects::dry_runs::{DryRunKind, Steps};
use crate::proto_values::timestamp;
use crate::rules::{Key, KeyHasher, Rule, RuleSet};
use crate::telemetry::record::RecentReport;

/// Most keys that are shown.
const MAX_KEYS: usize = 20;

/// What a preview has found.
#[derive(Debug)]
pub(super) struct PreviewResult {
    pub(super) plan: ChangePlan,
    span: Option<(Timestamp, Timestamp)>,
    total: CountsReport,
    invalid: u64,
    rules: Vec<RuleReport>,
    /// Keys with the most requests that would be refused now.
    keys: Vec<HitHardest>,
    undecidable: Vec<String>,
    is_incomplete: bool,
}

/// A key with newly refused requests, as the visitor may see it.
#[derive(Debug)]
struct HitHardest {
    rule: String,
    parts: Vec<KeyPart>,
    newly_refused: u64,
}

/// Shows how the rules would have decided.
pub(in crate::console) async fn preview(
    State(console): State<Console>,
    RulesAction(action): RulesAction,
) -> Response {
    let Action { visitor, fields, .. } = action;
    let form = match admitted_form(&visitor, fields, OPERATE_OR_ADMIN).await {
        Ok(form) => form,
        Err(refusal) => return refusal.respond(&console).await,
    };
    let frame = console.frame(&visitor, "projects");
    let (result, status) = match previewed(&console, &visitor, &form).await {
        Ok(result) => (result, StatusCode::OK),
        Err(error) => (ChangeResult::Refused(error.text), error.status),
    };
    respond(&console, &visitor, frame, (form, result, status)).await
}

async fn previewed(
    console: &Console,
    visitor: &ConsoleVisitor,
    form: &ChangeForm,
) -> Result<ChangeResult, FormError> {
    let mut plan = plan(console, form).await?;
    if !plan.problems.is_empty() {
        return Ok(ChangeResult::Plan(plan));
    }
    let deadline = Deadline::within(MAX_TIME);
    let hasher = if sees_ids(visitor, &form.project) {
        None
    } else {
        let hasher = console.administrator.hasher().hasher(deadline).await;
        Some(hasher.map_err(|error| ProjectError::from(AdminError::Store(error)))?)
    };
    let tried = TriedRules { specs: mem::take(&mut plan.specs), others: Others::Deleted };
    let work = move |trial: &Trial, steps: &mut Steps| {
        let report = trial.preview(tried, None, steps)?;
        Ok((shown_keys(&report, hasher.as_ref()), report))
    };
    let kind = DryRunKind::Preview;
    let (keys, report) = console.projects.dry_run(&form.project, kind, deadline, work).await?;
    let RecentReport { simulation, from, to, mut undecidable, dropped, .. } = report;
    undecidable.sort();
    undecidable.dedup();
    let applies = |rule: &RuleReport| rule.counts.requests + rule.matched_before > 0;
    Ok(ChangeResult::Preview(Box::new(PreviewResult {
        plan,
        span: from.zip(to),
        invalid: simulation.invalid,
        is_incomplete: dropped > 0 || simulation.keys_dropped > 0 || !simulation.keys_are_exact,
        total: simulation.all,
        rules: simulation.rules.into_iter().filter(applies).collect(),
        keys,
        undecidable,
    })))
}

/// Returns the keys that are hit hardest, as the visitor may see them.
fn shown_keys(report: &RecentReport, hasher: Option<&KeyHasher>) -> Vec<HitHardest> {
    let hits = report.simulation.hardest_hit.iter();
    let hits = hits.filter(|hit| hit.allowed_to_refused > 0).take(MAX_KEYS);
    let shown = hits.map(|hit| HitHardest {
        rule: hit.rule.clone(),
        parts: shown_parts(hit, &report.candidate, hasher),
        newly_refused: hit.allowed_to_refused,
    });
    shown.collect()
}

fn shown_parts(hit: &HitKey, rules: &RuleSet, hasher: Option<&KeyHasher>) -> Vec<KeyPart> {
    let rule = if hit.rule == Rule::DEFAULT { "" } else { &*hit.rule };
    let (_, parts) = rules.describe(&Key::from_encoded_in(rules.project(), rule, &hit.id));
    let parts = parts.into_iter().map(key_part).collect();
    let mut key = KeyRef { parts, id: hit.id.clone(), storage_key: String::new() };
    if let Some(hasher) = hasher {
        hide_values(&mut key, hasher);
    }
    key.parts
}

impl PreviewResult {
    /// Returns the part of the page.
    pub(super) fn render(&self, has_instances: bool) -> Markup {
        let requests = self.total.requests.saturating_sub(self.invalid);
        html! {
            h2 { "On the requests of the last minutes" }
            @if requests == 0 {
                p.notice {
                    @if has_instances { "This instance has recorded no request of the project yet." }
                    @else { "No request of the project is recorded yet." }
                }
            } @else {
                p {
                    (number(requests)) " recorded requests"
                    @if has_instances { " of this instance" }
                    @if let Some((from, to)) = self.span {
                        ", " (time(Some(&timestamp(from)))) " to " (time(Some(&timestamp(to))))
                    }
                    ": " (number(self.total.refused)) " would be refused, " (number(self.total.refused_before))
                    " are by the rules in force; " strong { (number(self.total.allowed_to_refused)) " newly refused" }
                    ", " strong { (number(self.total.refused_to_allowed)) " newly allowed" } "."
                }
                (self.rule_table())
                (self.key_table())
            }
            @if self.is_incomplete {
                p.notice { "There were too many requests or keys: the numbers are not those of all." }
            }
            @if !self.undecidable.is_empty() {
                p.notice {
                    "Left out, because they look into hashed parts: "
                    @for (at, name) in self.undecidable.iter().enumerate() {
                        @if at > 0 { ", " } (foreign(name))
                    }
                }
            }
        }
    }

    fn rule_table(&self) -> Markup {
        let table = PageTable {
            of: "rules in the preview",
            caption: "Requests that each rule meets",
            columns: &[
                PageColumn::Text("Rule"),
                PageColumn::Number("Requests"),
                PageColumn::Number("Refused"),
                PageColumn::Number("In shadow"),
                PageColumn::Number("Newly refused"),
                PageColumn::Number("Newly allowed"),
                PageColumn::Number("Longest wait"),
            ],
        };
        html! {
            @if !self.rules.is_empty() {
                (table.with_rows(&html! {
                    @for RuleReport { rule, counts, .. } in &self.rules {
                        tr {
                            th scope="row" { (foreign(rule)) }
                            td.right { (number(counts.requests)) }
                            td.right { (number(counts.refused)) }
                            td.right { (number(counts.shadow_denied)) }
                            td.right { (number(counts.allowed_to_refused)) }
                            td.right { (number(counts.refused_to_allowed)) }
                            td.right {
                                @match counts.longest_wait {
                                    Some(wait) => (wait_text(wait)),
                                    None => span.muted { "none" }
                                }
                            }
                        }
                    }
                }))
            }
        }
    }

    fn key_table(&self) -> Markup {
        let table = PageTable {
            of: "keys that are hit hardest",
            caption: "Keys with the most newly refused requests",
            columns: &[
                PageColumn::Text("Key"),
                PageColumn::Text("Rule"),
                PageColumn::Number("Newly refused"),
            ],
        };
        html! {
            @if !self.keys.is_empty() {
                (table.with_rows(&html! {
                    @for HitHardest { rule, parts, newly_refused } in &self.keys {
                        tr {
                            th scope="row" {
                                @for (at, KeyPart { name, value }) in parts.iter().enumerate() {
                                    @if at > 0 { ", " }
                                    (foreign(name)) " = "
                                    @match value {
                                        Some(value) => (foreign(value)),
                                        None => span.muted { "any" }
                                    }
                                }
                            }
                            td { (foreign(rule)) }
                            td.right { (number(*newly_refused)) }
                        }
                    }
                }))
            }
        }
    }
}
