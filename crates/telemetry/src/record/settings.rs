//! Settings of a recording, and what its header says of them.

use std::path::PathBuf;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_core::rules::{HashedParts, KeyHasher, Part};
use rlaas_simulation::recording::{
    HashedHeader, Header, KeySample, RecordedKeys, SampleHeader, key_fingerprint,
};

/// Purpose of the key that selects keys.
const SAMPLE: &str = "recording: sample";

/// Settings of the recording.
#[derive(Clone, Debug)]
pub struct RecordSettings {
    /// Path of the file.
    pub path: PathBuf,
    /// When it begins afresh.
    pub rotation: Rotation,
    /// Keys that are recorded; `None`: all.
    pub sample: Option<SampleSettings>,
    /// Parts whose values are hashed; `None`: values are recorded as they are.
    pub hashed: Option<Vec<Part>>,
    /// The hash by the key of `privacy.key-file`, if there is one.
    pub hasher: Option<KeyHasher>,
}

/// A share of keys.
#[derive(Clone, Debug)]
pub struct SampleSettings {
    /// Share in millionths.
    pub share_ppm: u32,
    /// Parts that make the key of a request by user, resource and attributes.
    pub by: Vec<Part>,
    /// Salt of the hash. `None`: the key file selects keys, or without one a random salt.
    pub salt: Option<String>,
}

/// When a file begins afresh, and how many of those before are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Bytes after which it does.
    pub size: u64,
    /// Files that are kept beside it.
    pub keep: u32,
}

impl RecordSettings {
    /// Returns the hashed parts.
    pub(super) fn hashed_parts(&self) -> Option<HashedParts> {
        let (parts, hasher) = self.hashed.as_ref().zip(self.hasher.clone())?;
        Some(HashedParts::new(hasher, parts.clone()))
    }

    /// Returns the header, without its time, and the keys of the sample.
    pub(super) fn header(&self) -> (Header, Option<KeySample>) {
        let mut header = Header {
            writer: concat!("rlaas ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Header::default()
        };
        if let (Some(parts), Some(hasher)) = (&self.hashed, &self.hasher) {
            let parts = parts.iter().map(ToString::to_string).collect();
            let key = key_fingerprint(hasher);
            header.keys = RecordedKeys::Hashed(HashedHeader { parts, key });
        }
        let Some(sample) = &self.sample else { return (header, None) };
        let (key, salt) = match (&sample.salt, &self.hasher) {
            (None, Some(hasher)) => (hasher.derive(SAMPLE).to_vec(), None),
            (salt, _) => {
                let salt = salt.clone().unwrap_or_else(random_salt);
                (salt.clone().into_bytes(), Some(salt))
            }
        };
        let by = sample.by.iter().map(ToString::to_string).collect();
        header.sample = Some(SampleHeader { share_ppm: sample.share_ppm, by, salt });
        (header, Some(KeySample::new(sample.share_ppm, sample.by.clone(), hasher(&key))))
    }
}

/// Returns HMAC-SHA-256 by a key, cut to 128 bits.
fn hasher(key: &[u8]) -> KeyHasher {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    KeyHasher::new(move |value| {
        let mut hash = [0; 16];
        hash.copy_from_slice(&hmac::sign(&key, value).as_ref()[..16]);
        hash
    })
}

fn random_salt() -> String {
    let mut bytes = [0; 16];
    // Without random numbers the sample can be foreseen, but it is one.
    let _filled = SystemRandom::new().fill(&mut bytes);
    bytes.map(|byte| format!("{byte:02x}")).concat()
}
