//! Which traffic is read, and how.

use std::fmt;
use std::path::PathBuf;

use rlaas_core::clock::Micros;

use super::format::LogFormat;

/// Which traffic is read, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TrafficSettings {
    /// Files, in the order in which equal times are kept.
    pub inputs: Vec<TrafficInput>,
    /// Format of the logs; recordings need none.
    pub format: Option<LogFormat>,
    /// Mappings from fields to requests, each as `NAME=EXPRESSION`.
    pub mappings: Vec<String>,
    /// Conditions, all of which must hold for a line to be read.
    pub conditions: Vec<String>,
    /// Zone of stamps that have none, by name or offset.
    pub zone: Option<String>,
    /// Whether stamps are those of a request's start or end; by default as the format says.
    pub stamped_at: Option<StampedAt>,
    /// Most time by which lines may be out of order.
    pub reorder: Micros,
    /// Most time between two lines of an input that is believed at once.
    pub max_gap: Micros,
    /// Most lines that are held to be put in order.
    pub max_held_lines: usize,
    /// Most bytes that the requests of these lines may take.
    pub max_held_bytes: usize,
    /// Bytes by which the dictionary may grow before it begins a new generation.
    pub dictionary_bytes: usize,
    /// Statuses of lines that are left out.
    pub skip_statuses: Vec<u16>,
    /// Project whose requests are read from recordings; empty: those in no project, and those by
    /// descriptors. Logs have no projects: all of their requests are read.
    pub project: String,
}

impl TrafficSettings {
    /// Creates the default settings for these inputs.
    pub fn new(inputs: Vec<TrafficInput>) -> Self {
        Self {
            inputs,
            format: None,
            mappings: Vec::new(),
            conditions: Vec::new(),
            zone: None,
            stamped_at: None,
            reorder: Micros::from_secs(60),
            max_gap: Micros::from_secs(24 * 60 * 60),
            max_held_lines: 1_000_000,
            max_held_bytes: 512 << 20,
            dictionary_bytes: 256 << 20,
            skip_statuses: Vec::new(),
            project: String::new(),
        }
    }
}

/// A source of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrafficInput {
    /// A file.
    File(PathBuf),
    /// Standard input.
    StandardInput,
}

impl fmt::Display for TrafficInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::StandardInput => f.write_str("standard input"),
        }
    }
}

/// The point of a request that its stamp shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampedAt {
    /// Its arrival.
    Start,
    /// Its end: the arrival is before it by the duration.
    End,
}
