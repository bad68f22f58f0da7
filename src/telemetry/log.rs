//! Logs: one event is one line on standard error, for people or as JSON.
//!
//! No value of an event breaks its line or begins another one: whoever reads the log line by line
//! can trust it, whatever the bytes that somebody sent.

use std::borrow::Cow;
use std::env;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::str::FromStr;
use std::sync::Once;
use std::thread;

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing::{error, warn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt as subscriber_fmt, reload};

use super::text_fields::TextFields;

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// What is logged.
    pub filter: LogFilter,
    /// How it is written.
    pub format: LogFormat,
}

/// What is logged: a level, or levels by target, such as `info,rlaas::store=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// How an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people, in colours on a terminal unless `NO_COLOR` is set.
    Text,
    /// An object for each event: `timestamp`, `level`, `message`, the event's fields, `target`.
    Json,
}

/// Not a filter.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "valid is off, error, warn, info, debug or trace, or a list with levels of targets, \
     such as info,rlaas::store=debug"
)]
pub struct FilterError;

/// The running logs.
#[derive(Debug)]
pub struct Logs(reload::Handle<EnvFilter, Registry>);

/// Logs that the limit of a request was cut to `most`: the first of this process.
pub fn warn_limit_capped(most: u64) {
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| warn!(most, "a limit that a request brings along was cut; logged once"));
}

/// Starts to log. Changes nothing if somebody, a test perhaps, has set up logs of their own.
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
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

impl Logs {
    /// Logs by another filter from now on.
    pub fn set_filter(&self, filter: &LogFilter) {
        // Nobody to tell if the logs are not ours.
        let _not_ours = self.0.reload(filter.compile());
    }
}

impl LogFilter {
    /// The filter. Targets of modules that are in a crate of their own by now are found there.
    fn compile(&self) -> EnvFilter {
        let text = self.0.replace("rlaas::store", "rlaas_limiter::store");
        let text = text.replace("rlaas::limiter", "rlaas_limiter::limiter");
        EnvFilter::builder().parse(text).expect("it was parsed before")
    }
}

impl FromStr for LogFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A word alone would be the name of a target: a level with a slip of the pen silences all.
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

/// What the runtime says of a panic is several lines, and none of them JSON.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str();
        error!(thread = thread::current().name(), location, error = message, "panicked");
    }));
}

/// Standard error, taking one event at a time.
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

/// An event with the control characters of its values written out. Those that steer terminals
/// are so already: what is left of them are the colours.
fn escape_line(event: &[u8]) -> Cow<'_, [u8]> {
    let breaks = |byte: &u8| byte.is_ascii_control() && *byte != b'\x1b';
    let (text, end) = match event {
        [text @ .., b'\n'] => (text, 1),
        text => (text, 0),
    };
    if !text.iter().any(breaks) {
        return Cow::Borrowed(event);
    }
    let mut line = Vec::with_capacity(event.len() + 16);
    for byte in text {
        if breaks(byte) {
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
    fn a_filter_finds_modules_that_have_moved_into_crates() {
        let filter = LogFilter("info,rlaas::store=debug,rlaas::limiter=trace".to_owned());
        let compiled = filter.compile().to_string();
        for directive in ["info", "rlaas_limiter::store=debug", "rlaas_limiter::limiter=trace"] {
            assert!(compiled.split(',').any(|of| of == directive), "{directive}: {compiled}");
        }
    }

    #[test]
    fn an_event_stays_on_its_line() {
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
