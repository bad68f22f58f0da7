//! Stamps: the texts and numbers by which logs say when something happened, and how long it took.
//!
//! The usual stamps are read by hand, because each line has one; [`jiff`] reads all others, and is
//! what the reading by hand is checked against.

mod civil;
mod decimal;
mod reader;
mod zone;

pub(crate) use decimal::Unit;
pub(crate) use reader::{Stamp, StampFormat, StampReader};
pub(crate) use zone::LocalTime;

use rlaas_core::clock::Timestamp;
use thiserror::Error;

/// The first time that is too late: the year 10000.
pub(crate) const TIME_LIMIT: Timestamp = Timestamp::from_micros(253_402_300_800_000_000);

/// Why a stamp can't be read, or a format of stamps can't be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StampError {
    /// The line has no stamp.
    #[error("time must not be absent")]
    Absent,
    /// Not as the format says.
    #[error("time must be {expected}: {reason}")]
    Format {
        /// What the format expects.
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A stamp without a zone, and no zone was given.
    #[error("time has no zone: --zone must be given")]
    NoZone,
    /// Before 1970 or after 9999.
    #[error("time must be from the year 1970 to 9999")]
    Range,
    /// A zone that is not known.
    #[error(
        "--zone must be the name of a time zone, such as Europe/Berlin, or an offset, such as +02:00: {0}"
    )]
    Zone(String),
    /// A pattern that can't be used.
    #[error(
        "strptime() must be given a date, a time of day and, if there is no --zone, an offset: {0}"
    )]
    Pattern(String),
}
