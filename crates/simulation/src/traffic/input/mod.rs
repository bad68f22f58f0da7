//! Files and standard input, as lines.
//!
//! Bytes are decompressed as their first bytes say, whatever a file is called, and split into lines.
//! Memory is bounded whatever the bytes are. An input that breaks off or is corrupt is no error: its
//! lines are read as far as they go, and then [`InputStatus::end`] says how it ended.
//!
//! This module does not know what lines mean.

mod compression;
mod gzip;
mod kind;
mod lines;
mod raw;
mod status;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use compression::{Compression, DecodedStream, MAX_ZSTD_WINDOW_LOG};
pub use kind::InputKind;
pub use lines::{LineReader, MAX_LINE_BYTES, RawLine};
pub use status::{Corruption, InputEnd, InputStatus};

use raw::RawStream;

use crate::traffic::TrafficInput;

/// An input that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file can't be opened.
    #[error("{name}: cannot be opened")]
    Open {
        /// Name of the input.
        name: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The path is a folder.
    #[error("{name}: is a folder, must be a file")]
    Folder {
        /// Name of the input.
        name: String,
    },
    /// Reading failed. This is not the end of a truncated file, which is a state.
    #[error("{name}: cannot be read")]
    Read {
        /// Name of the input.
        name: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The input is in a form that is known but not read.
    #[error("{name}: is {form}, must be text, gzip or zstd")]
    Form {
        /// Name of the input.
        name: String,
        /// What it is.
        form: &'static str,
    },
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

    /// Opens the input. Reads its first bytes.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or read, or is in a form that is not read, such as xz.
    pub fn open(&self) -> Result<Input, InputError> {
        let (reader, size): (Box<dyn io::Read + Send>, _) = match self {
            Self::StandardInput => (Box::new(io::stdin()), None),
            Self::File(path) => {
                let (file, size) = self.open_file(path)?;
                (Box::new(file), size)
            }
        };
        Input::from_reader(self.to_string(), reader, size)
    }

    /// Opens a file, reads its first lines and closes it. Returns `None` for standard input and
    /// named pipes, which can be read only once.
    ///
    /// At most `lines` lines are read, and none from the first one that is longer
    /// than [`MAX_LINE_BYTES`].
    ///
    /// # Errors
    ///
    /// As [`TrafficInput::open`].
    pub fn peek(&self, lines: usize) -> Result<Option<FirstLines>, InputError> {
        let Self::File(path) = self else { return Ok(None) };
        let (file, size) = self.open_file(path)?;
        if size.is_none() {
            return Ok(None);
        }
        let input = Input::from_reader(self.to_string(), Box::new(file), size)?;
        let (kind, mut reader) = (input.kind(), input.into_lines());
        let mut first = FirstLines { kind, lines: Vec::new(), size };
        while kind == InputKind::Text && first.lines.len() < lines {
            match reader.next_line()? {
                Some(RawLine::Whole(line)) => first.lines.push(line.to_owned()),
                Some(RawLine::TooLong { .. }) | None => break,
            }
        }
        Ok(Some(first))
    }

    /// Opens a file. Returns it with its size, if it is a regular file.
    fn open_file(&self, path: &Path) -> Result<(File, Option<u64>), InputError> {
        let failed = |source| InputError::Open { name: self.to_string(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(InputError::Folder { name: self.to_string() });
        }
        Ok((file, metadata.is_file().then_some(metadata.len())))
    }
}

/// The beginning of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstLines {
    /// What the file has.
    pub kind: InputKind,
    /// Its first lines, without line ends; none if the file is a recording.
    pub lines: Vec<Vec<u8>>,
    /// Size of the file in bytes.
    pub size: Option<u64>,
}

/// An open input, decompressed.
#[derive(Debug)]
pub struct Input {
    name: String,
    kind: InputKind,
    stream: DecodedStream,
}

impl Input {
    /// Makes an input of any reader, with its size in bytes if that is known.
    ///
    /// # Errors
    ///
    /// If the first bytes cannot be read, or are of a form that is not read, such as xz.
    pub fn from_reader(
        name: String,
        reader: Box<dyn io::Read + Send>,
        size: Option<u64>,
    ) -> Result<Self, InputError> {
        let status = Arc::new(InputStatus::new(size));
        let failed = |name: &String, source| InputError::Read { name: name.clone(), source };
        let raw = RawStream::new(reader, Arc::clone(&status)).map_err(|why| failed(&name, why))?;
        if let Some(form) = kind::unsupported_form(raw.first_bytes()) {
            return Err(InputError::Form { name, form });
        }
        let mut stream = DecodedStream::new(raw, status).map_err(|why| failed(&name, why))?;
        let first = stream.first_line(kind::SNIFFED_BYTES).map_err(|why| failed(&name, why))?;
        Ok(Self { kind: InputKind::sniff(first), name, stream })
    }

    /// Returns the name of the input.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the input has, as its first bytes say.
    pub fn kind(&self) -> InputKind {
        self.kind
    }

    /// Returns how the input is compressed.
    pub fn compression(&self) -> Compression {
        self.stream.compression()
    }

    /// Returns the position and the end of the input, which change while it is read.
    pub fn status(&self) -> Arc<InputStatus> {
        self.stream.status()
    }

    /// Turns the input into its lines.
    pub fn into_lines(self) -> LineReader {
        LineReader::new(self.name, self.stream)
    }

    /// Turns the input into its decompressed bytes, from the first one on.
    pub fn into_stream(self) -> DecodedStream {
        self.stream
    }
}

#[cfg(test)]
mod tests;
