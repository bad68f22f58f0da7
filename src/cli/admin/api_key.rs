//! `rlaas key`: the API keys of projects.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use rlaas_proto::ratelimit::admin::v1::api_key::State;
use rlaas_proto::ratelimit::admin::v1::{
    ApiKey, CreateKeyRequest, ListKeysRequest, ListKeysResponse, RevokeKeyRequest, RotateKeyRequest,
};

use super::call::{CallArgs, CommandError, CommandOutput, ProjectClient};
use super::change::{ConfirmArgs, RequestIdArgs, span};
use super::project::{ReasonArgs, project_id};
use super::text;
use crate::cli::table::{Column, Table};

#[derive(Args, Debug)]
pub(in crate::cli) struct ApiKeyArgs {
    #[command(subcommand)]
    command: ApiKeyCommand,
}

#[derive(Debug, Subcommand)]
enum ApiKeyCommand {
    /// Create a key, and print its secret, which nobody can see again
    Create(CreateKeyArgs),
    /// List the keys of a project, newest first; never their secrets
    List(ListKeysArgs),
    /// Create a key in place of another one, which stays valid for a time; print its secret
    Rotate(RotateKeyArgs),
    /// End a key at once; asks on a terminal
    Revoke(RevokeKeyArgs),
}

#[derive(Args, Debug)]
struct CreateKeyArgs {
    /// Id of the project
    project: String,
    /// Name for people: up to 128 bytes
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Part of the prefix of the secret: 1 to 16 of a-z, 0-9 [default: live]
    #[arg(long, value_name = "TEXT")]
    environment: Option<String>,
    /// End, such as 90d (from now) or 2027-01-31T00:00:00Z [default: none]
    #[arg(long, value_name = "WHEN", value_parser = end)]
    expires: Option<SystemTime>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    request: RequestIdArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
struct ListKeysArgs {
    /// Id of the project
    project: String,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
struct RotateKeyArgs {
    /// Id of the project
    project: String,
    /// Id of the key
    id: String,
    /// Time that the replaced key stays valid: 0s to 30d
    #[arg(long, value_name = "D", default_value = "24h", value_parser = grace_time)]
    grace: Duration,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    request: RequestIdArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Args, Debug)]
struct RevokeKeyArgs {
    /// Id of the project
    project: String,
    /// Id of the key
    id: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(in crate::cli) fn run(args: &ApiKeyArgs) -> ExitCode {
    match &args.command {
        ApiKeyCommand::Create(args) => create(args),
        ApiKeyCommand::List(args) => list(args),
        ApiKeyCommand::Rotate(args) => rotate(args),
        ApiKeyCommand::Revoke(args) => revoke(args),
    }
}

fn create(args: &CreateKeyArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let key = ApiKey {
            display_name: args.name.clone().unwrap_or_default(),
            environment: args.environment.clone().unwrap_or_default(),
            expires_at: args.expires.map(Into::into),
            ..ApiKey::default()
        };
        let request = CreateKeyRequest {
            project_id: project_id(&args.project),
            key: Some(key),
            request_id: args.request.request_id()?,
            reason: args.reason.reason.clone(),
        };
        let response = projects.create_key(request).await?.into_inner();
        let output =
            CommandOutput::new("CreateKeyResponse", &response, secret_line(&response.secret));
        Ok(output.with_warning(secret_warning(response.key.as_ref(), &response.secret)))
    })
}

fn list(args: &ListKeysArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let response = all_keys(projects, &project_id(&args.project)).await?;
        let text =
            if response.keys.is_empty() { "no keys\n".to_owned() } else { table(&response.keys) };
        Ok(CommandOutput::new("ListKeysResponse", &response, text))
    })
}

async fn all_keys(
    projects: &mut ProjectClient,
    project_id: &str,
) -> Result<ListKeysResponse, CommandError> {
    let mut all = ListKeysResponse::default();
    loop {
        let request = ListKeysRequest {
            project_id: project_id.to_owned(),
            page_size: 1_000,
            page_token: all.next_page_token,
        };
        let page = projects.list_keys(request).await?.into_inner();
        all.keys.extend(page.keys);
        all.next_page_token = page.next_page_token;
        if all.next_page_token.is_empty() {
            return Ok(all);
        }
    }
}

