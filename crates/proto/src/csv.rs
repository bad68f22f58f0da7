//! Usage as comma-separated values.
//!
//! **Source:** RFC 4180. Names of rules may need quotes; no other field does.

use std::borrow::Cow;
use std::fmt::Write;

use crate::ratelimit::admin::v1::DailyUsage;

/// The project of requests without an API key, as paths and commands have it.
const UNNAMED: &str = "_";

/// Returns the line with the names of the columns.
pub const fn header() -> &'static str {
    "project_id,day,allowed,denied,units,preliminary,key,rule\r\n"
}

/// Returns a line for each row.
pub fn lines(usage: &[DailyUsage]) -> String {
    let mut lines = String::new();
    for row in usage {
        let DailyUsage { project_id, day, allowed, denied, units, preliminary, key_id, rule } = row;
        let project = if project_id.is_empty() { UNNAMED } else { project_id };
        let rule = quoted(rule);
        write!(
            lines,
            "{project},{day},{allowed},{denied},{units},{preliminary},{key_id},{rule}\r\n"
        )
        .expect("writing to a string does not fail");
    }
    lines
}

/// Returns a field, in quotes where it needs them.
pub fn quoted(field: &str) -> Cow<'_, str> {
    if field.contains([',', '"', '\r', '\n']) {
        Cow::Owned(format!("\"{}\"", field.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(field)
    }
}
