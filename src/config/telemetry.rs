//! The section `telemetry`.

use super::section::Section;
use super::values;
use crate::telemetry::TelemetrySettings;
use crate::telemetry::log::{LogFormat, LogSettings};

pub(super) fn read(root: &mut Section<'_>) -> TelemetrySettings {
    let mut section = root.section("telemetry");
    let filter = section.read("log", "info", values::parsed);
    let format = section.read("format", "text", |value| {
        values::word(value, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
    });
    section.close();
    TelemetrySettings { log: LogSettings { filter, format } }
}
