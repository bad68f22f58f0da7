//! The API keys in force, as the administration knows them.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use rlaas_core::clock::{Micros, Timestamp};
use rlaas_telemetry::sharded::RequestCounters;
use thiserror::Error;
use tokio::sync::watch;

use super::api_key_text::{ApiKeyText, MalformedApiKey};
use super::project_id::ProjectId;

/// The API keys of all projects in force.
pub trait KnownApiKeys: Debug + Send + Sync {
    /// Returns the holder of a key, and remembers its use. Takes the same time for each key with
    /// the same id.
    ///
    /// # Errors
    ///
    /// [`KeyRefusal`]. A text without the form or the checksum of a key is not looked up.
    fn find(&self, text: &str, now: Timestamp) -> Result<Arc<KeyHolder>, KeyRefusal>;

    /// Returns `true` if the keys in force are known, or will soon be known to be none.
    fn is_ready(&self) -> bool;

    /// Returns a receiver of the changes of [`Self::is_ready`] and [`Self::is_barred`].
    fn changes(&self) -> watch::Receiver<()>;

    /// Returns `true` if the keys are of a catalogue that the store may not know.
    fn is_barred(&self) -> bool;

    /// Returns the time since the keys were last known to be in force; `None`: they never were.
    fn age(&self) -> Option<Micros>;

    /// Returns `true` if the keys were ever known to be in force.
    fn is_known(&self) -> bool;
}

/// The holder of an API key.
#[derive(Debug)]
pub struct KeyHolder {
    /// The project that the key belongs to.
    pub project: ProjectId,
    /// The id of the first key of its line, which rotations do not change.
    pub line: String,
    /// Attributes of its requests: names, which begin with `key.`, and values.
    pub attributes: Vec<(String, String)>,
    /// Counts the requests with the key, from the first one on.
    pub requests: Arc<OnceLock<Arc<RequestCounters>>>,
}

impl KeyHolder {
    /// Returns what counts the requests with the key.
    pub fn requests(&self) -> &Arc<RequestCounters> {
        self.requests.get_or_init(Arc::default)
    }
}

/// The reason why an API key is refused. The texts do not tell whether the key has ever existed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyRefusal {
    /// The text is no API key: it was not looked up.
    #[error("the API key {0}")]
    Malformed(#[from] MalformedApiKey),
    /// There is no such key.
    #[error("the API key is unknown, expired or revoked")]
    Unknown,
    /// The key has expired.
    #[error("the API key is unknown, expired or revoked")]
    Expired,
    /// The key was revoked.
    #[error("the API key is unknown, expired or revoked")]
    Revoked,
    /// The keys in force are not known.
    #[error("the API keys in force are not known: the store is away, or has lost some")]
    Unavailable,
}

/// The keys of a service without projects: they never get known.
#[derive(Debug, Default)]
pub(super) struct NoApiKeys(watch::Sender<()>);

impl KnownApiKeys for NoApiKeys {
    fn find(&self, text: &str, _now: Timestamp) -> Result<Arc<KeyHolder>, KeyRefusal> {
        ApiKeyText::parse(text)?;
        Err(KeyRefusal::Unavailable)
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }

    fn is_barred(&self) -> bool {
        false
    }

    fn age(&self) -> Option<Micros> {
        None
    }

    fn is_known(&self) -> bool {
        false
    }
}
