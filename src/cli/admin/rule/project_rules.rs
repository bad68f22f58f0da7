//! `rlaas rule list`, `get` and `delete`: the rules of a project.

use std::process::ExitCode;

use clap::Args;
use rlaas_proto::ratelimit::admin::v1::{
    DeleteRuleRequest, GetRuleRequest, ListRulesRequest, ListRulesResponse, ProjectRule,
};
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::ratelimit::v1::{PartMatcher, Rule, RuleOrigin};

use super::in_force;
use crate::cli::admin::call::{CallArgs, CommandError, CommandOutput, ProjectClient};
use crate::cli::admin::change::ConfirmArgs;
use crate::cli::admin::project::{ReasonArgs, project_id};
use crate::cli::admin::text;
use crate::cli::table::{Column, Table};

/// The project of a rule.
#[derive(Args, Debug)]
pub(super) struct OfProjectArgs {
    /// Id of the project; '_' is that of requests without a key [default: _]
    #[arg(long, value_name = "ID")]
    pub(super) project: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct ListRulesArgs {
    /// Most rules to list
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    max: usize,
    /// List all rules for requests without a key, in the modes of now
    #[arg(long, conflicts_with = "project")]
    in_force: bool,
    #[command(flatten)]
    of: OfProjectArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
pub(super) struct GetRuleArgs {
    /// Name of the rule
    rule: String,
    #[command(flatten)]
    of: OfProjectArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
pub(super) struct DeleteRuleArgs {
    /// Name of the rule
    rule: String,
    #[command(flatten)]
    of: OfProjectArgs,
    /// Refuse the change if the rule has another etag by now
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

impl OfProjectArgs {
    /// Returns the id as the protocol has it.
    pub(super) fn id(&self) -> String {
        self.project.as_deref().map(project_id).unwrap_or_default()
    }
}

pub(super) fn list(args: &ListRulesArgs) -> ExitCode {
    if args.in_force {
        return in_force::list(&args.call, args.max);
    }
    args.call.run_on_projects(async |projects| {
        let response = pages(projects, &args.of.id(), args.max).await?;
        if response.rules.is_empty() {
            let text = "no rules\n".to_owned();
            return Ok(CommandOutput::new("ListRulesResponse", &response, text));
        }
        let rest = if response.next_page_token.is_empty() { "" } else { "there are more: --max\n" };
        let text = table(&response.rules) + rest;
        Ok(CommandOutput::new("ListRulesResponse", &response, text))
    })
}

/// Reads pages up to the most rules to list. Its token is that of the rest.
pub(super) async fn pages(
    projects: &mut ProjectClient,
    project_id: &str,
    max: usize,
) -> Result<ListRulesResponse, CommandError> {
    let mut all = ListRulesResponse::default();
    loop {
        let left = max.saturating_sub(all.rules.len()).max(1);
        let request = ListRulesRequest {
            project_id: project_id.to_owned(),
            page_size: i32::try_from(left.min(1_000)).unwrap_or(1_000),
            page_token: all.next_page_token,
        };
        let page = projects.list_rules(request).await?.into_inner();
        all.rules.extend(page.rules);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() || all.rules.len() >= max {
            return Ok(all);
        }
    }
}

pub(super) fn get(args: &GetRuleArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let request = GetRuleRequest { project_id: args.of.id(), rule_name: args.rule.clone() };
        let response = projects.get_rule(request).await?.into_inner();
        let text = table(response.rule.as_slice());
        Ok(CommandOutput::new("GetRuleResponse", &response, text))
    })
}

pub(super) fn delete(args: &DeleteRuleArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let shown = text::value(&args.rule);
        args.confirm.confirm(&format!("Delete rule {shown}?"))?;
        let request = DeleteRuleRequest {
            project_id: args.of.id(),
            rule_name: args.rule.clone(),
            etag: args.etag.clone(),
            reason: args.reason.reason.clone(),
        };
        let response = projects.delete_rule(request).await?.into_inner();
        let text = format!("rule {shown} deleted\n");
        Ok(CommandOutput::new("DeleteRuleResponse", &response, text))
    })
}

pub(super) fn table(rules: &[ProjectRule]) -> String {
    let mut table = Table::new(&[
        Column::text("RULE"),
        Column::number("LIMIT"),
        Column::word("WINDOW"),
        Column::word("ALGORITHM"),
        Column::word("MODE"),
        Column::word("FROM"),
        Column::word("ETAG"),
        Column::text("MATCH"),
    ]);
    for ProjectRule { rule, etag, hidden, .. } in rules {
        let rule = rule.clone().unwrap_or_default();
        let from = if *hidden { "hidden" } else { origin(&rule) };
        table.push([
            text::value(&rule.name),
            text::units(rule.max_requests),
            text::wait(rule.window.as_ref()),
            algorithm(&rule),
            mode(&rule),
            from.to_owned(),
            text::words(etag),
            matchers(&rule),
        ]);
    }
    table.lines()
}

/// Returns where a rule comes from.
pub(super) fn origin(rule: &Rule) -> &'static str {
    match rule.origin.as_ref().map(RuleOrigin::kind) {
        Some(Kind::RunTime) => "run time",
        Some(Kind::BuiltIn) => "built in",
        Some(Kind::EnvoyFile) => "envoy file",
        _ => "file",
    }
}

pub(super) fn algorithm(rule: &Rule) -> String {
    rule.algorithm().as_str_name().to_lowercase().replace('_', "-")
}

pub(super) fn mode(rule: &Rule) -> String {
    rule.mode().as_str_name().trim_start_matches("RULE_MODE_").to_lowercase()
}

pub(super) fn matchers(rule: &Rule) -> String {
    let one = |PartMatcher { part, any_of }: &PartMatcher| {
        let texts: Vec<_> = any_of.iter().map(|text| text::value(text)).collect();
        format!("{}={}", text::value(part), texts.join("|"))
    };
    let all: Vec<_> = rule.matchers.iter().map(one).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}
