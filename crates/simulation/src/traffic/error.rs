//! Why traffic can't be read.

use std::io;

use thiserror::Error;

use super::MAX_INPUTS;
use super::log::MappingError;

/// Why traffic can't be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// No inputs.
    #[error("traffic must be at least one file")]
    NoInputs,
    /// Too many inputs.
    #[error("{input}: is one too many, must be at most {MAX_INPUTS} files")]
    TooManyInputs {
        /// Name of the first input above the bound.
        input: String,
    },
    /// Standard input twice.
    #[error("- must be given once: standard input can be read once")]
    StandardInputTwice,
    /// A file can't be opened.
    #[error("{input}: cannot be opened")]
    Open {
        /// Name of the input.
        input: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A recording of an earlier version.
    #[error(
        "{input}: is a recording, which was removed: write requests, see docs/simulation.md, Requests"
    )]
    Recording {
        /// Name of the input.
        input: String,
    },
    /// A file that is compressed by zstd.
    #[error("{input}: zstd was removed: use zstdcat, into --traffic -")]
    Zstd {
        /// Name of the input.
        input: String,
    },
    /// A log, but no format.
    #[error("{input}: is a log: --format must be given, such as combined or jsonl")]
    NoFormat {
        /// Name of the input.
        input: String,
    },
    /// Mappings without a format.
    #[error("--map must be given with --format: without it lines are requests")]
    MappedRequests,
    /// A mapping can't be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
}
