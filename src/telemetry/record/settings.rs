//! Settings of a recording, and what its header says of them.

use std::path::PathBuf;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_simulation::recording::{
    DEFAULT_DICTIONARY_BYTES, HashedHeader, Header, KeySample, RecordedKeys, SampleHeader,
    key_fingerprint,
};

use crate::rules::{HashedParts, KeyHasher, Part};

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
            dictionary_bytes: DEFAULT_DICTIONARY_BYTES,
            ..Header::default()
        };
        if let (Some(parts), Some(hasher)) = (&self.hashed, &self.hasher) {
            let parts = parts.iter().map(ToString::to_string).collect();
            let key = key_fingerprint(hasher);
            header.keys = RecordedKeys::Hashed(HashedHeader { parts, key });
        }
        let Some(sample) = &self.sample else { return (header, None) };
        let (key, salt) = match (&sample.salt, &self.hasher) {
            (Some(salt), _) => (key_of(salt), Some(salt.clone())),
            (None, Some(hasher)) => (hasher.derive(SAMPLE), None),
            (None, None) => {
                let salt = random_salt();
                (key_of(&salt), Some(salt))
            }
        };
        let by = sample.by.iter().map(ToString::to_string).collect();
        header.sample = Some(SampleHeader { share_ppm: sample.share_ppm, by, salt });
        (header, Some(KeySample::new(sample.share_ppm, sample.by.clone(), key)))
    }
}

/// Returns the key that a salt makes: the first 16 bytes of its SHA-256.
fn key_of(salt: &str) -> [u8; 16] {
    let mut key = [0; 16];
    key.copy_from_slice(&digest(&SHA256, salt.as_bytes()).as_ref()[..16]);
    key
}

fn random_salt() -> String {
    let mut bytes = [0; 16];
    // Without random numbers the sample can be foreseen, but it is one.
    let _filled = SystemRandom::new().fill(&mut bytes);
    bytes.map(|byte| format!("{byte:02x}")).concat()
}
