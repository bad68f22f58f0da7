//! The section `telemetry`.

use figment::value::Value;

use super::preview;
use super::privacy::PrivacySettings;
use super::record;
use super::section::Section;
use super::setting::Setting;
use super::values::{self, Read};
use crate::telemetry::TelemetrySettings;
use crate::telemetry::log::{LogFilter, LogFormat, LogSettings};
use crate::telemetry::traces::{OtlpSettings, SampleRatio};

const TELEMETRY: Setting = Setting::new("telemetry", "Logs, traces and recordings.");
const LOG: Setting = Setting::new(
    "log",
    "Log level, or levels by target. RUST_LOG has the same format. Changes are reloaded. Logs \
     go to standard error.",
);
const FORMAT: Setting = Setting::new("format", "text: for people. json: one object per line.");
const OTLP: Setting = Setting::new("otlp", "Traces, sent to an OTLP collector over gRPC.");
const ENDPOINT: Setting =
    Setting::new("endpoint", "Address of the collector. Without it there are no traces.")
        .example("http://127.0.0.1:4317");
const SAMPLE_RATIO: Setting = Setting::new(
    "sample-ratio",
    "Share of the calls that are sampled if the caller has not decided it (traceparent).",
);
const TOP_KEYS: Setting = Setting::new(
    "top-keys",
    "true: count the keys of each rule that are denied, near the limit, or use most, for TopKeys. \
     At most 64 MiB of memory.",
);
const PROJECTS: Setting = Setting::new(
    "projects",
    "Most projects with metrics of their own. The others are counted together as other.",
);

pub(super) fn read(root: &mut Section<'_>, privacy: &PrivacySettings) -> TelemetrySettings {
    let mut section = root.section(TELEMETRY);
    let filter = section.read(LOG, "info", filter);
    let format = section.read(FORMAT, "text", |value| {
        values::word(value, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
    });
    let mut otlp = section.section(OTLP);
    let endpoint = otlp.optional(ENDPOINT, values::parsed);
    let sample_ratio = otlp.read(SAMPLE_RATIO, "1", ratio);
    otlp.close();
    let has_top_keys = section.read(TOP_KEYS, "false", values::boolean);
    let max_projects = section.read(PROJECTS, "1000", values::count(10_000));
    let record = record::read(&mut section, privacy);
    let preview = preview::read(&mut section, privacy);
    section.close();
    let otlp = endpoint.map(|endpoint| OtlpSettings { endpoint, sample_ratio });
    let log = LogSettings { filter, format };
    let max_projects = max_projects as usize;
    TelemetrySettings { log, otlp, has_top_keys, max_projects, record, preview }
}

/// Reads a filter. YAML parses `off` without quotes as a boolean.
fn filter(value: &Value) -> Read<LogFilter> {
    match value {
        Value::Bool(_, false) => values::parsed(&Value::from("off")),
        value => values::parsed(value),
    }
}

fn ratio(value: &Value) -> Read<SampleRatio> {
    // A value that is not a number becomes NaN, which is rejected.
    let ratio = values::scalar(value).and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
    Ok((SampleRatio::new(ratio)?, ratio.to_string()))
}
