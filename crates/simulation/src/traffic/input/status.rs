//! How far an input was read, and how it ended.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far an input was read, and how it ended. Can be read on any thread while the input is read.
#[derive(Debug, Default)]
pub struct InputStatus {
    size: Option<u64>,
    read: AtomicU64,
    decoded: AtomicU64,
    end: OnceLock<InputEnd>,
}

/// How an input ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputEnd {
    /// All of it was read.
    Complete,
    /// It breaks off within compressed data.
    Truncated,
    /// Its compressed data is not valid from some place on.
    Corrupt {
        /// What is wrong with it.
        why: Corruption,
    },
}

/// What is wrong with compressed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// Deflate data or a checksum is wrong.
    #[error("the gzip data is corrupt")]
    Gzip,
    /// Bytes other than zeros and gzip follow a gzip member.
    #[error("the gzip data is followed by other bytes")]
    AfterGzip,
    /// A block or a checksum is wrong.
    #[error("the zstd data is corrupt")]
    Zstd,
    /// Bytes that are no zstd follow a frame.
    #[error("the zstd data is followed by other bytes")]
    AfterZstd,
    /// A frame needs more memory than it gets.
    #[error("a zstd frame has a window above {} MiB", (1_u64 << super::MAX_ZSTD_WINDOW_LOG) >> 20)]
    ZstdWindow,
}

impl InputStatus {
    pub(super) fn new(size: Option<u64>) -> Self {
        Self { size, ..Self::default() }
    }

    /// Returns the size of the input in bytes, if it is a file.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns how many bytes were read, before decompression.
    pub fn position(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Returns how many bytes there were after decompression.
    pub fn decoded(&self) -> u64 {
        self.decoded.load(Ordering::Relaxed)
    }

    /// Returns how the input ended; `None` if it is not read to its end.
    pub fn end(&self) -> Option<InputEnd> {
        self.end.get().copied()
    }

    pub(super) fn add_read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_decoded(&self, bytes: usize) {
        self.decoded.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sets how the input ended. The first one stays.
    pub(super) fn finish(&self, end: InputEnd) {
        let _ = self.end.set(end);
    }
}
