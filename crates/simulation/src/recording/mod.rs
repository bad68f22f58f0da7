//! Recordings: the requests that a service decided, with their times, as JSON Lines.
//!
//! The first line is [`Header`] with `"rlaas_recording":2`. Each other line is a request, or
//! `{"lost":3}`: so many requests were lost at this point.
//!
//! ```json
//! {"at_us":1700000100000000,"user_id":"alice","resource":"/pay","attributes":{"plan":"free"},"cost":1,"refused":true}
//! {"at_us":1700000100000020,"domain":"web","descriptors":[{"entries":[{"key":"ip","value":"::1"}],"hits":1}]}
//! ```
//!
//! `project`, `resource`, `attributes`, `cost` (1), `hits` (1), `limit` (`{"units":5,"window_us":1000000}`) and
//! `refused` may be absent. Lines are nearly in the order of their times: those of several threads
//! are written one after the other. Version 1 had no projects.

mod error;
mod hashing;
mod header;
mod lines;
mod rules;
mod sample;
mod writer;

pub use error::{LineProblem, RecordingError};
pub use hashing::{hash_values, key_fingerprint};
pub use header::{HashedHeader, Header, RecordedKeys, SampleHeader, VERSION};
pub use lines::RecordedLine;
pub use rules::{HashedPart, check_rules, undercounted_rules};
pub use sample::KeySample;
pub use writer::{Discarded, RecordingForm, Writer};

#[cfg(test)]
mod tests;
