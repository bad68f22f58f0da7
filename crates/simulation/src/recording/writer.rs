//! Writes recordings in the compact form.

use std::fmt;
use std::io::Write;

use hashbrown::HashTable;
use rlaas_core::clock::Timestamp;

use super::compact::{
    FIRST_NUMBER, HeaderChecksum, LOST, MAX_DICTIONARY, NEW_REQUEST, RESTART, header_bytes,
};
use super::encoding::{decode, dictionary_bytes, push_recorded};
use super::error::RecordingError;
use super::fingerprint::FingerprintKey;
use super::header::Header;
use super::varint::{push, push_signed};
use crate::RecordedRequest;

/// Requests that are looked up together: the processor waits for memory once, not for each.
const TOGETHER: usize = 32;
/// Bytes of a payload after which a block is written.
const FULL_BLOCK: usize = 64 << 10;
/// Default of `dictionary_bytes`.
pub const DEFAULT_DICTIONARY_BYTES: u64 = 64 << 20;

/// Changes a request before it is written, as hashing its values does.
pub type Rewrite = Box<dyn Fn(RecordedRequest) -> RecordedRequest + Send>;

/// Writes a recording in the compact form.
///
/// Known requests are found by 96 bits of a keyed hash: two of them would have to have the same ones
/// to be mistaken for each other. The requests themselves are not kept.
pub struct Writer<W> {
    output: W,
    checksum: HeaderChecksum,
    max_dictionary: u64,
    /// Bytes that were written.
    len: u64,
    /// Number of the next block.
    number: u64,
    block: Vec<u8>,
    /// What is lost with the block if it can't be written.
    in_block: Discarded,
    /// Time of the record before, in this block.
    last: u64,
    numbers: HashTable<KnownRequest>,
    /// Bytes of the dictionary.
    dictionary: u64,
    /// How often the dictionary began afresh.
    restarts: u64,
    key: FingerprintKey,
    rewrite: Option<Rewrite>,
    buffer: Vec<u8>,
}

/// What a block had that could not be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Its requests.
    pub requests: u64,
    /// Requests that it said were lost.
    pub lost: u64,
}

/// A request of the dictionary. Small, since a look at it is mostly a cache miss.
#[derive(Clone, Copy, Debug)]
struct KnownRequest {
    fingerprint: Fingerprint,
    number: u32,
}

/// The first 96 bits of a keyed hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fingerprint([u32; 3]);

/// A request that arrived.
#[derive(Clone, Copy, Debug)]
pub struct EncodedRequest<'a> {
    /// Time at which it arrived.
    pub at: Timestamp,
    /// Its bytes.
    pub request: &'a [u8],
    /// Whether it was refused.
    pub was_refused: bool,
}

