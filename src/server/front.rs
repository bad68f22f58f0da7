//! The addresses of one protocol and the workers behind them.

use std::io;
use std::num::NonZeroUsize;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tracing::error;

use super::Flag;
use super::accept::{self, Door};
use super::connection::Host;
use super::connection_limit::Seats;
use super::listener::Listener;
use super::workers::{Rest, Workers};
use crate::limiter::Limiter;

/// How large a front is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) workers: NonZeroUsize,
    pub(super) connections: u32,
    /// Connections to each listener that may wait for their first byte.
    pub(super) silent: u32,
}

/// Accept loops and the workers that serve what they accept.
#[derive(Debug)]
pub(super) struct Front {
    accepting: JoinSet<()>,
    workers: Workers,
    closing: watch::Sender<bool>,
}

impl Front {
    /// Starts to accept and to serve: each worker decides by a handle of `limiter` of its own, and
    /// answers as `host` has it.
    pub(super) fn open(
        listeners: Vec<Listener>,
        limiter: &Limiter,
        host: impl Fn(&Limiter) -> Host,
        size: Size,
    ) -> io::Result<Self> {
        let (closing, close) = watch::channel(false);
        let stop = Flag(close);
        let workers = Workers::spawn(size.workers, limiter, &host, &stop)?;
        let host = host(limiter);
        let settings = host.settings();
        let door = Door {
            intake: workers.intake(),
            seats: Seats::new(size.connections, settings.connections_per_address),
            patience: settings.request_time,
            most_silent: usize::try_from(size.silent).unwrap_or(usize::MAX),
            metrics: host.metrics(),
            stop,
        };
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn(accept::run(listener, door.clone()));
        }
        Ok(Self { accepting, workers, closing })
    }

    /// Completes when an accept loop has ended, which none does by itself.
    pub(super) async fn ended(&mut self) -> Option<Result<(), JoinError>> {
        self.accepting.join_next().await
    }

    /// Accepts no more, and waits for what is in flight.
    pub(super) async fn drain(mut self) -> Rest {
        self.closing.send_replace(true);
        while let Some(ended) = self.accepting.join_next().await {
            if let Err(error) = ended {
                error!(%error, "accept loop ended");
            }
        }
        self.workers.finish().await
    }
}
