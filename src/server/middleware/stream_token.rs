//! The token that has opened a stream, checked again while the stream lasts.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::api::auth::TokenValidity;

/// Longest time between two checks. The time of the token's end is not slept for, because wall time
/// may be set, and the key of the token may be withdrawn.
const INTERVAL: Duration = Duration::from_secs(1);

/// A token of the issuer, and the time of its next check.
#[derive(Debug)]
pub(super) struct StreamToken {
    validity: TokenValidity,
    ticks: Interval,
}

impl StreamToken {
    pub(super) fn new(validity: TokenValidity) -> Self {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { validity, ticks }
    }

    /// Completes when the token has ended. While the stream has something to send, each call checks
    /// the token; while it waits, a timer does.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.validity.is_valid() {
            ready!(Pin::new(&mut self.ticks).poll_tick(cx));
        }
        Poll::Ready(())
    }
}
