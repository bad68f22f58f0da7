//! Calls without end, counted by how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::Code;

use super::common::eventually;
use super::common::process::{Rlaas, check};

/// Clients that ask for one id until they are told to stop.
pub(super) struct Load {
    clients: JoinSet<()>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

#[derive(Default)]
pub(super) struct Tally {
    pub(super) passed: AtomicU64,
    pub(super) unavailable: AtomicU64,
    other: std::sync::Mutex<Vec<tonic::Status>>,
}

impl Load {
    pub(super) async fn start(server: &Rlaas, clients: usize) -> Self {
        let mut load =
            Self { clients: JoinSet::new(), stop: Arc::default(), tally: Arc::default() };
        for _ in 0..clients {
            let mut client = server.client().await;
            let (stop, tally) = (Arc::clone(&load.stop), Arc::clone(&load.tally));
            load.clients.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match check(&mut client, "alice").await {
                        Ok(_) => _ = tally.passed.fetch_add(1, Ordering::Relaxed),
                        Err(status) if status.code() == Code::Unavailable => {
                            assert_eq!(status.message(), "store unavailable");
                            tally.unavailable.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(status) => tally.other.lock().expect("no panic").push(status),
                    }
                }
            });
        }
        load
    }

    pub(super) fn passed(&self) -> u64 {
        self.tally.passed.load(Ordering::Relaxed)
    }

    pub(super) fn unavailable(&self) -> u64 {
        self.tally.unavailable.load(Ordering::Relaxed)
    }

    /// Waits until `count` more calls have passed; how long that took.
    pub(super) async fn more_pass(&self, count: u64, patience: Duration) -> Duration {
        let wanted = self.passed() + count;
        eventually("calls pass", patience, async || self.passed() >= wanted).await
    }

    pub(super) async fn more_fail(&self, count: u64) {
        let wanted = self.unavailable() + count;
        let patience = Duration::from_secs(5);
        eventually("calls fail", patience, async || self.unavailable() >= wanted).await;
    }

    /// Ends the load; no call may have met anything else than an answer or UNAVAILABLE.
    pub(super) async fn finish(mut self) -> Arc<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("no panic in a client");
        }
        let other = std::mem::take(&mut *self.tally.other.lock().expect("no panic"));
        assert!(other.is_empty(), "{other:?}");
        self.tally
    }
}
