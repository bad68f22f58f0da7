//! The section `telemetry`.

use std::time::Duration;

use figment::value::Value;
use rlaas_telemetry::TelemetrySettings;
use rlaas_telemetry::log::{LogFilter, LogFormat, LogSettings};
use rlaas_telemetry::otlp::{
    CollectorAuthorities, CollectorSettings, Endpoint, HeadersError, OtlpHeaders, OtlpSettings,
    SampleRatio,
};

use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, PEM_FILE, Read, pem_path, read_pem};

const TELEMETRY: Setting = Setting::new("telemetry", "Logs, metrics and traces.");
const LOG: Setting = Setting::new(
    "log",
    "Log level, or levels by target. RUST_LOG has the same format. Changes are reloaded. Logs \
     go to standard error.",
);
const FORMAT: Setting = Setting::new("format", "text: for people. json: one object per line.");
const OTLP: Setting =
    Setting::new("otlp", "Traces and metrics, sent to an OTLP collector over gRPC.");
const ENDPOINT: Setting =
    Setting::new("endpoint", "Address of the collector. Without it nothing is sent.")
        .example("http://127.0.0.1:4317");
const HEADERS: Setting = Setting::new(
    "headers",
    "Headers of each export, which a collector may require. Their values are never shown.",
)
.example("{authorization: 'Bearer TOKEN'}");
const CA: Setting = Setting::new(
    "ca",
    "PEM file of authorities for the certificate of the collector, in place of those of the system.",
)
.example("/etc/rlaas/collector-ca.crt");
const TRACES: Setting = Setting::new("traces", "false: send no traces.");
const METRICS: Setting =
    Setting::new("metrics", "true: push the metrics, too. /metrics stays as it is.");
const METRICS_INTERVAL: Setting = Setting::new("metrics-interval", "Time between two pushes.");
const SAMPLE_RATIO: Setting = Setting::new(
    "sample-ratio",
    "Share of the calls that are sampled if the caller has not decided it (traceparent).",
);
const ENVOY_NAMES: Setting = Setting::new(
    "envoy-names",
    "true: metrics of descriptors also have the names that dashboards of Envoy Gateway read: \
     ratelimit_service_rate_limit_over_limit and others.",
);
const TOP_KEYS: Setting = Setting::new(
    "top-keys",
    "true: count the keys of each rule that are denied, near the limit, or use most, for TopKeys. \
     At most 64 MiB of memory. Without it: true if server.console is set, else false.",
);
const PROJECTS: Setting = Setting::new(
    "projects",
    "Most projects with metrics of their own. The others are counted together as other.",
);

pub(super) fn read(root: &mut Section<'_>, has_console: bool) -> TelemetrySettings {
    let mut section = root.section(TELEMETRY);
    let filter = section.read(LOG, "info", filter);
    let format = section.read(FORMAT, "text", |value| {
        values::word(value, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
    });
    let otlp = otlp(&mut section);
    let has_envoy_names = section.read(ENVOY_NAMES, "false", values::boolean);
    let has_top_keys =
        section.read(TOP_KEYS, if has_console { "true" } else { "false" }, values::boolean);
    let max_projects = section.read(PROJECTS, "1000", values::count(10_000));
    section.close();
    let log = LogSettings { filter, format };
    let max_projects = max_projects as usize;
    TelemetrySettings { log, otlp, has_envoy_names, has_top_keys, max_projects }
}

/// Reads the section `otlp`. Returns `None` without an endpoint.
fn otlp(telemetry: &mut Section<'_>) -> Option<OtlpSettings> {
    let mut section = telemetry.section(OTLP);
    let endpoint: Option<Endpoint> = section.optional(ENDPOINT, values::parsed);
    let headers = section.optional(HEADERS, headers).unwrap_or_default();
    let authorities = section.optional(CA, authorities);
    if endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_https()) && section.has(CA.key) {
        section.refuse(CA.key, Invalid::new("requires an https endpoint"));
    }
    let has_traces = section.read(TRACES, "true", values::boolean);
    let sample_ratio = section.read(SAMPLE_RATIO, "1", ratio);
    let has_metrics = section.read(METRICS, "false", values::boolean);
    let interval = section.read(METRICS_INTERVAL, "30s", |value| {
        let range = Duration::from_secs(1)..=Duration::from_hours(1);
        values::duration(value, range, "must be a duration from 1s to 1h, such as 30s")
    });
    if endpoint.is_none() && has_metrics {
        section.refuse(METRICS.key, Invalid::new("requires an endpoint"));
    }
    section.close();
    Some(OtlpSettings {
        collector: CollectorSettings { endpoint: endpoint?, headers, authorities },
        traces: has_traces.then_some(sample_ratio),
        metrics: has_metrics.then_some(interval),
    })
}

/// Reads headers, whose values may be secrets.
pub(super) fn headers(value: &Value) -> Read<OtlpHeaders> {
    let given = value.as_dict().ok_or(HeadersError)?;
    let texts: Option<Vec<_>> =
        given.iter().map(|(name, value)| Some((name.as_str(), values::scalar(value)?))).collect();
    let texts = texts.ok_or(HeadersError)?;
    let headers = OtlpHeaders::new(texts.iter().map(|(name, text)| (*name, text.as_str())))?;
    let shown: Vec<String> = texts.iter().map(|(name, _)| format!("{name}: '***'")).collect();
    Ok((headers, format!("{{{}}}", shown.join(", "))))
}

/// Reads a file of certificates.
fn authorities(value: &Value) -> Read<CollectorAuthorities> {
    let (path, shown) = pem_path(value)?;
    let pem = read_pem(&path).map_err(|_| PEM_FILE)?;
    Ok((CollectorAuthorities::from_pem(pem)?, shown))
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
