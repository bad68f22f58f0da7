//! Usage as comma-separated values.
//!
//! **Source:** RFC 4180. No field needs quotes: ids of projects are letters, digits and hyphens.

use std::fmt::Write;

use crate::ratelimit::admin::v1::DailyUsage;

/// The project of requests without an API key, as paths and commands have it.
const UNNAMED: &str = "_";

/// Returns the line with the names of the columns.
pub const fn header() -> &'static str {
    "project_id,day,allowed,denied,units,preliminary\r\n"
}

/// Returns a line for each row.
pub fn lines(usage: &[DailyUsage]) -> String {
    let mut lines = String::new();
    for row in usage {
        let DailyUsage { project_id, day, allowed, denied, units, preliminary } = row;
        let project = if project_id.is_empty() { UNNAMED } else { project_id };
        write!(lines, "{project},{day},{allowed},{denied},{units},{preliminary}\r\n")
            .expect("writing to a string does not fail");
    }
    lines
}
