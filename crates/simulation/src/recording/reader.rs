//! Reads recordings of both forms.

use std::io::{self, BufRead, BufReader, Read};

use rlaas_core::clock::Timestamp;

use super::compact::{
    BLOCK_HEAD_LEN, FIRST_NUMBER, HEAD_LEN, HeaderChecksum, LOST, MAGIC, MAX_BLOCK, NEW_REQUEST,
    RESTART, block_head, header_len, read_header,
};
use super::encoding::{dictionary_bytes, read_request};
use super::error::RecordingError;
use super::header::Header;
use super::json_lines::JsonLinesReader;
use super::varint::ByteReader;
use crate::{Dictionary, TimedRequest};

/// Reads a recording: its header, then its requests in the order in which they were written, which
/// is nearly that of their times.
#[derive(Debug)]
pub struct Reader<R> {
    input: BufReader<R>,
    header: Header,
    dictionary: Dictionary,
    lost: u64,
    form: FormReader,
    has_ended: bool,
}

/// The form of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingForm {
    /// Bytes, in blocks with checksums.
    Compact,
    /// A JSON object a line.
    JsonLines,
}

#[derive(Debug)]
enum FormReader {
    Compact(BlockReader),
    JsonLines(JsonLinesReader),
}

/// The block that is being read.
#[derive(Debug)]
struct BlockReader {
    checksum: HeaderChecksum,
    /// Number of the next block.
    number: u64,
    block: Vec<u8>,
    /// Position in the block.
    at: usize,
    /// Time of the record before.
    last: u64,
    /// Bytes of the dictionary, by the measure of the format.
    dictionary: u64,
    max_dictionary: u64,
}

/// A record that is no known request.
enum Rare {
    Request(TimedRequest),
    Other,
}

impl<R: Read> Reader<R> {
    /// Reads the header of a recording of either form.
    ///
    /// # Errors
    ///
    /// [`RecordingError`] if the input has no header that can be read.
    pub fn new(input: R) -> Result<Self, RecordingError> {
        let mut input = BufReader::with_capacity(64 << 10, input);
        let is_compact = peek(&mut input)? == MAGIC[0];
        let (header, form) = if is_compact {
            let (header, checksum) = compact_header(&mut input)?;
            let max_dictionary = header.dictionary_bytes;
            (header, FormReader::Compact(BlockReader::new(checksum, max_dictionary)))
        } else {
            let (header, lines) = JsonLinesReader::new(&mut input)?;
            (header, FormReader::JsonLines(lines))
        };
        let dictionary = Dictionary::default();
        Ok(Self { input, header, dictionary, lost: 0, form, has_ended: false })
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the form.
    pub fn form(&self) -> RecordingForm {
        match self.form {
            FormReader::Compact(_) => RecordingForm::Compact,
            FormReader::JsonLines(_) => RecordingForm::JsonLines,
        }
    }

    /// Returns the requests of the arrivals: the numbers are those of its generation.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Returns how many requests the writer lost, up to what was read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads the next request; `None` at the end. Allocates nothing for a request that was read
    /// before. After an error there are no others.
    ///
    /// # Errors
    ///
    /// [`RecordingError`] if the recording is truncated or damaged here. What was read before is as
    /// it was written.
    #[expect(clippy::should_implement_trait, reason = "fallible, and it lends its dictionary")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<TimedRequest>, RecordingError> {
        if let FormReader::Compact(block) = &mut self.form
            && let Some(arrival) = block.known_request(self.dictionary.len())
        {
            return Ok(Some(arrival));
        }
        self.next_rare()
    }

    /// Reads what is no known request of the compact form.
    fn next_rare(&mut self) -> Result<Option<TimedRequest>, RecordingError> {
        if self.has_ended {
            return Ok(None);
        }
        let read = match &mut self.form {
            FormReader::Compact(block) => {
                block.next(&mut self.input, &mut self.dictionary, &mut self.lost)
            }
            FormReader::JsonLines(lines) => {
                lines.next(&mut self.input, &mut self.dictionary, &mut self.lost)
            }
        };
        self.has_ended = !matches!(read, Ok(Some(_)));
        if self.has_ended
            && let FormReader::Compact(block) = &mut self.form
        {
            block.block.clear();
        }
        read
    }
}

impl BlockReader {
    fn new(checksum: HeaderChecksum, max_dictionary: u64) -> Self {
        let (block, dictionary) = (Vec::new(), 0);
        Self { checksum, number: 0, block, at: 0, last: 0, dictionary, max_dictionary }
    }

