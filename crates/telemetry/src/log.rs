//! Logs: each event is one line on standard error, as text or as JSON.
//!
//! Control characters in the values of an event are escaped, so that no client can forge a log
//! line.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::str::FromStr;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use rlaas_core::clock::Deadline;
use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing::{error, warn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt as subscriber_fmt, reload};

use super::text_fields::TextFields;

/// Settings of logs.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The levels that are logged.
    pub filter: LogFilter,
    /// The format of an event.
    pub format: LogFormat,
}

/// A filter of log events: a level, or levels by target, such as `info,rlaas::store=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// The format of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, in colours on a terminal unless `NO_COLOR` is set.
    Text,
    /// A JSON object with `timestamp`, `level`, `message`, the event's fields and `target`.
    Json,
}

/// The error for a text that is not a filter.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "must be off, error, warn, info, debug or trace, or a list with levels of targets, \
     such as info,rlaas::store=debug"
)]
pub struct FilterError;

/// A handle to the logs, for changes of their filter.
#[derive(Debug)]
pub struct Logs(reload::Handle<EnvFilter, Registry>);

/// Logs that the limit of a request was lowered to `max`, once in the life of the process.
pub fn warn_limit_capped(max: u64) {
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| warn!(max, "limit override of a request exceeds the maximum; logged once"));
}

/// Logs a request of Envoy that no rule decides as it asks, once a minute for each reason.
pub fn warn_unmatched(domain: &str, reason: &'static str, outcome: &'static str) {
    static NEXT: Mutex<BTreeMap<&str, Deadline>> = Mutex::new(BTreeMap::new());
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    if next.get(reason).is_none_or(|next| next.has_passed()) {
        next.insert(reason, Deadline::within(Duration::from_mins(1)));
        warn!(domain, reason, outcome, "unmatched request of Envoy; logged once a minute");
    }
}

/// Starts logging. Has no effect if the process, such as a test, has installed a subscriber
/// already.
pub fn start(settings: &LogSettings) -> Logs {
    let (filter, handle) = reload::Layer::new(settings.filter.compile());
    let layer = subscriber_fmt::layer().with_writer(|| StderrWriter);
    let layer = match settings.format {
        LogFormat::Text => {
            let layer = layer.with_ansi(has_colours()).with_target(false);
            layer.fmt_fields(TextFields).boxed()
        }
        LogFormat::Json => {
            let json = layer.json().flatten_event(true);
            json.with_current_span(false).with_span_list(false).boxed()
        }
    };
    let started = tracing_subscriber::registry().with(filter).with(layer).try_init();
    if started.is_ok() && settings.format == LogFormat::Json {
        log_panics();
    }
    Logs(handle)
}

/// Returns `true` on a terminal, unless `NO_COLOR` is set.
///
/// **Source:** <https://no-color.org>.
fn has_colours() -> bool {
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !no_color
}

impl Logs {
    /// Replaces the filter.
    pub fn set_filter(&self, filter: &LogFilter) {
        // Fails only if another subscriber is installed.
        let _reloaded = self.0.reload(filter.compile());
    }
}

/// Targets of modules that have moved, and what they are now.
const MOVED: &[(&str, &str)] = &[
    ("rlaas::store", "rlaas_limiter::store"),
    ("rlaas::limiter", "rlaas_limiter::limiter"),
    ("rlaas::telemetry", "rlaas_telemetry"),
    ("rlaas::api::admin", "rlaas_admin"),
    ("rlaas::api::auth", "rlaas_auth"),
    ("rlaas::api::projects", "rlaas_projects"),
    ("rlaas::api::usage", "rlaas_projects::usage"),
    ("rlaas::cli", "rlaas::run"),
];

impl LogFilter {
    /// Compiles the filter. Targets of modules that have moved are renamed.
    fn compile(&self) -> EnvFilter {
        let moved = MOVED.iter();
        let text = moved.fold(self.0.clone(), |text, (before, now)| text.replace(before, now));
        EnvFilter::builder().parse(text).expect("from_str has parsed it")
    }
}

impl FromStr for LogFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `EnvFilter` takes a single word that is no level for a target, so that a misspelt level
        // would turn off every event.
        let is_directive = |part: &str| {
            let is_level = !part.is_empty() && part.parse::<LevelFilter>().is_ok();
            is_level || (part.contains('=') && !part.contains(char::is_whitespace))
        };
        let parses = EnvFilter::builder().parse(text).is_ok();
        if parses && text.split(',').all(is_directive) {
            Ok(Self(text.to_owned()))
        } else {
            Err(FilterError)
        }
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Logs panics as events. The default hook writes several lines, none of them JSON.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str();
        error!(thread = thread::current().name(), location, error = message, "panicked");
    }));
}

/// Writes each event to standard error as one line.
#[derive(Debug)]
struct StderrWriter;

impl Write for StderrWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&escape_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Returns an event with escaped control characters. The subscriber has already escaped ESC in
/// values; those that are left are colours.
fn escape_line(event: &[u8]) -> Cow<'_, [u8]> {
    let is_escaped = |byte: &u8| byte.is_ascii_control() && *byte != b'\x1b';
    let (text, end) = match event {
        [text @ .., b'\n'] => (text, 1),
        text => (text, 0),
    };
    if !text.iter().any(is_escaped) {
        return Cow::Borrowed(event);
    }
    let mut line = Vec::with_capacity(event.len() + 16);
    for byte in text {
        if is_escaped(byte) {
            line.extend(byte.escape_ascii());
        } else {
            line.push(*byte);
        }
    }
    line.extend(&event[event.len() - end..]);
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_levels_of_targets() {
        for text in ["off", "info", "DEBUG", "info,rlaas::store=debug", "h2=warn,trace"] {
            assert_eq!(text.parse(), Ok(LogFilter(text.to_owned())));
        }
        for text in ["", "inof", "info,", "rlaas=loud", "info rlaas=debug", "info,rlaas"] {
            assert_eq!(text.parse::<LogFilter>(), Err(FilterError), "{text}");
        }
    }

    #[test]
    fn a_filter_renames_targets_of_moved_modules() {
        let filter = "info,rlaas::store=debug,rlaas::limiter=trace,rlaas::telemetry::traces=debug,rlaas::api::auth=debug,rlaas::cli::xds=info";
        let compiled = LogFilter(filter.to_owned()).compile().to_string();
        for directive in [
            "info",
            "rlaas_limiter::store=debug",
            "rlaas_limiter::limiter=trace",
            "rlaas_telemetry::traces=debug",
            "rlaas_auth=debug",
            "rlaas::run::xds=info",
        ] {
            assert!(compiled.split(',').any(|of| of == directive), "{directive}: {compiled}");
        }
    }

    #[test]
    fn control_characters_of_an_event_are_escaped() {
        for (event, line) in [
            ("plain \u{1b}[2mgrün\u{1b}[0m\n", "plain \u{1b}[2mgrün\u{1b}[0m\n"),
            ("one\r\nINFO forged\0\n", "one\\r\\nINFO forged\\x00\n"),
            ("one\n\n", "one\\n\n"),
            ("no end\tat all", "no end\\tat all"),
        ] {
            assert_eq!(String::from_utf8_lossy(&escape_line(event.as_bytes())), line);
        }
    }
}
