//! The fields of a log event as text: `name=value`, so that programs can parse them too.
//!
//! A value with spaces or quotes is quoted, so that no part of it looks like another field. Control
//! characters are escaped, including those that control terminals.

use std::borrow::Cow;
use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Formats the message without a name, and the other fields as `name=value`.
#[derive(Debug)]
pub(super) struct TextFields;

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = Visitor { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct Visitor<'writer> {
    writer: Writer<'writer>,
    is_empty: bool,
    result: fmt::Result,
}

impl Visitor<'_> {
    fn push(&mut self, field: &Field, value: &str) -> fmt::Result {
        if !std::mem::take(&mut self.is_empty) {
            self.writer.write_char(' ')?;
        }
        match field.name() {
            "message" => self.writer.write_str(&escape_control_chars(value)),
            name if self.writer.has_ansi_escapes() => {
                write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}")
            }
            name => write!(self.writer, "{name}={value}"),
        }
    }
}

impl Visit for Visitor<'_> {
    /// Strings are always quoted.
    fn record_str(&mut self, field: &Field, value: &str) {
        let quoted = format!("{value:?}");
        let value = if field.name() == "message" { value } else { &quoted };
        self.result = self.result.and_then(|()| self.push(field, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        let has_quotes = text.is_empty()
            || text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '"');
        let value = if has_quotes && field.name() != "message" {
            Cow::Owned(format!("{text:?}"))
        } else {
            Cow::Borrowed(text.as_str())
        };
        self.result = self.result.and_then(|()| self.push(field, &value));
    }
}

/// Escapes control characters.
fn escape_control_chars(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().map(|c| match c {
        c if c.is_control() => c.escape_debug().to_string(),
        c => c.to_string(),
    });
    Cow::Owned(escaped.collect())
}
