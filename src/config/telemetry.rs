//! The section `telemetry`.

use figment::value::Value;

use super::section::Section;
use super::values::{self, Read};
use crate::telemetry::TelemetrySettings;
use crate::telemetry::log::{LogFilter, LogFormat, LogSettings};
use crate::telemetry::traces::{OtlpSettings, SampleRatio};

pub(super) fn read(root: &mut Section<'_>) -> TelemetrySettings {
    let mut section = root.section("telemetry");
    let filter = section.read("log", "info", filter);
    let format = section.read("format", "text", |value| {
        values::word(value, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
    });
    let mut otlp = section.section("otlp");
    let endpoint = otlp.optional("endpoint", values::parsed);
    let sample_ratio = otlp.read("sample-ratio", "1", ratio);
    otlp.close();
    section.close();
    let otlp = endpoint.map(|endpoint| OtlpSettings { endpoint, sample_ratio });
    TelemetrySettings { log: LogSettings { filter, format }, otlp }
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
