//! The state of the journal, as it is reported to the observer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::frame::FileKind;
use crate::observer::{Observer, StoreEvent};

/// State of the files, by kind.
#[derive(Debug)]
pub(super) struct Status {
    is_failing: [AtomicBool; 2],
    len: [AtomicU64; 2],
    observer: Arc<dyn Observer>,
}

impl Status {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { is_failing: Default::default(), len: Default::default(), observer }
    }

    pub(super) fn set_failing(&self, kind: FileKind, is_failing: bool) {
        self.is_failing[kind as usize - 1].store(is_failing, Ordering::SeqCst);
        let is_failing = self.is_failing.iter().any(|one| one.load(Ordering::SeqCst));
        self.observer.store(StoreEvent::JournalFailing(is_failing));
    }

    /// Sets the bytes on disk.
    pub(super) fn set_len(&self, kind: FileKind, len: u64) {
        let before = self.len[kind as usize - 1].swap(len, Ordering::SeqCst);
        if before != len {
            let len = self.len.iter().map(|one| one.load(Ordering::SeqCst)).sum();
            self.observer.store(StoreEvent::JournalLen(len));
        }
    }
}
