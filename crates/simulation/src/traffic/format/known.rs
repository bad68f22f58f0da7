//! What a format says of its own fields.

use crate::traffic::StampedAt;

/// Fields of a format whose meaning is known. Each can be wanted by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownFields {
    /// The field with the time.
    pub time: Option<KnownTime>,
    /// The point of a request that the time shows.
    pub stamped_at: Option<StampedAt>,
    /// The field that has how long a request took.
    pub duration: Option<KnownDuration>,
    /// The field with the HTTP status.
    pub status: Option<String>,
}

/// A field with a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownTime {
    /// Name of the field.
    pub field: String,
    /// How the time is written.
    pub form: StampForm,
}

/// How a known format writes a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StampForm {
    /// `10/Oct/2000:13:55:36 -0700`, as the Common Log Format has it.
    CommonLog,
    /// `2000-10-10T13:55:36.123-07:00` or `…Z`, with any number of digits below the second.
    Rfc3339,
    /// `971211336.123`: seconds since 1970, with a fraction.
    EpochSeconds,
    /// `2000-10-10 20:55:36` in UTC, with or without a fraction.
    UtcDateTime,
}

/// A field that has how long a request took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDuration {
    /// Name of the field.
    pub field: String,
    /// Its unit.
    pub unit: DurationUnit,
}

/// The unit of a duration in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DurationUnit {
    /// Seconds, mostly with a fraction.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}