impl<W: Write> Writer<W> {
    /// Begins a recording: writes the header. If it has no `dictionary_bytes`, it gets
    /// [`DEFAULT_DICTIONARY_BYTES`].
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`], or [`RecordingError::Header`] if the header is too long or has a
    /// larger dictionary than a reader accepts.
    pub fn new(mut output: W, header: &Header) -> Result<Self, RecordingError> {
        let mut header = header.clone();
        if header.dictionary_bytes == 0 {
            header.dictionary_bytes = DEFAULT_DICTIONARY_BYTES;
        }
        if header.dictionary_bytes > MAX_DICTIONARY {
            return Err(RecordingError::Header("must have dictionary_bytes of at most 1 GiB"));
        }
        let (bytes, checksum) = header_bytes(&header)?;
        output.write_all(&bytes)?;
        Ok(Self {
            output,
            checksum,
            max_dictionary: header.dictionary_bytes,
            len: bytes.len() as u64,
            number: 0,
            block: Vec::with_capacity(FULL_BLOCK + 1024),
            in_block: Discarded::default(),
            last: 0,
            numbers: HashTable::new(),
            dictionary: 0,
            restarts: 0,
            key: FingerprintKey::random(),
            rewrite: None,
            buffer: Vec::new(),
        })
    }

    /// Changes requests before they are written. Called once for each new request of a dictionary.
    #[must_use]
    pub fn with_rewrite(self, rewrite: Rewrite) -> Self {
        Self { rewrite: Some(rewrite), ..self }
    }

    /// Writes a request.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`], or [`RecordingError::TooLarge`].
    pub fn write(
        &mut self,
        at: Timestamp,
        request: &RecordedRequest,
        was_refused: bool,
    ) -> Result<(), RecordingError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        push_recorded(&mut buffer, request);
        let encoded = EncodedRequest { at, request: &buffer, was_refused };
        let written = self.write_encoded(&mut [encoded].as_slice());
        self.buffer = buffer;
        written
    }

    /// Writes requests whose bytes [`push_fields`](super::push_fields) or
    /// [`push_descriptors`](super::push_descriptors) made, and takes them off the slice. A request
    /// that causes an error is taken off too, those behind it are still there.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`], or [`RecordingError::TooLarge`].
    pub fn write_encoded(
        &mut self,
        requests: &mut &[EncodedRequest<'_>],
    ) -> Result<(), RecordingError> {
        while !requests.is_empty() {
            let together = requests.len().min(TOGETHER);
            let mut fingerprints = [Fingerprint::default(); TOGETHER];
            for (fingerprint, written) in fingerprints.iter_mut().zip(*requests) {
                *fingerprint = Fingerprint::new(self.key.hash(written.request));
            }
            let fingerprints = &fingerprints[..together];
            let mut numbers = [None; TOGETHER];
            for (number, fingerprint) in numbers.iter_mut().zip(fingerprints) {
                *number = self.number(*fingerprint);
            }
            let restarts = self.restarts;
            for (fingerprint, number) in fingerprints.iter().zip(numbers) {
                let Some((written, others)) = requests.split_first() else { break };
                *requests = others;
                // It may have become known meanwhile, or unknown.
                let number = number.filter(|_| self.restarts == restarts);
                match number.or_else(|| self.number(*fingerprint)) {
                    Some(number) => self.push_head(FIRST_NUMBER + u64::from(number), *written),
                    None => self.push_new(*fingerprint, *written)?,
                }
                self.in_block.requests += 1;
                if self.block.len() >= FULL_BLOCK {
                    self.write_block()?;
                }
            }
        }
        Ok(())
    }

    /// Writes that requests were lost at this point.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn write_lost(&mut self, count: u64) -> Result<(), RecordingError> {
        if count > 0 {
            push(&mut self.block, LOST << 1);
            push(&mut self.block, count);
            self.in_block.lost += count;
        }
        if self.block.len() >= FULL_BLOCK { self.write_block() } else { Ok(()) }
    }

    /// Writes what a block has so far, so that a reader finds it.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn flush(&mut self) -> Result<(), RecordingError> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        Ok(self.output.flush()?)
    }

    /// Ends the recording, and returns the output.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn finish(mut self) -> Result<W, RecordingError> {
        self.flush()?;
        self.output.write_all(&self.checksum.head(self.number, &[]))?;
        self.output.flush()?;
        Ok(self.output)
    }

    /// Returns a whole recording of what was written so far, in memory.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Io`].
    pub fn copy_finished(&mut self) -> Result<Vec<u8>, RecordingError>
    where
        W: AsRef<[u8]>,
    {
        self.flush()?;
        let mut copy = self.output.as_ref().to_vec();
        copy.extend_from_slice(&self.checksum.head(self.number, &[]));
        Ok(copy)
    }

    /// Returns the bytes of the header and all blocks that were written.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if no block was written yet.
    pub fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// Returns the output.
    pub fn output(&mut self) -> &mut W {
        &mut self.output
    }

    /// Forgets the block that could not be written, and returns what was in it. The output must be
    /// cut to [`Writer::len`] bytes before the next one is written.
    pub fn discard(&mut self) -> Discarded {
        self.block.clear();
        self.last = 0;
        // The requests that the block had are in no block.
        self.restart();
        std::mem::take(&mut self.in_block)
    }

    #[inline]
    fn number(&self, fingerprint: Fingerprint) -> Option<u32> {
        let known = self.numbers.find(fingerprint.hash(), |one| one.fingerprint == fingerprint);
        known.map(|known| known.number)
    }

    /// Adds a request to the dictionary, and writes it.
    #[cold]
    fn push_new(
        &mut self,
        fingerprint: Fingerprint,
        written: EncodedRequest<'_>,
    ) -> Result<(), RecordingError> {
        let request = decode(written.request).ok_or(RecordingError::TooLarge)?;
        let request = match &self.rewrite {
            Some(rewrite) => rewrite(request),
            None => request,
        };
        let bytes = dictionary_bytes(&request);
        if bytes > self.max_dictionary {
            return Err(RecordingError::TooLarge);
        }
        if self.dictionary + bytes > self.max_dictionary {
            self.restart();
        }
        self.dictionary += bytes;
        let number = u32::try_from(self.numbers.len()).expect("at most 2^30 bytes");
        let known = KnownRequest { fingerprint, number };
        self.numbers.insert_unique(fingerprint.hash(), known, |known| known.fingerprint.hash());
        self.push_head(NEW_REQUEST, written);
        if self.rewrite.is_some() {
            push_recorded(&mut self.block, &request);
        } else {
            self.block.extend_from_slice(written.request);
        }
        Ok(())
    }

    #[inline]
    fn push_head(&mut self, code: u64, written: EncodedRequest<'_>) {
        let at = written.at.as_micros();
        push(&mut self.block, code << 1 | u64::from(written.was_refused));
        push_signed(&mut self.block, at.wrapping_sub(self.last).cast_signed());
        self.last = at;
    }

    fn restart(&mut self) {
        self.numbers.clear();
        self.dictionary = 0;
        self.restarts += 1;
        push(&mut self.block, RESTART << 1);
    }

    fn write_block(&mut self) -> Result<(), RecordingError> {
        let head = self.checksum.head(self.number, &self.block);
        self.output.write_all(&head)?;
        self.output.write_all(&self.block)?;
        self.len += (head.len() + self.block.len()) as u64;
        self.number += 1;
        self.block.clear();
        (self.last, self.in_block) = (0, Discarded::default());
        Ok(())
    }
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, number, .. } = self;
        f.debug_struct("Writer").field("len", len).field("number", number).finish_non_exhaustive()
    }
}

impl Fingerprint {
    #[inline]
    fn new(hash: u128) -> Self {
        let bytes = hash.to_le_bytes();
        let (words, _) = bytes.as_chunks::<4>();
        Self([words[0], words[1], words[2]].map(u32::from_le_bytes))
    }

    /// Returns 64 of the bits.
    #[inline]
    fn hash(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }
}
