//! Gzip of several members.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;

use super::raw::RawStream;
use super::{Corruption, InputEnd};

/// First bytes of a gzip member.
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The bytes of all members of a gzip file. Zeros after the last member, as tapes have them, are
/// skipped.
pub(super) struct GzipMembers {
    /// Absent only while one member is replaced by the next.
    member: Option<GzDecoder<BufReader<RawStream>>>,
}

impl GzipMembers {
    pub(super) fn new(raw: BufReader<RawStream>) -> Self {
        Self { member: Some(GzDecoder::new(raw)) }
    }

    pub(super) fn raw(&self) -> Option<&RawStream> {
        self.member.as_ref().map(|member| member.get_ref().get_ref())
    }

    /// Reads decompressed bytes. Returns 0 and how the input ended at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Result<usize, InputEnd>> {
        loop {
            let Some(member) = &mut self.member else { return Ok(Err(InputEnd::Complete)) };
            let count = member.read(buffer)?;
            if count > 0 {
                return Ok(Ok(count));
            }
            if let Some(end) = self.begin_next()? {
                return Ok(Err(end));
            }
        }
    }

    /// Begins the next member. Returns how the input ended if there is none.
    fn begin_next(&mut self) -> io::Result<Option<InputEnd>> {
        let Some(member) = self.member.take() else { return Ok(Some(InputEnd::Complete)) };
        let mut raw = member.into_inner();
        let mut has_padding = false;
        let next = loop {
            let bytes = match raw.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            let Some(zeros) = bytes.iter().position(|byte| *byte != 0) else {
                let count = bytes.len();
                if count == 0 {
                    break None;
                }
                has_padding = true;
                raw.consume(count);
                continue;
            };
            has_padding |= zeros > 0;
            let next = bytes[zeros];
            raw.consume(zeros);
            break Some(next);
        };
        match next {
            None => Ok(Some(InputEnd::Complete)),
            // The decoder checks the rest of the header.
            Some(next) if next == MAGIC[0] && !has_padding => {
                self.member = Some(GzDecoder::new(raw));
                Ok(None)
            }
            Some(_) => Ok(Some(InputEnd::Corrupt { why: Corruption::AfterGzip })),
        }
    }
}
