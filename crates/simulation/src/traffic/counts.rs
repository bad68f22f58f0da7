//! What became of the lines of the traffic.

use rlaas_core::clock::Timestamp;
use serde::Serialize;

/// What became of the lines that were read. Each line is in exactly one of `arrivals`, `unread` and
/// `anonymous`, or it waits to be put in order. Empty lines are no lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TrafficCounts {
    /// Inputs that were opened.
    pub inputs: u64,
    /// Lines that were read.
    pub lines: u64,
    /// Requests that were returned.
    pub arrivals: u64,
    /// Lines that could not be understood.
    pub unread: u64,
    /// The first of the lines that could not be understood.
    pub first_unread: Vec<UnreadLine>,
    /// Lines without a user id: no requests.
    pub anonymous: u64,
    /// Requests whose recorded answer was a refusal.
    pub refused_before: u64,
    /// Requests that were further behind the newest of their input than lines are put in order.
    /// They were moved to the oldest time that was still open.
    pub late: u64,
    /// Requests that were returned before all older ones could have been read, because the buffer
    /// that puts lines in order was full.
    pub left_early: u64,
    /// Inputs that end too early or are corrupt. What was before the damage was read.
    pub damaged: Vec<DamagedInput>,
    /// Time of the first request.
    #[serde(rename = "firstUs")]
    pub first: Option<Timestamp>,
    /// Time of the last request.
    #[serde(rename = "lastUs")]
    pub last: Option<Timestamp>,
    /// Fields that are mapped, and that no line has a value for.
    pub absent_fields: Vec<String>,
    /// Mappings that were not given but follow from the format, as `NAME=FIELD`.
    pub default_mappings: Vec<String>,
}

impl TrafficCounts {
    /// Most lines in [`Self::first_unread`].
    pub const MAX_FIRST_UNREAD: usize = 10;

    /// Returns the lines that should have been requests: those that became requests, and those that
    /// could not be understood. The share of unread lines is a share of these.
    pub const fn readable(&self) -> u64 {
        self.arrivals + self.unread
    }

    /// Counts a line that could not be understood, and keeps it if it is one of the first.
    pub(super) fn add_unread(&mut self, line: impl FnOnce() -> UnreadLine) {
        self.unread += 1;
        if self.first_unread.len() < Self::MAX_FIRST_UNREAD {
            self.first_unread.push(line());
        }
    }
}

/// A line that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadLine {
    /// Name of the input.
    pub input: String,
    /// Number of the line in its input, from 1.
    pub line: u64,
    /// Why it could not be understood.
    pub reason: String,
    /// The beginning of the line, as text; what is not UTF-8 is replaced.
    pub excerpt: String,
}

/// An input that ends too early or is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedInput {
    /// Name of the input.
    pub input: String,
    /// What is wrong with it.
    pub reason: String,
}
