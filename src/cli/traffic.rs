//! The options of traffic, of `simulate`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::{Args, ValueEnum};
use rlaas_simulation::simulation::MaxShare;
use rlaas_simulation::traffic::format::{Envelope, LogFormat};
use rlaas_simulation::traffic::{StampedAt, Traffic, TrafficCounts, TrafficInput, TrafficSettings};

use crate::projects::ProjectId;

/// Which traffic is read, and how.
#[expect(clippy::doc_markdown, reason = "the help of options, where backticks would be shown")]
#[derive(Args, Debug)]
pub(super) struct TrafficArgs {
    /// Access log, recording or a folder of them, also in gzip or zstd; - is standard input;
    /// several are merged by time
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    traffic: Vec<PathBuf>,
    /// Format of the logs: common, combined, vhost_combined, nginx:FORMAT, envoy-json, jsonl, w3c or
    /// regex:EXPRESSION with named groups; recordings need none
    #[arg(long, value_parser = format)]
    format: Option<LogFormat>,
    /// What becomes a part of the request: user_id, resource, attributes.NAME, cost; domain and
    /// entries.KEY for Envoy's rules; time, duration, status. EXPRESSION has fields, texts in quotes
    /// and functions, such as resource='path($uri)' or user_id='"ip:" ip($remote_addr)'
    #[arg(long, value_name = "NAME=EXPRESSION")]
    map: Vec<String>,
    /// Project whose requests are read from recordings [default: requests without a project, and
    /// Envoy's]; logs have no projects, so that all of their lines are of this one
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true, value_parser = project)]
    pub(super) project: String,
    /// Lines that the limiter would see, such as '$uri =~ "^/api/" and status != 301'; of several
    /// conditions all must hold
    #[arg(long = "where", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// Whether times are those of a request's start or end; known formats say so
    #[arg(long, value_enum)]
    stamp: Option<StampArg>,
    /// Zone of times that have none, such as Europe/Berlin or +02:00
    #[arg(long)]
    zone: Option<String>,
    /// Time by which lines may be out of order
    #[arg(long, value_name = "D", default_value = "60s", value_parser = humantime::parse_duration)]
    reorder: Duration,
    /// Time between two lines that is believed at once; a line further ahead must be followed by the
    /// next 100
    #[arg(long, value_name = "D", default_value = "1d", value_parser = humantime::parse_duration)]
    max_gap: Duration,
    /// Statuses of lines to leave out; 429 also leaves out what a recording says was refused
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    skip_status: Vec<u16>,
    /// What a container runtime has put around each line
    #[arg(long, value_enum, default_value = "auto")]
    envelope: EnvelopeArg,
    /// Largest share of lines that can't be read; with more the exit code is 2
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    max_unreadable: MaxShare,
    /// Accept inputs that end too early or are corrupt
    #[arg(long)]
    allow_truncated: bool,
}

/// The point of a request that its time shows.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum StampArg {
    Start,
    End,
}

/// What a container runtime has put around each line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EnvelopeArg {
    Auto,
    None,
    Docker,
    Cri,
}

impl TrafficArgs {
    /// Opens the traffic.
    pub(super) fn open(&self) -> anyhow::Result<Traffic> {
        let mut inputs = Vec::with_capacity(self.traffic.len());
        for path in &self.traffic {
            if path.is_dir() {
                inputs.extend(files_of(path)?);
            } else {
                inputs.push(TrafficInput::from_argument(path));
            }
        }
        Ok(Traffic::open(&self.settings(inputs))?)
    }

    fn settings(&self, inputs: Vec<TrafficInput>) -> TrafficSettings {
        let mut settings = TrafficSettings::new(inputs);
        let envelope = match self.envelope {
            EnvelopeArg::Auto => Envelope::Auto,
            EnvelopeArg::None => Envelope::None,
            EnvelopeArg::Docker => Envelope::Docker,
            EnvelopeArg::Cri => Envelope::Cri,
        };
        settings.format = self.format.clone().map(|format| format.within(envelope));
        settings.mappings.clone_from(&self.map);
        settings.conditions.clone_from(&self.conditions);
        settings.zone.clone_from(&self.zone);
        settings.stamped_at = self.stamp.map(|stamp| match stamp {
            StampArg::Start => StampedAt::Start,
            StampArg::End => StampedAt::End,
        });
        settings.reorder = self.reorder.into();
        settings.max_gap = self.max_gap.into();
        settings.skip_statuses.clone_from(&self.skip_status);
        settings.project.clone_from(&self.project);
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

/// Parses a format. Says all that is known of an error.
fn format(text: &str) -> Result<LogFormat, String> {
    text.parse::<LogFormat>().map_err(|error| format!("{:#}", anyhow::Error::from(error)))
}

/// Parses the id of a project: empty or `_` for none.
fn project(text: &str) -> Result<String, String> {
    if text.is_empty() || text == "_" {
        return Ok(String::new());
    }
    let id = text.parse::<ProjectId>();
    id.map(|id| id.to_string()).map_err(|error| error.to_string())
}

/// Returns the files of a folder by their names, without hidden ones and without those of folders in
/// it.
fn files_of(folder: &Path) -> anyhow::Result<Vec<TrafficInput>> {
    let failed = || format!("{}: cannot be read", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let is_hidden =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.is_file() {
            paths.push(path);
        }
    }
    ensure!(!paths.is_empty(), "{}: must have files", folder.display());
    paths.sort_unstable();
    Ok(paths.into_iter().map(TrafficInput::File).collect())
}
