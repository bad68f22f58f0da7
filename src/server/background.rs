//! One thread in the background, for what takes long: no decision and no probe waits for it.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime that has nothing but a thread for blocking work, started with its first piece.
#[derive(Debug)]
pub(super) struct BackgroundThread(Option<Runtime>);

impl BackgroundThread {
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = Builder::new_current_thread();
        Ok(Self(Some(builder.thread_name("background").max_blocking_threads(1).build()?)))
    }

    /// Returns what spawns work there.
    pub(super) fn handle(&self) -> Handle {
        self.0.as_ref().expect("it is taken at the end alone").handle().clone()
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waiting for the work is not allowed in another runtime.
            runtime.shutdown_background();
        }
    }
}
