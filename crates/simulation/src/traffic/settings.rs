//! Which traffic is read, and how.

use std::fmt;
use std::path::{Path, PathBuf};

use super::format::LogFormat;
use super::source::RequestReader;

/// Which traffic is read, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TrafficSettings {
    /// Files, in the order in which equal times are kept: at most [`MAX_INPUTS`](super::MAX_INPUTS).
    pub inputs: Vec<TrafficInput>,
    /// Format of the logs; `None`: lines are requests.
    pub format: Option<LogFormat>,
    /// Reads the requests of lines.
    pub requests: RequestReader,
    /// Mappings from fields of lines to requests, each as `NAME=FIELD`.
    pub mappings: Vec<String>,
    /// Most bytes of requests that are held to be put in order.
    pub max_held_bytes: usize,
}

impl TrafficSettings {
    /// Creates the default settings for these inputs.
    pub fn new(inputs: Vec<TrafficInput>, requests: RequestReader) -> Self {
        Self { inputs, format: None, requests, mappings: Vec::new(), max_held_bytes: 256 << 20 }
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

impl TrafficInput {
    /// Returns the source that an argument names: `-` is standard input.
    pub fn from_argument(argument: &Path) -> Self {
        if argument.as_os_str() == "-" {
            Self::StandardInput
        } else {
            Self::File(argument.to_owned())
        }
    }
}

impl fmt::Display for TrafficInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::StandardInput => f.write_str("standard input"),
        }
    }
}
