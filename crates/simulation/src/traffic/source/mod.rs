//! Inputs as sources of requests: logs, line by line, and recordings.

mod defaults;
mod log;
mod log_mapping;
mod open;
mod opener;
mod recording;
mod reopened;

pub(super) use open::Inputs;

use super::input::{InputEnd, InputStatus};
use super::{DamagedInput, TrafficCounts, UnreadLine};

/// Most characters of a line that are shown.
const SHOWN_CHARACTERS: usize = 200;

/// Why a line is unread whose time is not believed.
const FAR_AHEAD: &str = "the time is more than --max-gap after that of the line before, and the next \
                         lines do not follow it";

/// Counts a line that could not be understood, and keeps it if it is one of the first.
fn count_unread(counts: &mut TrafficCounts, line: impl FnOnce() -> UnreadLine) {
    counts.unread += 1;
    if counts.first_unread.len() < TrafficCounts::MAX_FIRST_UNREAD {
        counts.first_unread.push(line());
    }
}

/// Notes it if an input ended too early or is corrupt. Returns `true` if so.
fn note_end(name: &str, status: &InputStatus, counts: &mut TrafficCounts) -> bool {
    let reason = match status.end() {
        None | Some(InputEnd::Complete) => return false,
        Some(InputEnd::Truncated) => "the compressed data ends too early".to_owned(),
        Some(InputEnd::Corrupt { why }) => why.to_string(),
    };
    counts.damaged.push(DamagedInput { input: name.to_owned(), reason });
    true
}

/// Returns the beginning of a line as text.
fn excerpt(line: &[u8]) -> String {
    let start = &line[..line.len().min(4 * SHOWN_CHARACTERS)];
    String::from_utf8_lossy(start).chars().take(SHOWN_CHARACTERS).collect()
}
