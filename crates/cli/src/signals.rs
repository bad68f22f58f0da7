//! SIGTERM and SIGINT: the first one stops a command gracefully, the second one at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Counts SIGTERM and SIGINT.
pub struct Signals(watch::Receiver<u32>);

impl Signals {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// If a handler can't be installed.
    pub fn listen() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (count, counted) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                count.send_modify(|count| *count += 1);
            }
        });
        Ok(Self(counted))
    }

    /// Completes with the `n`th signal since the start.
    pub fn nth(&self, n: u32) -> impl Future<Output = ()> + use<> {
        let mut counted = self.0.clone();
        async move {
            let _never_closed = counted.wait_for(|count| *count >= n).await;
        }
    }
}
