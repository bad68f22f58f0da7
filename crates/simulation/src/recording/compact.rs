//! The frame of the compact form: the header, and blocks with their checksums.

use super::error::RecordingError;
use super::header::{Header, VERSION};

/// First bytes of a recording.
pub(super) const MAGIC: &[u8; 8] = b"RLAASREC";
/// Bytes before the header: the magic, the version, the length of the header.
pub(super) const HEAD_LEN: usize = 14;
/// Longest header in bytes.
pub(super) const MAX_HEADER: usize = 64 << 10;
/// Bytes before a block's payload: its length and its checksum.
pub(super) const BLOCK_HEAD_LEN: usize = 8;
/// Longest payload of a block in bytes.
pub(super) const MAX_BLOCK: usize = 8 << 20;
/// Largest dictionary that is read, in bytes.
pub(super) const MAX_DICTIONARY: u64 = 1 << 30;

/// Codes of records. Those above are numbers of requests.
pub(super) const NEW_REQUEST: u64 = 0;
pub(super) const LOST: u64 = 1;
pub(super) const RESTART: u64 = 2;
/// Code of the request number 0.
pub(super) const FIRST_NUMBER: u64 = 3;

/// The checksum of the header, with which those of blocks begin: a block of another recording is not
/// taken for one of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderChecksum(u32);

impl HeaderChecksum {
    /// Returns the checksum of a block.
    pub(super) fn of_block(self, number: u64, payload: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.0.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        hasher.update(&(payload.len() as u64).to_le_bytes());
        hasher.update(payload);
        hasher.finalize()
    }

    /// Returns a block with its head. An empty one is the end of a recording.
    pub(super) fn head(self, number: u64, payload: &[u8]) -> [u8; BLOCK_HEAD_LEN] {
        let len = u32::try_from(payload.len()).expect("at most MAX_BLOCK");
        let mut head = [0; BLOCK_HEAD_LEN];
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..].copy_from_slice(&self.of_block(number, payload).to_le_bytes());
        head
    }
}

/// Returns the bytes of a header.
pub(super) fn header_bytes(header: &Header) -> Result<(Vec<u8>, HeaderChecksum), RecordingError> {
    let json = serde_json::to_vec(header).map_err(|_| RecordingError::Header("must be JSON"))?;
    if json.len() > MAX_HEADER {
        return Err(RecordingError::Header("must be at most 64 KiB"));
    }
    let len = u32::try_from(json.len()).expect("at most MAX_HEADER");
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&json);
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    Ok((bytes, HeaderChecksum(checksum)))
}

/// Returns the length of a block's payload, and its checksum.
pub(super) fn block_head(head: [u8; BLOCK_HEAD_LEN]) -> (usize, u32) {
    let (len, checksum) = head.split_at(4);
    let read = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    (read(len) as usize, read(checksum))
}

/// Returns the length of the header, which follows these bytes, with its checksum.
pub(super) fn header_len(head: [u8; HEAD_LEN]) -> Result<usize, RecordingError> {
    let version = u16::from_le_bytes([head[8], head[9]]);
    if version > VERSION {
        return Err(RecordingError::Newer(version.into()));
    }
    let len = u32::from_le_bytes([head[10], head[11], head[12], head[13]]) as usize;
    if version == 0 || len > MAX_HEADER { Err(DAMAGED) } else { Ok(len) }
}

/// Reads a header from all its bytes.
pub(super) fn read_header(bytes: &[u8]) -> Result<(Header, HeaderChecksum), RecordingError> {
    let (rest, checksum) = bytes.split_last_chunk().ok_or(DAMAGED)?;
    let checksum = u32::from_le_bytes(*checksum);
    if crc32fast::hash(rest) != checksum {
        return Err(DAMAGED);
    }
    let json = rest.get(HEAD_LEN..).ok_or(DAMAGED)?;
    let header: Header = serde_json::from_slice(json).map_err(|_| DAMAGED)?;
    if header.dictionary_bytes > MAX_DICTIONARY {
        return Err(RecordingError::Header("must have dictionary_bytes of at most 1 GiB"));
    }
    Ok((header, HeaderChecksum(checksum)))
}

const DAMAGED: RecordingError = RecordingError::Header("is damaged");
