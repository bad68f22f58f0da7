//! Errors of recordings.

use std::io;

use thiserror::Error;

use super::header::VERSION;

/// Reason why a recording can't be read to its end, or a request not be written.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The input can't be read, or the output not be written.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// The input does not begin as a recording does.
    #[error("not a recording: must begin with RLAASREC or {{\"rlaas_recording\":{VERSION}")]
    NotARecording,
    /// A later version wrote the recording.
    #[error("recording of version {0}: must be at most {VERSION}")]
    Newer(u64),
    /// The header is damaged, or its bounds are not acceptable.
    #[error("the header of the recording {0}")]
    Header(&'static str),
    /// A block is not as it was written.
    #[error("block {block} of the recording is damaged")]
    Damaged {
        /// Number of the block, from 0.
        block: u64,
    },
    /// The input ends within a block.
    #[error("the recording is truncated: it ends within block {block}")]
    Truncated {
        /// Number of the block, from 0.
        block: u64,
    },
    /// The input ends after a block, but not with the mark of the end.
    #[error("the recording has no end: it is still written, was cut, or its writer was killed")]
    Unfinished,
    /// A line is not a request.
    #[error("line {line} of the recording {problem}")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: LineProblem,
    },
    /// The request is larger than any valid one.
    #[error("the request is too large to be recorded")]
    TooLarge,
}

/// What is wrong with a line.
#[derive(Debug, Error)]
pub enum LineProblem {
    /// Not a JSON object with the expected fields.
    #[error("can't be read: {0}")]
    Json(#[source] serde_json::Error),
    /// Neither a request by user nor one by descriptors, nor a count of lost requests.
    #[error("must have user_id, or domain and descriptors, or lost")]
    Neither,
    /// Longer than any valid request.
    #[error("is too long")]
    TooLong,
    /// The input ends within the line.
    #[error("is truncated")]
    Truncated,
}

impl RecordingError {
    /// Returns `true` if the recording is readable up to a place: it is truncated or damaged.
    pub fn is_incomplete(&self) -> bool {
        match self {
            Self::Damaged { .. }
            | Self::Truncated { .. }
            | Self::Unfinished
            | Self::Line { .. } => true,
            Self::Io(error) => error.kind() == io::ErrorKind::UnexpectedEof,
            Self::NotARecording | Self::Newer(_) | Self::Header(_) | Self::TooLarge => false,
        }
    }
}

impl From<io::Error> for RecordingError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
