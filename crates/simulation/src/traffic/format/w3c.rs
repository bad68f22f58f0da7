//! The Extended Log File Format of the W3C, with the ways of `CloudFront` and IIS.
//!
//! **Source:** <https://www.w3.org/TR/WD-logfile.html>;
//! <https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html>;
//! <https://learn.microsoft.com/windows/win32/http/w3c-logging>.

use std::sync::Arc;

use memchr::{memchr, memmem};

use super::known::{DurationUnit, KnownDuration, KnownTime, StampForm};
use super::unescape::append_percent_decoded;
use super::{FieldValues, KnownFields, Parsed, Unreadable};
use crate::traffic::StampedAt;

/// Most columns that a line may have.
const MAX_COLUMNS: usize = 512;

/// Fields whose meaning does not depend on the server that writes the log. A log may lack them.
pub(super) const TIME: &str = "@time";
pub(super) const DURATION: &str = "@duration";
pub(super) const STATUS: &str = "@status";

/// Returns the fields that every such log may have.
pub(super) fn known_fields() -> KnownFields {
    KnownFields {
        time: Some(KnownTime { field: TIME.to_owned(), form: StampForm::UtcDateTime }),
        stamped_at: Some(StampedAt::End),
        duration: Some(KnownDuration { field: DURATION.to_owned(), unit: DurationUnit::Seconds }),
        status: Some(STATUS.to_owned()),
    }
}

/// The server that writes a log, as its directives say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogWriter {
    /// Tabs between columns, values with `%HH`.
    CloudFront,
    /// Spaces between columns, `+` for spaces in the user agent, durations in milliseconds.
    Iis,
    /// Spaces or tabs between columns; values may be in quotation marks, which are doubled within.
    Other,
}

/// A wanted field.
#[derive(Clone, Debug)]
enum WantedColumn {
    /// The column of this name.
    Named(Box<str>),
    Time,
    Duration,
    Status,
    /// A field of the envelope.
    None,
}

/// Reads the lines of one log. Its columns are those of the last `#Fields:` directive.
#[derive(Clone, Debug)]
pub(super) struct W3cParser {
    wanted: Arc<[WantedColumn]>,
    writer: LogWriter,
    /// Number of columns; 0 before the first directive.
    columns: usize,
    /// For each wanted field its column, and for the time the second one.
    places: Vec<(Option<usize>, Option<usize>)>,
    /// Where each column of a line begins and ends.
    found: Vec<(usize, usize)>,
    /// A wanted field that the directive lacks.
    lacking: Option<Arc<Unreadable>>,
}

impl W3cParser {
    pub(super) fn new(wanted: &[Option<&str>]) -> Self {
        let column = |name: Option<&str>| match name {
            None => WantedColumn::None,
            Some(TIME) => WantedColumn::Time,
            Some(DURATION) => WantedColumn::Duration,
            Some(STATUS) => WantedColumn::Status,
            Some(name) => WantedColumn::Named(name.into()),
        };
        Self {
            wanted: wanted.iter().copied().map(column).collect(),
            writer: LogWriter::Other,
            columns: 0,
            places: Vec::new(),
            found: Vec::new(),
            lacking: None,
        }
    }

    pub(super) fn parse(
        &mut self,
        line: &[u8],
        values: &mut FieldValues,
    ) -> Result<Parsed, Unreadable> {
        if let Some(directive) = line.strip_prefix(b"#") {
            return self.directive(directive).map(|()| Parsed::Directive);
        }
        if self.columns == 0 {
            return Err(Unreadable::BeforeFieldsDirective);
        }
        if let Some(lacking) = &self.lacking {
            return Err(lacking.as_ref().clone());
        }
        self.split(line);
        if self.found.len() != self.columns {
            return Err(Unreadable::Columns { expected: self.columns, found: self.found.len() });
        }
        for (index, (first, second)) in self.places.iter().enumerate() {
            let value = |column: &usize| {
                let (start, end) = self.found[*column];
                &line[start..end]
            };
            let Some(first) = first.as_ref().map(value) else { continue };
            match &self.wanted[index] {
                WantedColumn::Time => {
                    let Some(second) = second.as_ref().map(value) else { continue };
                    values.set_with(index, |to| {
                        to.extend_from_slice(first);
                        to.push(b' ');
                        to.extend_from_slice(second);
                    });
                }
                WantedColumn::Duration if self.writer == LogWriter::Iis => {
                    values.set_with(index, |to| append_milliseconds(first, to));
                }
                WantedColumn::Named(name) => self.set(index, name, first, values),
                _ => values.set(index, first),
            }
        }
        Ok(Parsed::Fields)
    }

