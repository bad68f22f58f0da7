//! Why traffic can't be read.

use thiserror::Error;

use super::format::FormatError;
use super::input::InputError;
use super::mapping::MappingError;
use super::stamp::StampError;
use crate::recording::RecordingError;

/// Why traffic can't be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// An input can't be opened or read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A recording can't be read.
    #[error("{input}")]
    Recording {
        /// Name of the input.
        input: String,
        /// Why it can't be read.
        source: RecordingError,
    },
    /// The format can't be used, or has no such field.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A log, but no format.
    #[error("{input}: is a log: --format must be given, such as combined, nginx:FORMAT or jsonl")]
    NoFormat {
        /// Name of the input.
        input: String,
    },
    /// A format that does not say where something is, and no mapping.
    #[error("--map {name}=… must be given: the format {format} does not say where it is")]
    NotMapped {
        /// The name.
        name: &'static str,
        /// The format.
        format: &'static str,
    },
    /// A stamp of the end without a duration.
    #[error("--map duration=… must be given with --stamp end")]
    NoDuration,
    /// A duration that nothing is done with.
    #[error(
        "--stamp end must be given with --map duration=…: the duration is before the time then"
    )]
    NoStamp,
    /// Mappings or conditions of lines, and recordings that they do not apply to.
    #[error("--map and --where must be given for logs alone: recordings have requests, not fields")]
    MappedRecording,
    /// Standard input twice.
    #[error("- must be given once: standard input can be read once")]
    StandardInputTwice,
    /// A mapping or a condition can't be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A zone or a pattern of stamps can't be used.
    #[error(transparent)]
    Stamp(#[from] StampError),
    /// No inputs.
    #[error("traffic must be at least one file")]
    NoInputs,
}