fn rotate(args: &RotateKeyArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let request = RotateKeyRequest {
            project_id: project_id(&args.project),
            key_id: args.id.clone(),
            grace: Some(span(args.grace)),
            request_id: args.request.request_id()?,
            reason: args.reason.reason.clone(),
        };
        let response = projects.rotate_key(request).await?.into_inner();
        let mut warning = secret_warning(response.key.as_ref(), &response.secret);
        if let Some(ApiKey { id, expires_at, .. }) = &response.previous {
            let end = text::time(expires_at.as_ref());
            warning = format!("{warning}; key {} ends at {end}", text::value(id));
        }
        let output =
            CommandOutput::new("RotateKeyResponse", &response, secret_line(&response.secret));
        Ok(output.with_warning(warning))
    })
}

fn revoke(args: &RevokeKeyArgs) -> ExitCode {
    args.call.run_on_projects(async |projects| {
        let shown = text::value(&args.id);
        args.confirm.confirm(&format!("Revoke key {shown}?"))?;
        let request = RevokeKeyRequest {
            project_id: project_id(&args.project),
            key_id: args.id.clone(),
            reason: args.reason.reason.clone(),
        };
        let response = projects.revoke_key(request).await?.into_inner();
        let state = response.key.as_ref().map_or("revoked", state);
        let text = format!("key {shown} is {state}\n");
        Ok(CommandOutput::new("RevokeKeyResponse", &response, text))
    })
}

/// Returns the secret alone, for programs that read the output; nothing if there is none.
fn secret_line(secret: &str) -> String {
    if secret.is_empty() { String::new() } else { format!("{secret}\n") }
}

fn secret_warning(key: Option<&ApiKey>, secret: &str) -> String {
    let id = key.map_or_else(|| "-".to_owned(), |key| text::value(&key.id));
    if secret.is_empty() {
        format!("key {id} was created before, under this request id; rotate it for a new secret")
    } else {
        format!("this is the only copy of the secret of key {id}")
    }
}

fn table(keys: &[ApiKey]) -> String {
    let mut table = Table::new(&[
        Column::word("KEY"),
        Column::word("STATE"),
        Column::word("ENVIRONMENT"),
        Column::word("CREATED"),
        Column::word("EXPIRES"),
        Column::word("LAST USED"),
        Column::word("REPLACED BY"),
        Column::text("NAME"),
    ]);
    for key in keys {
        table.push([
            text::value(&key.id),
            state(key).to_owned(),
            text::value(&key.environment),
            text::time(key.created_at.as_ref()),
            text::time(key.expires_at.as_ref()),
            text::time(key.last_used_at.as_ref()),
            text::words(&key.replaced_by),
            text::words(&key.display_name),
        ]);
    }
    table.lines()
}

fn state(key: &ApiKey) -> &'static str {
    match key.state() {
        State::Unspecified => "unknown",
        State::Active => "active",
        State::Expired => "expired",
        State::Revoked => "revoked",
    }
}

#[expect(clippy::disallowed_methods, reason = "keys end by wall time")]
fn end(text: &str) -> Result<SystemTime, &'static str> {
    let from_now =
        humantime::parse_duration(text).ok().and_then(|time| SystemTime::now().checked_add(time));
    from_now
        .or_else(|| humantime::parse_rfc3339(text).ok())
        .ok_or("must be a duration, such as 90d, or a time, such as 2027-01-31T00:00:00Z")
}

fn grace_time(text: &str) -> Result<Duration, &'static str> {
    const MAX: Duration = Duration::from_hours(30 * 24);
    let grace = humantime::parse_duration(text).ok().filter(|grace| *grace <= MAX);
    grace.ok_or("must be a duration from 0s to 30d, such as 1h")
}
