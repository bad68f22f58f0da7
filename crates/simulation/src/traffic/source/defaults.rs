//! Mappings that follow from a format.

use crate::traffic::format::{DurationUnit, KnownFields, LineParser, LogFormat, StampForm};
use crate::traffic::mapping::field_text;

/// Fields of a format that requests are made of, where that is obvious.
struct RequestFieldNames {
    format: &'static str,
    client: &'static str,
    path: &'static str,
    forwarded: &'static str,
}

/// Names that formats have by themselves, and those of JSON logs that Envoy's documentation and
/// Istio use. Of several the first one is taken that the format has.
const REQUEST_FIELDS: [RequestFieldNames; 8] = [
    RequestFieldNames { format: "common", client: "host", path: "uri", forwarded: "" },
    RequestFieldNames { format: "combined", client: "host", path: "uri", forwarded: "" },
    RequestFieldNames { format: "vhost_common", client: "host", path: "uri", forwarded: "" },
    RequestFieldNames { format: "vhost_combined", client: "host", path: "uri", forwarded: "" },
    RequestFieldNames {
        format: "nginx",
        client: "remote_addr",
        path: "request_uri",
        forwarded: "http_x_forwarded_for",
    },
    RequestFieldNames { format: "nginx", client: "remote_addr", path: "uri", forwarded: "" },
    RequestFieldNames {
        format: "envoy-json",
        client: "downstream_remote_address",
        path: "path",
        forwarded: "x_forwarded_for",
    },
    RequestFieldNames {
        format: "w3c",
        client: "c-ip",
        path: "cs-uri-stem",
        forwarded: "x-forwarded-for",
    },
];

/// Returns the field that `forwarded(n)` reads.
pub(super) fn forwarded_field(format: &LogFormat) -> Option<&'static str> {
    let of_format = REQUEST_FIELDS.iter().find(|names| names.format == format.name())?;
    Some(of_format.forwarded).filter(|field| has_field(format, field))
}

/// Returns the expressions that a format suggests, by the names that they are mapped to.
pub(super) fn default_mappings(format: &LogFormat) -> Vec<(&'static str, String)> {
    let KnownFields { time, duration, status, .. } = format.known_fields();
    let of_format = || REQUEST_FIELDS.iter().filter(|names| names.format == format.name());
    let client = of_format().map(|names| names.client).find(|name| has_field(format, name));
    let path = of_format().map(|names| names.path).find(|name| has_field(format, name));
    let call = |function: &str, field: &str| format!("{function}({})", field_text(field));
    let time = time.as_ref().map(|time| {
        let function = match time.form {
            StampForm::CommonLog => "common",
            StampForm::Rfc3339 | StampForm::UtcDateTime => "rfc3339",
            StampForm::EpochSeconds => "epoch_s",
        };
        call(function, &time.field)
    });
    let duration = duration.as_ref().map(|duration| {
        let unit = match duration.unit {
            DurationUnit::Seconds => "s",
            DurationUnit::Milliseconds => "ms",
        };
        call(unit, &duration.field)
    });
    let mappings = [
        ("user_id", client.map(|field| call("ip", field))),
        ("resource", path.map(|field| call("path", field))),
        ("time", time),
        ("duration", duration),
        ("status", status.as_ref().map(|field| field_text(field))),
    ];
    mappings.into_iter().filter_map(|(name, expression)| Some((name, expression?))).collect()
}

fn has_field(format: &LogFormat, name: &str) -> bool {
    !name.is_empty() && LineParser::new(format, &[name.to_owned()]).is_ok()
}
