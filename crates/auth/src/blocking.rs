//! Work of a call that takes long.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// Runs long work on a thread of its own.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime ends.
        Err(_) => pending().await,
    }
}
