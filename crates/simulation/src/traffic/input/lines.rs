//! Lines of bounded length.

use std::io::{self, Read};
use std::sync::Arc;

use memchr::memchr;

use super::{DecodedStream, InputEnd, InputError, InputStatus};

/// Length of the longest line that is read, in bytes without its end: 1 MiB.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Bytes of a line above [`MAX_LINE_BYTES`] that are kept for the report.
const KEPT_BYTES: usize = 256;

/// Size of the buffer before a line needs more.
const BUFFER_BYTES: usize = 128 * 1024;

/// A line without its end, LF or CRLF. It may have any bytes, NUL among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawLine<'a> {
    /// A line that was read.
    Whole(&'a [u8]),
    /// A line above [`MAX_LINE_BYTES`], which was skipped.
    TooLong {
        /// Its first bytes.
        start: &'a [u8],
        /// Its length in bytes.
        length: u64,
    },
}

/// The lines of an input. A last line needs no end, unless the input breaks off there: then the line
/// is not complete and is left out.
#[derive(Debug)]
pub struct LineReader {
    name: String,
    stream: DecodedStream,
    status: Arc<InputStatus>,
    buffer: Vec<u8>,
    /// The bytes of the buffer that were not yet returned.
    start: usize,
    end: usize,
    number: u64,
}

impl LineReader {
    pub(super) fn new(name: String, stream: DecodedStream) -> Self {
        let status = stream.status();
        let mut lines =
            Self { name, stream, status, buffer: Vec::new(), start: 0, end: 0, number: 0 };
        // The mark that editors on Windows put at the beginning of UTF-8.
        let has_mark = |first: &[u8]| first.starts_with(b"\xef\xbb\xbf");
        if lines.stream.first_line(3).is_ok_and(has_mark) {
            let _ = lines.stream.read(&mut [0; 3]);
        }
        lines
    }

    /// Returns the name of the input.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of the line that was returned last; the first line is 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the position and the end of the input.
    pub fn status(&self) -> &Arc<InputStatus> {
        &self.status
    }

    /// Returns the next line; `None` at the end, which the status then tells.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn next_line(&mut self) -> Result<Option<RawLine<'_>>, InputError> {
        let mut searched = 0;
        loop {
            let unsearched = &self.buffer[self.start + searched..self.end];
            if let Some(found) = memchr(b'\n', unsearched) {
                let line = self.start..self.start + searched + found;
                self.start = line.end + 1;
                self.number += 1;
                return Ok(Some(self.whole(line)));
            }
            searched = self.end - self.start;
            if searched > MAX_LINE_BYTES + 1 {
                return self.skip_line().map(Some);
            }
            if self.fill()? == 0 {
                return Ok(self.last_line());
            }
        }
    }

    /// Returns the line of these bytes of the buffer.
    fn whole(&self, line: std::ops::Range<usize>) -> RawLine<'_> {
        let line = &self.buffer[line];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() <= MAX_LINE_BYTES {
            return RawLine::Whole(line);
        }
        RawLine::TooLong { start: &line[..KEPT_BYTES], length: line.len() as u64 }
    }

    /// Returns what follows the last line end, if it is complete.
    fn last_line(&mut self) -> Option<RawLine<'_>> {
        let line = self.start..self.end;
        self.start = self.end;
        if line.is_empty() || self.status.end() != Some(InputEnd::Complete) {
            return None;
        }
        self.number += 1;
        Some(self.whole(line))
    }

    /// Skips a line that is too long. Keeps its first bytes.
    fn skip_line(&mut self) -> Result<RawLine<'_>, InputError> {
        self.buffer.copy_within(self.start..self.start + KEPT_BYTES, 0);
        let mut length = (self.end - self.start) as u64;
        self.number += 1;
        loop {
            (self.start, self.end) = (KEPT_BYTES, KEPT_BYTES);
            if self.fill()? == 0 {
                break;
            }
            let read = &self.buffer[self.start..self.end];
            if let Some(found) = memchr(b'\n', read) {
                length += found as u64;
                self.start += found + 1;
                break;
            }
            length += read.len() as u64;
        }
        Ok(RawLine::TooLong { start: &self.buffer[..KEPT_BYTES], length })
    }

    /// Reads more bytes behind those that are there. Returns how many; 0 at the end.
    fn fill(&mut self) -> Result<usize, InputError> {
        if self.end == self.buffer.len() {
            self.make_room();
        }
        loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(InputError::Read { name: self.name.clone(), source }),
            }
        }
    }

    /// Moves the bytes to the front; if they take more than half of the buffer, doubles it.
    fn make_room(&mut self) {
        let length = self.end - self.start;
        if self.start > 0 && length <= self.buffer.len() / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, length);
        } else {
            self.buffer.resize((self.buffer.len() * 2).max(BUFFER_BYTES), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::super::{Input, RawLine};
    use super::*;

    #[test]
    fn the_buffer_stays_small_whatever_a_line_has() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&vec![0; 64 << 20]).expect("a vector");
        let bomb = encoder.finish().expect("a vector");
        assert!(bomb.len() < 1 << 20, "{}", bomb.len());
        let input = Input::from_reader("bomb".to_owned(), Box::new(Cursor::new(bomb)), None);
        let mut lines = input.expect("readable").into_lines();
        let line = lines.next_line().expect("no errors of files");
        assert!(matches!(line, Some(RawLine::TooLong { length, .. }) if length == 64 << 20));
        assert!(lines.buffer.len() <= 4 * MAX_LINE_BYTES, "{}", lines.buffer.len());
        assert_eq!(lines.status().decoded(), 64 << 20);
    }
}
