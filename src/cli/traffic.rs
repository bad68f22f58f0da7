//! The options of traffic, of `simulate`.

use std::error::Error;
use std::path::PathBuf;

use anyhow::{anyhow, ensure};
use clap::Args;
use rlaas_auth::ProjectId;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::json::message;
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_proto::values::check_request;
use rlaas_simulation::RecordedRequest;
use rlaas_simulation::simulation::MaxShare;
use rlaas_simulation::traffic::{LogFormat, Traffic, TrafficCounts, TrafficInput, TrafficSettings};
use serde_json::Value;

use crate::api::envoy;

/// Which traffic is read, and how.
#[expect(clippy::doc_markdown, reason = "the help of options, where backticks would be shown")]
#[derive(Args, Debug)]
pub(super) struct TrafficArgs {
    /// Access log or lines of requests, also .gz; - is standard input; several, at most 100, are merged
    /// by time
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    traffic: Vec<PathBuf>,
    /// Format of the logs: common, combined, jsonl, envoy-json or regex:EXPRESSION with named groups;
    /// without it each line is a request with its time
    #[arg(long, value_parser = format)]
    format: Option<LogFormat>,
    /// Field of a line that becomes a part of the request: user_id, resource, attributes.NAME, cost;
    /// time and status; such as user_id=user.id
    #[arg(long, value_name = "NAME=FIELD")]
    map: Vec<String>,
    /// Project of the requests [default: none]
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true, value_parser = project)]
    pub(super) project: String,
    /// Largest share of lines that can't be read; with more the exit code is 2
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    max_unreadable: MaxShare,
    /// Accept inputs that end too early or are corrupt
    #[arg(long)]
    allow_truncated: bool,
}

impl TrafficArgs {
    /// Opens the traffic.
    pub(super) fn open(&self) -> anyhow::Result<Traffic> {
        let inputs = self.traffic.iter().map(|path| TrafficInput::from_argument(path));
        Ok(Traffic::open(&self.settings(inputs.collect()))?)
    }

    fn settings(&self, inputs: Vec<TrafficInput>) -> TrafficSettings {
        let mut settings = TrafficSettings::new(inputs, read_request);
        settings.format.clone_from(&self.format);
        settings.mappings.clone_from(&self.map);
        settings
    }

    /// Checks that enough of the traffic was read.
    pub(super) fn check_read(&self, counts: &TrafficCounts) -> anyhow::Result<()> {
        ensure!(
            self.max_unreadable.holds(counts.unread, counts.readable()),
            "{} of {} lines could not be read, more than --max-unreadable {}",
            counts.unread,
            counts.readable(),
            self.max_unreadable
        );
        ensure!(
            counts.damaged.is_empty() || self.allow_truncated,
            "an input ends too early or is corrupt: --allow-truncated accepts what was read"
        );
        Ok(())
    }
}

/// Returns the error that there is no result, with the fields that no line has if that may be why.
pub(super) fn no_result(what: &str, counts: &TrafficCounts) -> anyhow::Error {
    let fields = counts.absent_fields.join(", ");
    if fields.is_empty() {
        return anyhow!("{what}");
    }
    anyhow!("{what}: no line has a value for {fields}")
}

/// Reads the request of a line: a message in the JSON mapping of protobuf.
fn read_request(json: Value) -> Result<RecordedRequest, Box<dyn Error + Send + Sync>> {
    if ["domain", "descriptors"].iter().any(|field| json.get(field).is_some()) {
        let name = "envoy.service.ratelimit.v3.RateLimitRequest";
        let request: RateLimitRequest = message(name, json)?;
        return Ok(RecordedRequest::from(&envoy::parse(&request)?));
    }
    let request: CheckRequest = message("ratelimit.v1.CheckRequest", json)?;
    if request.dry_run || !request.costs.is_empty() {
        return Err("dry_run and costs must be left out".into());
    }
    Ok(RecordedRequest::from(&check_request(&request)?))
}

/// Parses a format.
fn format(text: &str) -> Result<LogFormat, String> {
    text.parse::<LogFormat>().map_err(|error| error.to_string())
}

/// Parses the id of a project: empty or `_` for none.
fn project(text: &str) -> Result<String, String> {
    if text.is_empty() || text == "_" {
        return Ok(String::new());
    }
    let id = text.parse::<ProjectId>();
    id.map(|id| id.to_string()).map_err(|error| error.to_string())
}
