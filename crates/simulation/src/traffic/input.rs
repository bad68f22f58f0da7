//! Files and standard input, as lines.
//!
//! Files are decompressed as their names say. An input that breaks off or is corrupt is no error:
//! its lines are read as far as they go, and [`Lines::damage`] says what is wrong. This module does
//! not know what lines mean.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::{TrafficError, TrafficInput};

/// Bytes of a buffer.
const BUFFER_BYTES: usize = 128 << 10;
/// Bytes of a line that are read into memory: more than the largest request.
const MAX_READ_BYTES: u64 = 4 << 20;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// The lines of an input. Empty ones are left out, and so is one in which the input breaks off.
pub(super) struct Lines {
    reader: Box<dyn BufRead + Send>,
    /// The line that was read last, without its end.
    line: Vec<u8>,
    /// Whether there is only the beginning of the line.
    is_cut: bool,
    number: u64,
    is_peeked: bool,
    damage: Option<io::Error>,
}

impl TrafficInput {
    /// Opens the input.
    pub(super) fn open(&self) -> Result<Lines, TrafficError> {
        let Self::File(path) = self else {
            return Ok(Lines::new(Box::new(buffered(io::stdin()))));
        };
        let failed = |source| TrafficError::Open { input: self.to_string(), source };
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let reader = buffered(File::open(path).map_err(failed)?);
        let decoded: Box<dyn BufRead + Send> = match Compression::from_path(path) {
            Compression::None => Box::new(reader),
            Compression::Gzip => Box::new(buffered(MultiGzDecoder::new(reader))),
            Compression::Zstd => return Err(TrafficError::Zstd { input: self.to_string() }),
        };
        Ok(Lines::new(decoded))
    }
}

fn buffered<R: Read>(reader: R) -> BufReader<R> {
    BufReader::with_capacity(BUFFER_BYTES, reader)
}

impl Compression {
    /// Returns how a file of this name is compressed. A number at the end is of a rotation.
    fn from_path(path: &Path) -> Self {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        match &*extension {
            "gz" => Self::Gzip,
            "zst" => Self::Zstd,
            number if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                Self::from_path(&path.with_extension(""))
            }
            _ => Self::None,
        }
    }
}

impl Lines {
    fn new(reader: Box<dyn BufRead + Send>) -> Self {
        Self { reader, line: Vec::new(), is_cut: false, number: 0, is_peeked: false, damage: None }
    }

    /// Looks at the next line, which [`Self::advance`] returns again. Empty if there is none.
    pub(super) fn peek(&mut self) -> &[u8] {
        self.is_peeked = self.advance();
        &self.line
    }

    /// Reads the next line that is not empty. Returns `false` at the end.
    pub(super) fn advance(&mut self) -> bool {
        if std::mem::take(&mut self.is_peeked) {
            return true;
        }
        while self.damage.is_none() {
            self.line.clear();
            match self.read() {
                Ok(0) => return false,
                Ok(_) => self.number += 1,
                Err(error) => {
                    self.line.clear();
                    self.damage = Some(error);
                }
            }
            self.line.truncate(self.line.trim_ascii_end().len());
            if !self.line.is_empty() {
                return true;
            }
        }
        false
    }

    /// Reads a line with its end, or its beginning. Returns how many bytes these are.
    fn read(&mut self) -> io::Result<usize> {
        let mut reader = self.reader.by_ref().take(MAX_READ_BYTES);
        let length = reader.read_until(b'\n', &mut self.line)?;
        self.is_cut = length as u64 == MAX_READ_BYTES && !self.line.ends_with(b"\n");
        if self.is_cut {
            self.reader.skip_until(b'\n')?;
        }
        Ok(length)
    }

    /// Returns the line that was read last, if it has at most `max` bytes.
    pub(super) fn line(&self, max: usize) -> Option<&[u8]> {
        (!self.is_cut && self.line.len() <= max).then_some(&self.line)
    }

    /// Returns the beginning of the line that was read last as text, with its number from 1.
    pub(super) fn excerpt(&self, characters: usize) -> (u64, String) {
        let start = &self.line[..self.line.len().min(4 * characters)];
        (self.number, String::from_utf8_lossy(start).chars().take(characters).collect())
    }

    /// Returns why the input could be read no further, if it is truncated or corrupt.
    pub(super) fn damage(&self) -> Option<&io::Error> {
        self.damage.as_ref()
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_compressed_as_their_names_say() {
        for (name, expected) in [
            ("access.log", Compression::None),
            ("access.log.1", Compression::None),
            ("access.log.2.gz", Compression::Gzip),
            ("requests.jsonl.zst", Compression::Zstd),
            ("requests.jsonl.zst.12", Compression::Zstd),
            ("zst", Compression::None),
            ("1", Compression::None),
        ] {
            assert_eq!(Compression::from_path(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn memory_stays_small_whatever_a_line_has() {
        let text = [vec![b'x'; 20 << 20], b"\nnext\r\n\n  \nlast".to_vec()].concat();
        let mut lines = Lines::new(Box::new(io::Cursor::new(text)));
        assert!(lines.advance());
        assert_eq!(lines.line(usize::MAX), None);
        assert!(lines.line.capacity() <= 8 << 20);
        assert!(lines.advance());
        assert_eq!((lines.line(4), lines.number), (Some(&b"next"[..]), 2));
        assert!(lines.advance());
        assert_eq!((lines.line(3), lines.number), (None, 5));
        assert!(!lines.advance() && lines.damage().is_none());
    }
}
