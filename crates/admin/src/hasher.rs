//! The key by which ids are hashed where they leave the store: in the audit, streams and sketches.
//!
//! It is that of `privacy.key-file`, or else a random one that the instances made once and keep in
//! the store. The latter hides ids from readers of the audit, not from who can read the store.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_limiter::fleet::{Fleet, SECRET_LEN};
use rlaas_telemetry::keyed;
use tokio::sync::OnceCell;

use rlaas_core::clock::Deadline;
use rlaas_core::rules::KeyHasher;
use rlaas_limiter::store::{Fate, StoreError};

/// Name of the secret of a fleet.
const SECRET: &str = "secret";

/// The hasher by the key of `privacy.key-file`, if there is one. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ConfiguredHasher(Arc<ArcSwapOption<KeyHasher>>);

impl ConfiguredHasher {
    /// Replaces the hasher, after a reload of the configuration.
    pub fn replace(&self, hasher: Option<KeyHasher>) {
        self.0.store(hasher.map(Arc::new));
    }
}

impl From<Option<KeyHasher>> for ConfiguredHasher {
    fn from(hasher: Option<KeyHasher>) -> Self {
        Self(Arc::new(ArcSwapOption::from_pointee(hasher)))
    }
}

/// A hasher whose key may lie in the store. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedHasher {
    fleet: Fleet,
    configured: ConfiguredHasher,
    by_secret: Arc<OnceCell<KeyHasher>>,
}

impl SharedHasher {
    /// Creates a hasher with the configured key, or else with the secret of the fleet.
    pub fn new(fleet: Fleet, configured: ConfiguredHasher) -> Self {
        Self { fleet, configured, by_secret: Arc::default() }
    }

    /// Returns the hasher in force. The first call without a configured key asks the store.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer before the deadline.
    pub async fn hasher(&self, deadline: Deadline) -> Result<KeyHasher, StoreError> {
        if let Some(configured) = &*self.configured.0.load() {
            return Ok(KeyHasher::clone(configured));
        }
        let hasher = self.by_secret.get_or_try_init(async || {
            let mut candidate = [0; SECRET_LEN];
            let filled = SystemRandom::new().fill(&mut candidate);
            filled.map_err(|_| StoreError::custom(Fate::NotExecuted, NoRandomNumbers))?;
            let secret = self.fleet.secret(SECRET, candidate, deadline).await?;
            Ok(keyed(&secret))
        });
        hasher.await.cloned()
    }
}

/// The system gives no random numbers.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the system gives no random numbers")]
struct NoRandomNumbers;