    /// Reads a record, if it is a known request.
    #[inline]
    fn known_request(&mut self, requests: usize) -> Option<TimedRequest> {
        let mut reader = ByteReader::new(&self.block, self.at);
        let code = reader.number()?;
        let number = (code >> 1).checked_sub(FIRST_NUMBER)?;
        let request = u32::try_from(number).ok().filter(|number| (*number as usize) < requests)?;
        let at = self.last.wrapping_add_signed(reader.signed()?);
        (self.at, self.last) = (reader.position(), at);
        let at = Timestamp::from_micros(at);
        Some(TimedRequest { at, request, was_refused: code & 1 == 1 })
    }

    fn next(
        &mut self,
        input: &mut impl Read,
        dictionary: &mut Dictionary,
        lost: &mut u64,
    ) -> Result<Option<TimedRequest>, RecordingError> {
        loop {
            if self.at == self.block.len() && !self.read_block(input)? {
                return Ok(None);
            }
            if let Some(arrival) = self.known_request(dictionary.len()) {
                return Ok(Some(arrival));
            }
            // The number of the next block was counted already.
            let damaged = RecordingError::Damaged { block: self.number - 1 };
            match self.rare(dictionary, lost).ok_or(damaged)? {
                Rare::Request(arrival) => return Ok(Some(arrival)),
                Rare::Other => {}
            }
        }
    }

    fn rare(&mut self, dictionary: &mut Dictionary, lost: &mut u64) -> Option<Rare> {
        let mut reader = ByteReader::new(&self.block, self.at);
        let code = reader.number()?;
        let rare = match code >> 1 {
            NEW_REQUEST => {
                let at = self.last.wrapping_add_signed(reader.signed()?);
                let request = read_request(&mut reader)?;
                self.dictionary += dictionary_bytes(&request);
                if self.dictionary > self.max_dictionary {
                    return None;
                }
                self.last = at;
                let (at, request) = (Timestamp::from_micros(at), dictionary.push(request));
                Rare::Request(TimedRequest { at, request, was_refused: code & 1 == 1 })
            }
            LOST => {
                *lost = lost.saturating_add(reader.number()?);
                Rare::Other
            }
            RESTART => {
                dictionary.clear();
                self.dictionary = 0;
                Rare::Other
            }
            _ => return None,
        };
        self.at = reader.position();
        Some(rare)
    }

    /// Reads the next block. Returns `false` at the end of the recording.
    fn read_block(&mut self, input: &mut impl Read) -> Result<bool, RecordingError> {
        let block = self.number;
        (self.at, self.last) = (0, 0);
        self.block.clear();
        let mut head = [0; BLOCK_HEAD_LEN];
        match read_full(input, &mut head)? {
            0 => return Err(RecordingError::Unfinished),
            BLOCK_HEAD_LEN => {}
            _ => return Err(RecordingError::Truncated { block }),
        }
        let (len, checksum) = block_head(head);
        if len > MAX_BLOCK {
            return Err(RecordingError::Damaged { block });
        }
        let read = input.by_ref().take(len as u64).read_to_end(&mut self.block)?;
        if read < len {
            self.block.clear();
            return Err(RecordingError::Truncated { block });
        }
        if self.checksum.of_block(block, &self.block) != checksum {
            self.block.clear();
            return Err(RecordingError::Damaged { block });
        }
        self.number += 1;
        if len > 0 {
            return Ok(true);
        }
        // Nothing follows the end.
        match read_full(input, &mut head[..1])? {
            0 => Ok(false),
            _ => Err(RecordingError::Damaged { block: self.number }),
        }
    }
}

fn peek(input: &mut impl BufRead) -> Result<u8, RecordingError> {
    input.fill_buf()?.first().copied().ok_or(RecordingError::NotARecording)
}

fn compact_header(input: &mut impl Read) -> Result<(Header, HeaderChecksum), RecordingError> {
    const TRUNCATED: RecordingError = RecordingError::Header("is truncated");
    let mut head = [0; HEAD_LEN];
    let read = read_full(input, &mut head)?;
    if !head[..read].starts_with(&MAGIC[..read.min(MAGIC.len())]) {
        return Err(RecordingError::NotARecording);
    }
    if read < HEAD_LEN {
        return Err(TRUNCATED);
    }
    let len = header_len(head)? + size_of::<u32>();
    let mut bytes = head.to_vec();
    if input.by_ref().take(len as u64).read_to_end(&mut bytes)? < len {
        return Err(TRUNCATED);
    }
    read_header(&bytes)
}

/// Reads until the buffer is full or the input ends, and returns how many bytes were read.
fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