    fn set(&self, index: usize, name: &str, value: &[u8], values: &mut FieldValues) {
        let is_user_agent = || name.eq_ignore_ascii_case("cs(User-Agent)");
        match self.writer {
            LogWriter::CloudFront => {
                values.set_with(index, |to| append_percent_decoded(value, to));
            }
            LogWriter::Iis if is_user_agent() => values.set_with(index, |to| {
                to.extend(value.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }));
            }),
            LogWriter::Other if memmem::find(value, b"\"\"").is_some() => {
                values.set_with(index, |to| append_doubled_quotes(value, to));
            }
            LogWriter::Iis | LogWriter::Other => values.set(index, value),
        }
    }

    /// Reads a directive, without its `#`. Those that say nothing of the lines are skipped.
    fn directive(&mut self, directive: &[u8]) -> Result<(), Unreadable> {
        let Some(colon) = memchr(b':', directive) else { return Ok(()) };
        let (name, value) = (directive[..colon].trim_ascii(), &directive[colon + 1..]);
        if name.eq_ignore_ascii_case(b"Software") {
            let is_microsoft = memmem::find(value, b"Microsoft").is_some();
            self.writer = if is_microsoft { LogWriter::Iis } else { LogWriter::Other };
        } else if name.eq_ignore_ascii_case(b"Fields") {
            self.set_columns(value)?;
        }
        Ok(())
    }

    fn set_columns(&mut self, names: &[u8]) -> Result<(), Unreadable> {
        let names: Vec<&[u8]> = names
            .split(u8::is_ascii_whitespace)
            .filter(|name| !name.is_empty())
            .take(MAX_COLUMNS + 1)
            .collect();
        if names.is_empty() || names.len() > MAX_COLUMNS {
            self.columns = 0;
            return Err(Unreadable::FieldsDirective { maximum: MAX_COLUMNS });
        }
        let column =
            |name: &str| names.iter().position(|other| other.eq_ignore_ascii_case(name.as_bytes()));
        if column("x-edge-location").is_some() {
            self.writer = LogWriter::CloudFront;
        }
        self.columns = names.len();
        self.lacking = None;
        self.places.clear();
        for wanted in self.wanted.iter() {
            self.places.push(match wanted {
                WantedColumn::None => (None, None),
                WantedColumn::Time => (column("date"), column("time")),
                WantedColumn::Duration => (column("time-taken"), None),
                WantedColumn::Status => (column("sc-status"), None),
                WantedColumn::Named(name) => (column(name), None),
            });
            if let (WantedColumn::Named(name), Some((None, _))) = (wanted, self.places.last()) {
                let names: Vec<_> =
                    names.iter().map(|name| String::from_utf8_lossy(name)).collect();
                let lacking = Unreadable::FieldsDirectiveLacks {
                    name: name.clone(),
                    names: names.join(" ").into(),
                };
                self.lacking.get_or_insert(Arc::new(lacking));
            }
        }
        Ok(())
    }

    /// Splits a line into columns, one more than expected at most. A separator at the end of the line
    /// is none of its own, as in lines of `CloudFront`.
    fn split(&mut self, line: &[u8]) {
        self.found.clear();
        let has_tabs = self.writer != LogWriter::Iis && memchr(b'\t', line).is_some();
        let separator = match self.writer {
            LogWriter::CloudFront => b'\t',
            LogWriter::Other if has_tabs => b'\t',
            LogWriter::Iis | LogWriter::Other => b' ',
        };
        let mut start = 0;
        while self.found.len() <= self.columns {
            let rest = &line[start..];
            let quoted =
                if self.writer == LogWriter::Other { quoted(rest, separator) } else { None };
            let (column, next) = if let Some(length) = quoted {
                ((start + 1, start + 1 + length), start + length + 2)
            } else {
                let end = start + memchr(separator, rest).unwrap_or(rest.len());
                ((start, end), end)
            };
            self.found.push(column);
            if next >= line.len() {
                break;
            }
            start = next + 1;
            if start == line.len() && self.found.len() == self.columns {
                break;
            }
        }
    }
}

/// Returns the length of a text in quotation marks at the beginning of the rest of a line, if the
/// last one is followed by a separator or the end.
fn quoted(rest: &[u8], separator: u8) -> Option<usize> {
    let text = rest.strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        at += memchr(b'"', text.get(at..)?)?;
        match text.get(at + 1) {
            Some(b'"') => at += 2,
            Some(other) if *other != separator => at += 1,
            _ => return Some(at),
        }
    }
}

fn append_doubled_quotes(value: &[u8], to: &mut Vec<u8>) {
    let mut rest = value;
    while let Some(found) = memmem::find(rest, b"\"\"") {
        to.extend_from_slice(&rest[..=found]);
        rest = &rest[found + 2..];
    }
    to.extend_from_slice(rest);
}

/// Appends a number of milliseconds as seconds: 1500 becomes 1.500. Appends nothing for other texts.
fn append_milliseconds(value: &[u8], to: &mut Vec<u8>) {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return;
    }
    let split = value.len().saturating_sub(3);
    to.extend_from_slice(if split == 0 { b"0" } else { &value[..split] });
    to.push(b'.');
    to.extend(std::iter::repeat_n(b'0', 3_usize.saturating_sub(value.len())));
    to.extend_from_slice(&value[split..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_become_seconds() {
        for (value, expected) in [
            ("0", "0.000"),
            ("7", "0.007"),
            ("37", "0.037"),
            ("1500", "1.500"),
            ("x", ""),
            ("", ""),
        ] {
            let mut found = Vec::new();
            append_milliseconds(value.as_bytes(), &mut found);
            assert_eq!(found, expected.as_bytes(), "{value}");
        }
    }
}
