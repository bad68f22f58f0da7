//! Errors of recordings.

use thiserror::Error;

use super::header::VERSION;

/// Reason why a recording can't be read.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// It has the form that recordings had before they were lines.
    #[error(
        "is a recording in the binary form, which was removed and is not read: recordings are JSON \
         Lines now; the file is left as it is"
    )]
    Binary,
    /// A later version wrote the recording.
    #[error("recording of version {0}: must be at most {VERSION}")]
    Newer(u64),
    /// The header is not one.
    #[error("the header of the recording can't be read")]
    Header(#[source] serde_json::Error),
}

/// What is wrong with a line.
#[derive(Debug, Error)]
pub enum LineProblem {
    /// Not a JSON object with the expected fields.
    #[error("the line of the recording can't be read: {0}")]
    Json(#[from] serde_json::Error),
    /// Neither a request by user nor one by descriptors, nor a count of lost requests.
    #[error("must have at_us, and user_id or domain and descriptors, or lost")]
    Neither,
}
