//! `rlaas rule create` and `set`: the rule of a file, and what is checked before the server is asked.

use std::path::Path;
use std::process::ExitCode;

use rlaas_cli::{EXIT_NO_RESPONSE, Invocation};
use rlaas_proto::ratelimit::admin::v1::{CreateRuleRequest, UpdateRuleRequest};
use rlaas_proto::ratelimit::v1::Rule;

use super::source;
use crate::cli::refuse;
use crate::rule_messages;

/// Runs a command of the tables.
pub(in crate::cli) fn run_table(mut invocation: Invocation<'_>) -> ExitCode {
    let prepared = match invocation.words() {
        "rule create" => prepare_create(&mut invocation),
        "rule set" => prepare_set(&mut invocation),
        _ => Ok(()),
    };
    match prepared {
        Ok(()) => invocation.run(),
        Err(code) => code,
    }
}

fn prepare_create(invocation: &mut Invocation<'_>) -> Result<(), ExitCode> {
    let mut request: CreateRuleRequest = invocation.request();
    let mut spec = rule_messages::spec(&request.rule.take().unwrap_or_default());
    if let Some((project_id, rule)) = of_file(invocation)? {
        request.project_id = project_id;
        spec = rule_messages::spec(&rule);
    }
    if let Err(problems) = spec.build() {
        for problem in problems {
            // The name is no option.
            let dashes = if problem.field == "name" { "" } else { "--" };
            eprintln!("rlaas: {dashes}{problem}");
        }
        return Err(ExitCode::from(EXIT_NO_RESPONSE));
    }
    request.rule = Some(rule_messages::message(&spec));
    invocation.set_request(&request);
    Ok(())
}

fn prepare_set(invocation: &mut Invocation<'_>) -> Result<(), ExitCode> {
    let mut request: UpdateRuleRequest = invocation.request();
    if let Some((project_id, rule)) = of_file(invocation)? {
        request.project_id = project_id;
        request.rule = Some(rule);
        invocation.set_request(&request);
    } else if request.update_mask.is_none() {
        eprintln!("rlaas: a field to change is required, such as --limit, or a file with -f");
        return Err(ExitCode::from(EXIT_NO_RESPONSE));
    }
    Ok(())
}

/// Returns the project and the rule of the file, if the command has one.
fn of_file(invocation: &Invocation<'_>) -> Result<Option<(String, Rule)>, ExitCode> {
    let Some(file) = invocation.text("file") else { return Ok(None) };
    let (project, name) = (invocation.text("project"), invocation.text("NAME"));
    let source = source::read_one(Path::new(file), project, name);
    let source = source.map_err(|problems| refuse(&problems))?;
    let spec = source.content.rules.into_iter().next().unwrap_or_default();
    Ok(Some((source.project, rule_messages::message(&spec))))
}
