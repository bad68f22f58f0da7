//! Reads the frames of a file, one after the other, and finds the next valid frame after damage.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::JournalError;
use super::frame::{
    FRAME_HEAD_LEN, FileKind, HEADER_LEN, MAX_PAYLOAD_LEN, Marker, is_torn, read_frame, read_header,
};

/// Bytes that are read at a time, beyond those of the longest frame.
const READ_LEN: usize = 4 << 20;

/// Outcome of reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// The marker of its frames. `None` if the header is damaged: then no frame can be recognised.
    pub(super) marker: Option<Marker>,
    /// End of the last valid frame, in bytes from the start of the file.
    pub(super) valid_len: u64,
    /// Length of the file in bytes.
    pub(super) len: u64,
    /// Bytes before the last valid frame that are not part of a valid frame.
    pub(super) damaged: u64,
}

impl Scan {
    /// Returns the number of bytes after the last valid frame.
    pub(super) fn torn(&self) -> u64 {
        self.len - self.valid_len
    }
}

/// Reads the header of a file. Returns the marker of its frames; `None` if it is damaged.
///
/// # Errors
///
/// [`JournalError::Io`], or [`JournalError::Version`].
pub(super) fn read_marker(path: &Path, kind: FileKind) -> Result<Option<Marker>, JournalError> {
    let mut header = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(HEADER_LEN as u64).read_to_end(&mut header));
    read.map_err(|error| JournalError::io("read", path, error))?;
    let other_version = |version| JournalError::Version { path: path.to_owned(), version };
    read_header(kind, &header).map_err(other_version)
}

/// Reads a file and passes the payload of each valid frame to `receive`, in order.
///
/// # Errors
///
/// As [`read_marker`]. Damage is no error: see [`Scan`].
pub(super) fn scan_file(
    path: &Path,
    kind: FileKind,
    receive: impl FnMut(&[u8]),
) -> Result<Scan, JournalError> {
    let marker = read_marker(path, kind)?;
    let scanned = File::open(path).and_then(|file| scan(file, marker, receive));
    scanned.map_err(|error| JournalError::io("read", path, error))
}

/// Returns `true` if what follows the last valid frame can be what a crash has left of a write.
pub(super) fn ends_torn(path: &Path, scan: &Scan) -> Result<bool, JournalError> {
    let Some(marker) = scan.marker else { return Ok(false) };
    let mut rest = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(scan.valid_len))?;
        file.read_to_end(&mut rest)
    });
    read.map_err(|error| JournalError::io("read", path, error))?;
    Ok(is_torn(&rest, marker, scan.valid_len))
}

fn scan(
    mut input: impl Read,
    marker: Option<Marker>,
    mut receive: impl FnMut(&[u8]),
) -> io::Result<Scan> {
    let Some(frame_marker) = marker else {
        let len = io::copy(&mut input, &mut io::sink())?;
        return Ok(Scan { marker, valid_len: 0, len, damaged: 0 });
    };
    let mut window = Window { input, buffer: Vec::new(), at: 0, offset: 0, is_at_end: false };
    window.peek(HEADER_LEN)?;
    window.skip(HEADER_LEN);
    let mut valid_len = window.offset;
    let (mut damaged, mut skipped) = (0, 0);
    loop {
        let offset = window.offset;
        let bytes = window.peek(FRAME_HEAD_LEN + MAX_PAYLOAD_LEN)?;
        if bytes.is_empty() {
            return Ok(Scan { marker, valid_len, len: offset, damaged });
        }
        if let Some(payload) = read_frame(bytes, frame_marker, offset) {
            receive(payload);
            let len = FRAME_HEAD_LEN + payload.len();
            window.skip(len);
            valid_len = window.offset;
            damaged += std::mem::take(&mut skipped);
        } else {
            window.skip(1);
            skipped += 1;
        }
    }
}

/// The part of a file that is in memory.
struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    /// Position in the buffer.
    at: usize,
    /// Position in the file.
    offset: u64,
    is_at_end: bool,
}

