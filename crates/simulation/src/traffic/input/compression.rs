//! Decompression, by the first bytes of an input.

use std::fmt;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use zstd::stream::read::Decoder as ZstdDecoder;

use super::gzip::{self, GzipMembers};
use super::raw::RawStream;
use super::{Corruption, InputEnd, InputStatus};

/// Largest window of a zstd frame that is read, as a power of two: 128 MiB.
pub const MAX_ZSTD_WINDOW_LOG: u32 = 27;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 128 * 1024;

/// How an input is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all.
    None,
    /// Gzip, of one member or several.
    Gzip,
    /// Zstandard, of one frame or several.
    Zstd,
}

impl Compression {
    /// Returns how an input is compressed that begins with these bytes.
    pub fn sniff(first: &[u8]) -> Self {
        let magic = first.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if first.starts_with(&gzip::MAGIC) {
            Self::Gzip
        } else if magic == 0xfd2f_b528 || magic & 0xffff_fff0 == 0x184d_2a50 {
            Self::Zstd
        } else {
            Self::None
        }
    }
}

/// The decompressed bytes of an input. They end where they can be read no further, and then
/// [`InputStatus::end`] says why. Errors are those of the file alone.
pub struct DecodedStream {
    decoder: Decoder,
    compression: Compression,
    status: Arc<InputStatus>,
    /// Bytes that were looked at, and how many of them were read again.
    first: Vec<u8>,
    given: usize,
}

enum Decoder {
    Plain(RawStream),
    Gzip(GzipMembers),
    Zstd(ZstdDecoder<'static, BufReader<RawStream>>),
}

impl DecodedStream {
    pub(super) fn new(raw: RawStream, status: Arc<InputStatus>) -> io::Result<Self> {
        let compression = Compression::sniff(raw.first_bytes());
        let buffered = |raw| BufReader::with_capacity(BUFFER_BYTES, raw);
        let decoder = match compression {
            Compression::None => Decoder::Plain(raw),
            Compression::Gzip => Decoder::Gzip(GzipMembers::new(buffered(raw))),
            Compression::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(buffered(raw))?;
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
                Decoder::Zstd(decoder)
            }
        };
        Ok(Self { decoder, compression, status, first: Vec::new(), given: 0 })
    }

    /// Returns how the input is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Returns the position and the end of the input, which change while it is read.
    pub fn status(&self) -> Arc<InputStatus> {
        Arc::clone(&self.status)
    }

    /// Looks at the first line, or at its beginning if it has more than `limit` bytes.
    pub(super) fn first_line(&mut self, limit: usize) -> io::Result<&[u8]> {
        let mut known = self.first.len();
        while known < limit && memchr::memchr(b'\n', &self.first).is_none() {
            self.first.resize(limit, 0);
            let mut first = std::mem::take(&mut self.first);
            let result = self.decode(&mut first[known..]);
            self.first = first;
            self.first.truncate(known + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => known += count,
            }
        }
        Ok(&self.first)
    }

    /// Reads decompressed bytes; 0 at the end of what can be read.
    fn decode(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.status.end().is_some() {
            return Ok(0);
        }
        let result = match &mut self.decoder {
            Decoder::Plain(raw) => raw.read(buffer).map(Ok),
            Decoder::Gzip(members) => members.read(buffer),
            Decoder::Zstd(decoder) => decoder.read(buffer).map(Ok),
        };
        let end = match result {
            Ok(Ok(0)) => InputEnd::Complete,
            Ok(Ok(count)) => {
                self.status.add_decoded(count);
                return Ok(count);
            }
            Ok(Err(end)) => end,
            Err(error) if self.raw_has_failed() => return Err(error),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => return Err(error),
                io::ErrorKind::UnexpectedEof => InputEnd::Truncated,
                _ => InputEnd::Corrupt { why: self.corruption(&error) },
            },
        };
        self.status.finish(end);
        Ok(0)
    }

    fn raw_has_failed(&self) -> bool {
        match &self.decoder {
            Decoder::Plain(_) => true,
            Decoder::Gzip(members) => members.raw().is_some_and(RawStream::has_failed),
            Decoder::Zstd(decoder) => decoder.get_ref().get_ref().has_failed(),
        }
    }

    /// Returns what an error of the decoder says of the data.
    fn corruption(&self, error: &io::Error) -> Corruption {
        if self.compression == Compression::Gzip {
            return Corruption::Gzip;
        }
        // The library passes on the texts of its errors alone.
        match error.to_string().as_str() {
            "Frame requires too much memory for decoding" => Corruption::ZstdWindow,
            "Unknown frame descriptor" => Corruption::AfterZstd,
            _ => Corruption::Zstd,
        }
    }
}

impl Read for DecodedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let first = &self.first[self.given..];
        if first.is_empty() {
            return self.decode(buffer);
        }
        let count = buffer.len().min(first.len());
        buffer[..count].copy_from_slice(&first[..count]);
        self.given += count;
        Ok(count)
    }
}

impl fmt::Debug for DecodedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("DecodedStream");
        debug.field("compression", &self.compression).field("status", &self.status);
        debug.finish_non_exhaustive()
    }
}
