//! `rlaas rule create` and `set`: one rule, by options or from a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use prost_types::FieldMask;
use rlaas_proto::ratelimit::admin::v1::{CreateRuleRequest, UpdateRuleRequest};

use super::fields::{OptionalField, RuleFieldArgs};
use super::project_rules::{OfProjectArgs, table};
use super::source;
use crate::cli::admin::call::{CallArgs, CommandOutput};
use crate::cli::admin::project::{ReasonArgs, project_id};
use crate::cli::{EXIT_NO_RESPONSE, refuse};
use crate::config::Problems;
use crate::rule_messages;
use crate::rules::spec::RuleSpec;

#[derive(Args, Debug)]
#[command(override_usage = "rlaas rule create <NAME> --limit <N> --window <D> [OPTIONS]
       rlaas rule create [NAME] -f <FILE> [OPTIONS]")]
pub(super) struct CreateRuleArgs {
    #[command(flatten)]
    rule: OneRuleArgs,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
#[command(override_usage = "rlaas rule set <NAME> [--limit <N>] [--window <D>] … [OPTIONS]
       rlaas rule set [NAME] -f <FILE> [OPTIONS]")]
pub(super) struct SetRuleArgs {
    #[command(flatten)]
    rule: OneRuleArgs,
    /// Give a field its default again
    #[arg(long, value_enum, value_name = "FIELD", value_delimiter = ',', conflicts_with = "file")]
    unset: Vec<OptionalField>,
    /// Refuse the change if the rule has another etag by now
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// A rule, by options or from a file.
#[derive(Args, Debug)]
struct OneRuleArgs {
    /// Name of the rule; with a file that of its rule
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Rules file with one rule, in place of the fields below; '-' is standard input
    #[arg(long, short, conflicts_with = "fields")]
    file: Option<PathBuf>,
    #[command(flatten)]
    fields: RuleFieldArgs,
    #[command(flatten)]
    of: OfProjectArgs,
}

/// A rule and its project.
struct OneRule {
    project_id: String,
    spec: RuleSpec,
}

impl OneRuleArgs {
    fn read(&self) -> Result<OneRule, Problems> {
        let project = self.of.project.as_deref();
        let Some(file) = &self.file else {
            let project_id = project.map(project_id).unwrap_or_default();
            let spec = self.fields.spec(self.name.as_deref().unwrap_or_default());
            return Ok(OneRule { project_id, spec });
        };
        let source = source::read_one(file, project, self.name.as_deref())?;
        let spec = source.content.rules.into_iter().next().unwrap_or_default();
        Ok(OneRule { project_id: source.project, spec })
    }
}

pub(super) fn create(args: &CreateRuleArgs) -> ExitCode {
    let OneRule { project_id, spec } = match args.rule.read() {
        Ok(rule) => rule,
        Err(problems) => return refuse(&problems),
    };
    if let Err(problems) = spec.build() {
        for problem in problems {
            // The name is no option.
            let dashes = if problem.field == "name" { "" } else { "--" };
            eprintln!("rlaas: {dashes}{problem}");
        }
        return ExitCode::from(EXIT_NO_RESPONSE);
    }
    args.call.run_on_projects(async |projects| {
        let request = CreateRuleRequest {
            project_id,
            rule: Some(rule_messages::message(&spec)),
            reason: args.reason.reason.clone(),
        };
        let response = projects.create_rule(request).await?.into_inner();
        let text = table(response.rule.as_slice());
        Ok(CommandOutput::new("CreateRuleResponse", &response, text))
    })
}

pub(super) fn set(args: &SetRuleArgs) -> ExitCode {
    let OneRule { project_id, spec } = match args.rule.read() {
        Ok(rule) => rule,
        Err(problems) => return refuse(&problems),
    };
    let mut paths = args.rule.fields.paths();
    paths.extend(args.unset.iter().map(|field| field.path()));
    if args.rule.file.is_none() && paths.is_empty() {
        eprintln!("rlaas: a field to change is required, such as --limit, or a file with -f");
        return ExitCode::from(EXIT_NO_RESPONSE);
    }
    let paths: Vec<String> = paths.into_iter().map(str::to_owned).collect();
    args.call.run_on_projects(async |projects| {
        let request = UpdateRuleRequest {
            project_id,
            rule: Some(rule_messages::message(&spec)),
            update_mask: (!paths.is_empty()).then_some(FieldMask { paths }),
            etag: args.etag.clone(),
            allow_missing: false,
            reason: args.reason.reason.clone(),
        };
        let response = projects.update_rule(request).await?.into_inner();
        let text = table(response.rule.as_slice());
        Ok(CommandOutput::new("UpdateRuleResponse", &response, text))
    })
}
