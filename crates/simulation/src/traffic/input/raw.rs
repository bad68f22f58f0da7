//! The bytes of an input as they come, counted.

use std::io::{self, Read};
use std::sync::Arc;

use super::InputStatus;

/// Bytes at the beginning that say how an input is compressed.
const FIRST_BYTES: usize = 8;

/// The bytes of an input, before decompression. The first ones can be looked at.
pub(super) struct RawStream {
    reader: Box<dyn Read + Send>,
    status: Arc<InputStatus>,
    first: [u8; FIRST_BYTES],
    /// How many of `first` there are, and how many of them were read again.
    known: usize,
    given: usize,
    has_failed: bool,
}

impl RawStream {
    /// Reads the first bytes.
    pub(super) fn new(
        reader: Box<dyn Read + Send>,
        status: Arc<InputStatus>,
    ) -> Result<Self, io::Error> {
        let first = [0; FIRST_BYTES];
        let mut raw = Self { reader, status, first, known: 0, given: 0, has_failed: false };
        while raw.known < FIRST_BYTES {
            match raw.reader.read(&mut raw.first[raw.known..]) {
                Ok(0) => break,
                Ok(count) => raw.known += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        raw.status.add_read(raw.known);
        Ok(raw)
    }

    /// Returns the first bytes, at most eight.
    pub(super) fn first_bytes(&self) -> &[u8] {
        &self.first[..self.known]
    }

    /// Returns `true` if the reader failed. Other errors are of the decompression.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }
}

impl Read for RawStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given < self.known {
            let count = buffer.len().min(self.known - self.given);
            buffer[..count].copy_from_slice(&self.first[self.given..self.given + count]);
            self.given += count;
            return Ok(count);
        }
        match self.reader.read(buffer) {
            Ok(count) => {
                self.status.add_read(count);
                Ok(count)
            }
            Err(error) => {
                self.has_failed |= error.kind() != io::ErrorKind::Interrupted;
                Err(error)
            }
        }
    }
}
