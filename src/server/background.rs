//! One background thread for long tasks, so that no decision and no probe waits for them.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime that runs blocking tasks on one thread, which starts with the first task.
#[derive(Debug)]
pub(super) struct BackgroundThread(Option<Runtime>);

impl BackgroundThread {
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = Builder::new_current_thread();
        Ok(Self(Some(builder.thread_name("background").max_blocking_threads(1).build()?)))
    }

    /// Returns the handle by which tasks are spawned on the thread.
    pub(super) fn handle(&self) -> Handle {
        self.0.as_ref().expect("only drop takes it").handle().clone()
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // A plain drop waits for the tasks, and tokio panics if it happens on another runtime.
            runtime.shutdown_background();
        }
    }
}
