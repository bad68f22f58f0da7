//! The keys in force: fetched in the background, at the start, every ten minutes, and when a token
//! names an unknown key.
//!
//! While the issuer is away the last good keys stay. Calls wait for a fetch only if it can let them
//! in, and not for long.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rlaas_core::clock::{Micros, Timestamp, jittered};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::fetch::{FetchError, IssuerDocuments, SignInEndpoints, fetch_documents};
use super::keys::{KeySet, PublicKey};
use super::settings::OidcSettings;

/// Longest time between two fetches.
const INTERVAL: Duration = Duration::from_mins(10);
/// Pauses after failed fetches: the first, and the longest.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// Shortest time between two fetches that tokens with unknown keys cause.
const REQUEST_INTERVAL: Micros = Micros::from_secs(30);
/// Longest time for which a call waits for a fetch.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of calls that wait for a fetch.
const MAX_WAITING: usize = 1_000;

/// The keys of the issuer, and the state of their fetches.
#[derive(Debug)]
pub(super) struct IssuerKeys {
    /// `None` until the first fetch succeeds.
    keys: ArcSwapOption<KeySet>,
    /// Those of the last fetch.
    endpoints: ArcSwapOption<SignInEndpoints>,
    /// Set while a fetch runs or is about to.
    is_fetching: AtomicBool,
    /// Wakes the background task for a fetch.
    requested: Notify,
    /// Time of the last request of a fetch, in microseconds; 0 before the first.
    requested_at: AtomicU64,
    /// Number of fetches that have ended.
    fetches: watch::Sender<u64>,
    waiting: AtomicUsize,
}