impl<R: Read> Window<R> {
    /// Returns the next bytes: at least `len`, or all up to the end of the file.
    fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        if self.buffer.len() - self.at < len && !self.is_at_end {
            self.buffer.drain(..self.at);
            self.at = 0;
            let missing = len - self.buffer.len() + READ_LEN;
            let read = self.input.by_ref().take(missing as u64).read_to_end(&mut self.buffer)?;
            self.is_at_end = read < missing;
        }
        Ok(&self.buffer[self.at..])
    }

    fn skip(&mut self, len: usize) {
        self.at += len;
        self.offset += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{header, push_frame};
    use super::*;

    /// Returns a file with these payloads, and the end of each frame.
    fn file(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let marker = Marker::random();
        let mut bytes = header(FileKind::Changes, marker).to_vec();
        let mut ends = Vec::new();
        for payload in payloads {
            let offset = bytes.len() as u64;
            push_frame(&mut bytes, marker, offset, payload);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Scan) {
        let mut payloads = Vec::new();
        let marker = read_header(FileKind::Changes, bytes).expect("format 2");
        let scan = scan(bytes, marker, |payload| payloads.push(payload.to_vec()));
        (payloads, scan.expect("memory can be read"))
    }

    /// Payloads of some lengths. One contains the bytes of a frame of another file.
    fn payloads() -> Vec<Vec<u8>> {
        let (foreign, _) = file(&[b"forged".to_vec()]);
        vec![vec![7; 1], (0..200).collect(), foreign, vec![0; 64], b"last".to_vec()]
    }

    #[test]
    fn a_file_cut_at_any_byte_keeps_every_whole_frame() {
        let payloads = payloads();
        let (bytes, ends) = file(&payloads);
        for len in 0..bytes.len() {
            let (found, scan) = read(&bytes[..len]);
            let whole = ends.iter().filter(|end| **end <= len).count();
            assert_eq!(found, payloads[..whole], "cut at {len}");
            assert_eq!((scan.len, scan.damaged), (len as u64, 0));
            let valid_len = if len < HEADER_LEN {
                0
            } else {
                ends[..whole].last().copied().unwrap_or(HEADER_LEN)
            };
            assert_eq!(scan.valid_len, valid_len as u64, "cut at {len}");
        }
    }

    #[test]
    fn a_flipped_bit_loses_its_frame_alone_and_is_noticed() {
        let payloads = payloads();
        let (bytes, ends) = file(&payloads);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let (found, scan) = read(&damaged);
                if at < HEADER_LEN {
                    assert_eq!((found.len(), scan.valid_len), (0, 0), "byte {at}");
                    continue;
                }
                let lost = ends.iter().filter(|end| **end <= at).count();
                let mut kept = payloads.clone();
                kept.remove(lost);
                assert_eq!(found, kept, "byte {at}, bit {bit}");
                let is_last = lost + 1 == payloads.len();
                assert_eq!(scan.damaged > 0, !is_last, "byte {at}, bit {bit}");
                assert_eq!(scan.torn() > 0, is_last, "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_frame_in_another_place_is_not_valid() {
        let (bytes, _) = file(&[b"one".to_vec(), b"two".to_vec()]);
        let mut copied = bytes.clone();
        copied.extend_from_slice(&bytes[HEADER_LEN..]);
        let (found, scan) = read(&copied);
        assert_eq!(found, [b"one", b"two"]);
        assert_eq!(scan.valid_len, bytes.len() as u64);
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        for version in [1, 3] {
            let (mut bytes, _) = file(&[]);
            bytes[8] = version;
            let checksum = crc32fast::hash(&bytes[..16]);
            bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(read_header(FileKind::Changes, &bytes), Err(version.into()));
        }
    }

    #[test]
    fn frames_longer_than_the_buffer_are_read() {
        let payloads: Vec<Vec<u8>> =
            [MAX_PAYLOAD_LEN, 1, READ_LEN, MAX_PAYLOAD_LEN].map(|len| vec![1; len]).into();
        let (bytes, _) = file(&payloads);
        assert_eq!(read(&bytes).0, payloads);
    }
}
