//! The credentials that have opened a stream, checked again while the stream lasts.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rlaas_auth::StreamAccess;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Time between two checks. The end of a token or a key is not slept for, because wall time may be
/// set, and the key of a token may be withdrawn.
const INTERVAL: Duration = Duration::from_secs(1);

/// The credentials of a stream, and the time of their next check.
#[derive(Debug)]
pub(super) struct StreamGuard {
    access: StreamAccess,
    ticks: Interval,
}

impl StreamGuard {
    pub(super) fn new(access: StreamAccess) -> Self {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { access, ticks }
    }

    /// Completes when the call would not be admitted any more.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(Pin::new(&mut self.ticks).poll_tick(cx));
            if !self.access.is_admitted() {
                return Poll::Ready(());
            }
        }
    }
}
