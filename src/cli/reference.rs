//! The references of settings and of metrics, as Markdown.

use std::fmt::Write;

use clap::Args;
use rlaas_telemetry::reference::{MetricReference, metrics as all_metrics};

use crate::config::{Kind, SettingReference, envoy_file_reference, reference};

const SETTINGS: &str = "\
# Settings

<!-- Printed by `rlaas config --reference`; a test compares. -->

Each setting has a built-in default. Files (`--config`, later ones win) replace defaults, environment
variables replace files, and `--set KEY=VALUE` on the command line replaces all of them. `rlaas config`
prints the values in force with their origins, `rlaas config --example` a file with every setting.

Keys are written with `-` or `_`. The environment variable of a setting is `RLAAS_` and its path, with
`__` between the levels and `_` for `-`. Lists and sections are YAML there and on the command line:
`RLAAS_ENVOY__FILES='[a.yaml, b.yaml]'`. `REDIS_URL` sets `store.redis.url` and selects the `redis`
backend; `RUST_LOG` sets `telemetry.log`; the variables above win over both. Durations are written as
`250ms`, `30s`, `5m`, `1h` or `1d`; a number alone is seconds.
";

const ENVOY_FILES: &str = "
## Files of envoyproxy/ratelimit

Settings in the files that `envoy.files` names. Files of envoyproxy/ratelimit are read as they are.
";

const METRICS: &str = "\
# Metrics

<!-- Printed by `rlaas metrics --reference`; a test compares. -->

All metrics of `GET /metrics` on `server.http`. No label ever holds a user, a key or an address: the
configuration bounds the number of series. `process_*` are there on Linux alone.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

#[derive(Args, Debug)]
pub(super) struct MetricsArgs {
    /// Print the reference; the metrics themselves are served at /metrics
    #[arg(long, required = true)]
    reference: bool,
}

/// Returns the page of settings.
pub(super) fn settings() -> String {
    let mut page = SETTINGS.to_owned();
    let mut section = String::new();
    for setting in reference() {
        let top = setting.path.split(['.', '[']).next().unwrap_or_default().to_owned();
        if top != section {
            push(&mut page, format_args!("\n## `{top}`\n\n"));
            let is_section = setting.kind == Kind::Section;
            if is_section {
                push(&mut page, format_args!("{}\n\n", setting.about));
            }
            page.push_str("| setting | environment variable | must be | default | meaning |\n");
            page.push_str("| --- | --- | --- | --- | --- |\n");
            section = top;
            if is_section {
                continue;
            }
        }
        let variable = setting.variable().map_or("–".to_owned(), |name| format!("`{name}`"));
        push_row(&mut page, &setting, &[&variable]);
    }
    page.push_str(ENVOY_FILES);
    page.push_str("\n| setting | must be | default | meaning |\n| --- | --- | --- | --- |\n");
    for setting in envoy_file_reference() {
        push_row(&mut page, &setting, &[]);
    }
    page
}

/// Adds a row to a table of settings; `between` are the cells between path and values.
fn push_row(page: &mut String, setting: &SettingReference, between: &[&str]) {
    let values = match setting.kind {
        Kind::Value => setting.must_be.as_str(),
        Kind::Section => "a section",
        Kind::List => "a list of sections",
    };
    let default = match (&setting.default, setting.kind) {
        (Some(default), _) => format!("`{default}`"),
        (None, Kind::List) => "`[]`".to_owned(),
        (None, _) => "–".to_owned(),
    };
    let path = format!("`{}`", setting.path);
    // Brackets in prose could be read as links.
    let [values, about] = [values, setting.about].map(|prose| prose.replace('[', "\\["));
    let cells = [&[path.as_str()], between, &[&values, &default, &about]].concat();
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    push(page, format_args!("| {} |\n", cells.join(" | ")));
}

/// Returns the page of metrics.
pub(super) fn metrics() -> String {
    let mut page = METRICS.to_owned();
    for metric in all_metrics() {
        let MetricReference { name, kind, unit, labels, help } = metric;
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, values)| format!("`{label}`: {}", values.join(", ")))
            .collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join("; ") };
        let unit = unit.unwrap_or("–");
        push(&mut page, format_args!("| `{name}` | {kind} | {unit} | {labels} | {help} |\n"));
    }
    page
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string grows");
}
