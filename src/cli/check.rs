//! `rlaas check`: asks a running server once.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::client::{ServerArgs, no_answer, runtime};
use super::{NO, NO_ANSWER, key_value};
use crate::api::is_no_rule;
use crate::api::proto::check_response::{Reason, Source};
use crate::api::proto::rate_limit_service_client::RateLimitServiceClient;
use crate::api::proto::{Algorithm, CheckRequest, CheckResponse};

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// Who asks
    user: String,
    /// What is asked for, such as a path
    #[arg(long, default_value = "")]
    resource: String,
    /// Anything else that rules look at; may be given several times
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = key_value)]
    attributes: Vec<(String, String)>,
    /// Units to take; 0 looks without taking
    #[arg(long)]
    cost: Option<u64>,
    /// Decide for this cost and take nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(args: CheckArgs) -> ExitCode {
    let json = args.json;
    let user = args.user.clone();
    match runtime().and_then(|runtime| runtime.block_on(ask(args))) {
        Ok(response) => {
            let answer = Answer::from(&response);
            println!("{}", if json { answer.to_json() } else { answer.to_text(&user) });
            if response.allowed { ExitCode::SUCCESS } else { ExitCode::from(NO) }
        }
        Err(error) => {
            eprintln!("rlaas: {error:#}");
            ExitCode::from(NO_ANSWER)
        }
    }
}

async fn ask(args: CheckArgs) -> anyhow::Result<CheckResponse> {
    let mut client = RateLimitServiceClient::new(args.server.connect().await?);
    let attributes: HashMap<String, String> = args.attributes.into_iter().collect();
    let request = CheckRequest {
        user_id: args.user,
        resource: args.resource,
        attributes,
        cost: args.cost,
        dry_run: args.dry_run,
    };
    match client.check(request).await {
        Ok(response) => Ok(response.into_inner()),
        Err(status) if is_no_rule(&status) => {
            Ok(CheckResponse { reason: Reason::NoRule.into(), ..CheckResponse::default() })
        }
        Err(status) => Err(no_answer(status)),
    }
}

/// A response for people and for `jq`: durations are texts such as `59.998s`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    allowed: bool,
    current_count: i64,
    ttl: i64,
    limit: i64,
    remaining: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<String>,
    reset_after: String,
    rule: String,
    algorithm: &'static str,
    source: &'static str,
    reason: &'static str,
}

impl From<&CheckResponse> for Answer {
    fn from(response: &CheckResponse) -> Self {
        let algorithm = Algorithm::try_from(response.algorithm).unwrap_or_default();
        let source = Source::try_from(response.source).unwrap_or_default();
        let reason = Reason::try_from(response.reason).unwrap_or_default();
        Self {
            allowed: response.allowed,
            current_count: response.current_count,
            ttl: response.ttl,
            limit: response.limit,
            remaining: response.remaining,
            retry_after: response.retry_after.as_ref().map(show),
            reset_after: response.reset_after.as_ref().map(show).unwrap_or_default(),
            rule: response.rule.clone(),
            algorithm: algorithm.as_str_name(),
            source: source.as_str_name(),
            reason: reason.as_str_name(),
        }
    }
}

impl Answer {
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and booleans are JSON")
    }

    fn to_text(&self, user: &str) -> String {
        let Self { remaining, limit, reset_after, rule, .. } = self;
        let user = user.escape_debug();
        if self.reason == Reason::NoRule.as_str_name() {
            let outcome = if self.allowed { "allowed " } else { "denied  " };
            return format!("{outcome} {user}: no rule matches ({})", self.reason);
        }
        if self.source != Source::Store.as_str_name() {
            let outcome = if self.allowed { "allowed " } else { "denied  " };
            return format!("{outcome} {user}: {}, {} ({rule})", self.source, self.reason);
        }
        match (self.allowed, &self.retry_after) {
            (true, _) => {
                format!(
                    "allowed  {user}: {remaining} of {limit} left, all in {reset_after} ({rule})"
                )
            }
            (false, Some(wait)) => format!("denied   {user}: try again in {wait} ({rule})"),
            (false, None) => format!("denied   {user}: {} of limit {limit} ({rule})", self.reason),
        }
    }
}

fn show(duration: &prost_types::Duration) -> String {
    let seconds = u64::try_from(duration.seconds).unwrap_or_default();
    let nanos = u32::try_from(duration.nanos).unwrap_or_default();
    let duration = Duration::new(seconds, nanos);
    let decimals = format!("{}.{:06}", duration.as_secs(), duration.subsec_micros());
    format!("{}s", decimals.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_seconds_and_exact() {
        let show = |seconds, nanos| show(&prost_types::Duration { seconds, nanos });
        assert_eq!(show(60, 0), "60s");
        assert_eq!(show(59, 998_000_000), "59.998s");
        assert_eq!(show(1, 1_000), "1.000001s");
        assert_eq!(show(0, 0), "0s");
    }
}
