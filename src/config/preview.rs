//! The section `telemetry.preview`.

use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

use super::privacy::PrivacySettings;
use super::record::{keys, recorded_parts};
use super::section::Section;
use super::setting::Setting;
use super::values;
use crate::admin::keyed;
use crate::clock::Micros;
use crate::rules::KeyHasher;
use crate::telemetry::record::PreviewSettings;

const PREVIEW: Setting = Setting::new(
    "preview",
    "Keeps the requests of the last minutes in memory, to try rules on them. Each instance keeps its \
     own: at most 64 MiB, the oldest leave first.",
);
const KEEP: Setting =
    Setting::new("keep", "Time for which they are kept. Without it none are.").example("15m");
const KEYS: Setting = Setting::new(
    "keys",
    "hashed: user ids and the parts of privacy.hash are hashed by privacy.key-file, or without one by \
     a random key of the process. clear: as they are.",
);

/// Reads the section.
pub(super) fn read(
    telemetry: &mut Section<'_>,
    privacy: &PrivacySettings,
) -> Option<PreviewSettings> {
    let mut section = telemetry.section(PREVIEW);
    let keep = section.optional(KEEP, |value| {
        let range = Duration::from_secs(1)..=Duration::from_hours(24);
        values::duration(value, range, "must be a duration from 1s to 24h, such as 15m")
    });
    let is_hashed = section.read(KEYS, "hashed", keys);
    section.close();
    keep.map(|keep| PreviewSettings {
        keep: Micros::from(keep),
        hashed: is_hashed.then(|| recorded_parts(privacy)),
        hasher: privacy.hasher.clone().unwrap_or_else(random_hasher),
    })
}

fn random_hasher() -> KeyHasher {
    let mut key = [0; 32];
    // Without random numbers values are hashed by a known key; they leave the process never.
    let _filled = SystemRandom::new().fill(&mut key);
    keyed(&key)
}