impl Default for IssuerKeys {
    fn default() -> Self {
        Self {
            keys: ArcSwapOption::empty(),
            endpoints: ArcSwapOption::empty(),
            // The background task begins with a fetch.
            is_fetching: AtomicBool::new(true),
            requested: Notify::new(),
            requested_at: AtomicU64::new(0),
            fetches: watch::Sender::new(0),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl IssuerKeys {
    /// Returns the keys in force; `None` if they were never fetched.
    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.keys.load_full()
    }

    /// Returns the endpoints for signing in; `None` if they were never fetched, or are not valid.
    pub(super) fn endpoints(&self) -> Option<Arc<SignInEndpoints>> {
        self.endpoints.load_full()
    }

    /// Returns `true` if a key is in force.
    pub(super) fn contains(&self, key: &Arc<PublicKey>) -> bool {
        self.keys.load().as_ref().is_some_and(|keys| keys.contains(key))
    }

    /// Puts keys in force.
    pub(super) fn replace(&self, keys: KeySet) {
        self.keys.store(Some(Arc::new(keys)));
    }

    /// Requests a fetch, unless one was requested in the last 30 seconds.
    pub(super) fn request_fetch(&self, now: Timestamp) {
        let (now, last) = (now.as_micros(), self.requested_at.load(Ordering::Relaxed));
        // A clock that stepped back does not keep the issuer from being asked.
        if last != 0 && now >= last && now - last < REQUEST_INTERVAL.as_micros() {
            return;
        }
        let swapped =
            self.requested_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
        if swapped.is_ok() {
            self.is_fetching.store(true, Ordering::Relaxed);
            self.requested.notify_one();
        }
    }

    /// Returns the end of the fetch that runs; `None` if none runs, or too many calls wait.
    pub(super) fn next_fetch(self: &Arc<Self>) -> Option<KeysAwaited> {
        if !self.is_fetching.load(Ordering::Relaxed) {
            return None;
        }
        let place = WaitingPlace::take(self)?;
        Some(KeysAwaited { fetches: self.fetches.subscribe(), _place: place })
    }

    /// Fetches the keys again and again, and calls `changed` with those that replace others.
    pub(super) async fn run(&self, settings: &OidcSettings, changed: impl Fn(&KeySet)) {
        let mut failures = 0;
        loop {
            self.is_fetching.store(true, Ordering::Relaxed);
            let before = self.current().unwrap_or_default();
            let pause = match fetch_documents(settings, &before).await {
                Ok(IssuerDocuments { keys, endpoints }) => {
                    self.endpoints.store(endpoints.map(Arc::new));
                    log_fetched(&keys, &before, failures);
                    self.replace(keys.clone());
                    changed(&keys);
                    failures = 0;
                    INTERVAL
                }
                Err(error) => {
                    log_failed(settings, &error, failures);
                    failures += 1;
                    backoff(failures)
                }
            };
            self.is_fetching.store(false, Ordering::Relaxed);
            self.fetches.send_modify(|count| *count += 1);
            let _requested_or_due = timeout(jittered(pause), self.requested.notified()).await;
        }
    }
}

/// Returns the longest pause after this number of failures in a row.
fn backoff(failures: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
    INITIAL_BACKOFF.saturating_mul(factor).min(MAX_BACKOFF)
}

fn log_fetched(keys: &KeySet, before: &KeySet, failures: u32) {
    let count = keys.len();
    if count == 0 {
        warn!("the OIDC issuer has no key for RS256, ES256 or EdDSA: its tokens are refused");
    } else if failures > 0 || !before.is_same(keys) {
        info!(keys = count, failures, "keys of the OIDC issuer fetched");
    } else {
        debug!(keys = count, "keys of the OIDC issuer are unchanged");
    }
}

/// Logs the first failure of a row as a warning.
fn log_failed(settings: &OidcSettings, error: &FetchError, failures: u32) {
    let (issuer, cause) = (settings.issuer.name(), error.source().map(tracing::field::display));
    if failures == 0 {
        warn!(issuer, %error, cause, "fetching the keys of the OIDC issuer failed");
    } else {
        debug!(issuer, %error, cause, failures, "fetching the keys of the OIDC issuer failed");
    }
}

/// The end of a fetch that may let a call in.
#[derive(Debug)]
pub struct KeysAwaited {
    fetches: watch::Receiver<u64>,
    _place: WaitingPlace,
}

impl KeysAwaited {
    /// Waits for the end of the fetch, at most one second.
    pub async fn wait(mut self) {
        let _ended_or_late = timeout(MAX_WAIT, self.fetches.changed()).await;
    }
}

/// One of the calls that may wait.
#[derive(Debug)]
struct WaitingPlace(Arc<IssuerKeys>);

impl WaitingPlace {
    fn take(keys: &Arc<IssuerKeys>) -> Option<Self> {
        // Its drop frees the place, also if there is none.
        let place = Self(Arc::clone(keys));
        let taken = keys.waiting.fetch_add(1, Ordering::Relaxed);
        (taken < MAX_WAITING).then_some(place)
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_cause_a_fetch_at_most_every_30_seconds() {
        let keys = Arc::new(IssuerKeys::default());
        let at = |seconds| Timestamp::EPOCH + Micros::from_secs(seconds);
        for (seconds, fetches) in
            [(100, true), (100, false), (129, false), (130, true), (159, false), (90, true)]
        {
            keys.is_fetching.store(false, Ordering::Relaxed);
            keys.request_fetch(at(seconds));
            assert_eq!(keys.next_fetch().is_some(), fetches, "{seconds}");
        }
    }

    #[test]
    fn at_most_1_000_calls_wait() {
        let keys = Arc::new(IssuerKeys::default());
        let mut waiting: Vec<_> = (0..MAX_WAITING).map_while(|_| keys.next_fetch()).collect();
        assert_eq!(waiting.len(), MAX_WAITING);
        assert!(keys.next_fetch().is_none() && keys.next_fetch().is_none());
        waiting.pop();
        assert!(keys.next_fetch().is_some());
    }

    #[test]
    fn pauses_after_failures_grow_to_a_minute() {
        let seconds = [1, 2, 6, 7, 100, u32::MAX].map(|failures| backoff(failures).as_secs());
        assert_eq!(seconds, [1, 2, 32, 60, 60, 60]);
    }
}
