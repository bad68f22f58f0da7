//! Writes recordings.

use std::io::{self, Write};

use super::header::Header;
use super::lines::RecordedLine;

/// Bytes of lines after which they are written.
const FULL_BLOCK: usize = 1 << 20;
/// Level at which recordings are compressed: the default of zstd.
const ZSTD_LEVEL: i32 = 3;

/// Whether a recording is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingForm {
    /// As it is.
    Plain,
    /// Each block is a frame of zstd, so that a file is whole after each block.
    Zstd,
}

/// Writes a recording in blocks of whole lines.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    form: RecordingForm,
    /// Bytes that were written.
    len: u64,
    /// Lines that are not written yet.
    block: Vec<u8>,
    /// What is lost with the block if it can't be written.
    in_block: Discarded,
}

/// What a block had that could not be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Its requests.
    pub requests: u64,
    /// Requests that it said were lost.
    pub lost: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a recording: writes the header.
    ///
    /// # Errors
    ///
    /// If the output can't be written.
    pub fn new(output: W, form: RecordingForm, header: &Header) -> io::Result<Self> {
        let (block, in_block) = (Vec::new(), Discarded::default());
        let mut writer = Self { output, form, len: 0, block, in_block };
        header.append_to(&mut writer.block);
        writer.flush()?;
        Ok(writer)
    }

    /// Adds a line. Writes the block if it is full.
    ///
    /// # Errors
    ///
    /// If the output can't be written.
    pub fn write(&mut self, line: RecordedLine) -> io::Result<()> {
        match line {
            RecordedLine::Request { .. } => self.in_block.requests += 1,
            RecordedLine::Lost(count) => self.in_block.lost += count,
        }
        line.append_to(&mut self.block);
        if self.block.len() >= FULL_BLOCK { self.flush() } else { Ok(()) }
    }

    /// Writes what a block has so far, so that a reader finds it.
    ///
    /// # Errors
    ///
    /// If the output can't be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let frame;
        let bytes = match self.form {
            RecordingForm::Plain => &self.block,
            RecordingForm::Zstd => {
                frame = zstd::encode_all(&*self.block, ZSTD_LEVEL)?;
                &frame
            }
        };
        self.output.write_all(bytes)?;
        self.output.flush()?;
        self.len += bytes.len() as u64;
        self.block.clear();
        self.in_block = Discarded::default();
        Ok(())
    }

    /// Returns the bytes of the blocks that were written.
    #[expect(clippy::len_without_is_empty, reason = "a recording has a header at least")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the output.
    pub fn output(&mut self) -> &mut W {
        &mut self.output
    }

    /// Forgets the block that could not be written, and returns what was in it. The output must be
    /// cut to [`Writer::len`] bytes before the next one is written.
    pub fn discard(&mut self) -> Discarded {
        self.block.clear();
        std::mem::take(&mut self.in_block)
    }
}
