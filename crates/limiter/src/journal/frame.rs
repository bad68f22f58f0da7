//! The format of a journal file: a header, then frames, each with a marker, its length and a
//! checksum. Integers are little endian.
//!
//! | part | bytes | |
//! | --- | --- | --- |
//! | header | 8 | `rlaasjnl` |
//! | | 2 | version of the format: 2 |
//! | | 1 | kind of the file |
//! | | 1 | 0 |
//! | | 4 | marker of this file, random |
//! | | 4 | CRC-32 of the 16 bytes before |
//! | frame | 4 | the marker |
//! | | 4 | length of the payload: 1 byte to 16 MiB |
//! | | 4 | CRC-32 of the frame's offset in the file (8 bytes), the length and the payload |
//! | | … | the payload |
//!
//! The marker makes frames after damage recognisable. It is random, so that no key and no text of
//! a caller can pass for a frame. The offset tells a frame from a copy of it in another place.

use std::hash::{BuildHasher, RandomState};

/// Maximum length of a payload: the largest write to the catalogue fits.
pub(super) const MAX_PAYLOAD_LEN: usize = 16 << 20;
pub(super) const HEADER_LEN: usize = 20;
pub(super) const FRAME_HEAD_LEN: usize = 12;
const MAGIC: &[u8; 8] = b"rlaasjnl";
/// Version of the format. 1 had counters among the changes, before the first release.
pub(super) const VERSION: u16 = 2;

/// Subject of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// Changes, each on disk before its reply.
    Changes = 1,
    /// States of the memory store. 2 was used before the first release.
    Snapshot = 3,
}

/// A random number at the start of each frame of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker(u32);

impl Marker {
    pub(super) fn random() -> Self {
        // `RandomState` has new random keys each time.
        let [a, b, c, d, ..] = RandomState::new().hash_one(()).to_le_bytes();
        Self(u32::from_le_bytes([a, b, c, d]))
    }
}

/// Returns the header of a file.
pub(super) fn header(kind: FileKind, marker: Marker) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[10] = kind as u8;
    header[12..16].copy_from_slice(&marker.0.to_le_bytes());
    let checksum = crc32fast::hash(&header[..16]);
    header[16..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Reads the header of a file of this kind. `None` if it is damaged.
///
/// # Errors
///
/// The version of the format, if it is another one.
pub(super) fn read_header(kind: FileKind, header: &[u8]) -> Result<Option<Marker>, u16> {
    let Some(header) = header.get(..HEADER_LEN) else { return Ok(None) };
    if header[..8] != *MAGIC || crc32fast::hash(&header[..16]) != read_u32(header, 16) {
        return Ok(None);
    }
    let version = u16::from_le_bytes([header[8], header[9]]);
    if version != VERSION {
        return Err(version);
    }
    Ok((header[10] == kind as u8).then(|| Marker(read_u32(header, 12))))
}

/// Appends a frame that will be at `offset` of the file.
///
/// # Panics
///
/// If the payload is empty or longer than [`MAX_PAYLOAD_LEN`].
pub(super) fn push_frame(out: &mut Vec<u8>, marker: Marker, offset: u64, payload: &[u8]) {
    assert!((1..=MAX_PAYLOAD_LEN).contains(&payload.len()), "{} bytes", payload.len());
    let len = u32::try_from(payload.len()).expect("at most 16 MiB");
    out.extend_from_slice(&marker.0.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&checksum(offset, len, payload).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Returns the payload of the frame at the start of `bytes`, which are at `offset` of the file, if
/// there is a valid frame.
pub(super) fn read_frame(bytes: &[u8], marker: Marker, offset: u64) -> Option<&[u8]> {
    let head = bytes.get(..FRAME_HEAD_LEN)?;
    if read_u32(head, 0) != marker.0 {
        return None;
    }
    let len = read_u32(head, 4);
    if len == 0 || len as usize > MAX_PAYLOAD_LEN {
        return None;
    }
    let payload = bytes.get(FRAME_HEAD_LEN..FRAME_HEAD_LEN + len as usize)?;
    (checksum(offset, len, payload) == read_u32(head, 8)).then_some(payload)
}

/// Returns `true` if `bytes`, the last of a file and at `offset` of it, can be what a crash has left of
/// a write: zeros, or the beginning of one frame.
pub(super) fn is_torn(bytes: &[u8], marker: Marker, offset: u64) -> bool {
    if bytes.iter().all(|byte| *byte == 0) {
        return true;
    }
    let marker = marker.0.to_le_bytes();
    let begins_frame = bytes.iter().zip(marker).all(|(byte, expected)| *byte == expected);
    let Some((head, rest)) = bytes.split_at_checked(FRAME_HEAD_LEN) else { return begins_frame };
    let len = read_u32(head, 4) as usize;
    // Only the last frame is torn.
    let has_next = rest.windows(marker.len()).any(|bytes| *bytes == marker);
    if !begins_frame || has_next || len <= rest.len() || len > MAX_PAYLOAD_LEN {
        return false;
    }
    // Else the frame is whole, and its length damaged.
    let rest_len = u32::try_from(rest.len()).expect("less than 16 MiB");
    checksum(offset, rest_len, rest) != read_u32(head, 8)
}

fn checksum(offset: u64, len: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(&len.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
