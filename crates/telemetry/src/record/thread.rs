//! The thread that writes what other threads record.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use quanta::Instant;
use rlaas_core::clock::Clock;

use super::batch::{RecordBatch, RecordQueue};
use super::file::RecordFile;

/// Pause between two looks at the queue.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a block is written, full or not.
const BLOCK_INTERVAL: Duration = Duration::from_millis(500);

/// What the thread owns.
pub(super) struct RecordThread {
    pub(super) batches: Receiver<RecordBatch>,
    pub(super) queue: Weak<RecordQueue>,
    pub(super) file: RecordFile,
    pub(super) clock: Clock,
}

impl RecordThread {
    /// Writes until the recorder is closed, or its last handle dropped.
    pub(super) fn run(mut self) {
        let mut flushed = Instant::now();
        loop {
            // Read before the queue is found to be empty.
            let is_closing =
                self.queue.upgrade().is_none_or(|queue| queue.is_closing.load(Ordering::Acquire));
            match self.batches.try_recv() {
                Ok(batch) => self.file.write(batch, self.clock.now()),
                Err(TryRecvError::Empty) if !is_closing => {
                    self.clock.follow_wall_time();
                    // This thread is not woken: that would cost a deciding thread a system call.
                    thread::park_timeout(POLL_INTERVAL);
                }
                Err(_) => break,
            }
            if flushed.elapsed() >= BLOCK_INTERVAL {
                self.flush();
                flushed = Instant::now();
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if let Some(queue) = self.queue.upgrade() {
            self.file.add_lost(queue.lost.swap(0, Ordering::Relaxed));
        }
        self.file.flush(self.clock.now());
    }
}
