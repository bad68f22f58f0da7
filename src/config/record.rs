//! The section `telemetry.record`.

use std::borrow::Cow;

use figment::value::Value;
use rlaas_telemetry::record::{RecordSettings, Rotation, SampleSettings};

use super::privacy::{self, PrivacySettings};
use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, Read};
use crate::rules::spec::Field;
use crate::rules::{EnforcedShare, Part};

const RECORD: Setting = Setting::new(
    "record",
    "Records the requests of Check, CheckBatch, CheckStream, HTTP and Envoy, for rlaas simulate. \
     Off the path of decisions: what can't be written is dropped, and counted in \
     rlaas_record_dropped_total.",
);
const FILE: Setting = Setting::new(
    "file",
    "File of the recording, as JSON Lines; one that ends in .zst is compressed. Only its owner can \
     read it. One that exists is rotated. Without it nothing is recorded.",
)
.example("/var/lib/rlaas/requests.jsonl.zst");
const KEYS: Setting = Setting::new(
    "keys",
    "clear: values are recorded as they are. hashed: user ids and the parts of privacy.hash are \
     hashed by privacy.key-file, of which the file has the fingerprint.",
);
const SAMPLE: Setting =
    Setting::new("sample", "A share of keys: all requests of these, and none of the others.");
const SHARE: Setting = Setting::new("share", "Share of keys that is recorded.");
const BY: Setting = Setting::new(
    "by",
    "Parts of a request that make its key: user_id, resource, attributes.NAME. A rule whose key has \
     not all of them sees only a share of its requests, and is reported so. Descriptors of Envoy are \
     selected by domain and entries.",
);
const SALT: Setting = Setting::new(
    "salt",
    "Instances with the same salt record the same keys. Without it privacy.key-file selects them, or \
     else a random salt. The file shows it.",
)
.example("2026-11");
const ROTATE: Setting = Setting::new("rotate", "Files before: FILE.1 is the newest of them.");
const SIZE: Setting = Setting::new(
    "size",
    "Bytes after which the file begins afresh. A file has about half a second more than that.",
);
const KEEP: Setting = Setting::new("keep", "Files that are kept beside it.");

/// Reads the section.
pub(super) fn read(
    telemetry: &mut Section<'_>,
    privacy: &PrivacySettings,
) -> Option<RecordSettings> {
    let mut section = telemetry.section(RECORD);
    let path = section.optional(FILE, values::path);
    let is_hashed = section.read(KEYS, "clear", keys);
    let sample = sample(&mut section);
    let rotation = rotation(&mut section);
    if is_hashed && privacy.hasher.is_none() {
        let valid = "must be clear, or privacy.key-file must be set";
        section.refuse(KEYS.key, Invalid::new(valid));
    }
    if !is_hashed && path.is_some() && !privacy.parts.is_empty() {
        section.warn(FILE.key, "records in clear what privacy.hash hashes: set keys: hashed");
    }
    section.close();
    let hashed = is_hashed.then(|| recorded_parts(privacy));
    path.map(|path| RecordSettings {
        path,
        rotation,
        sample,
        hashed,
        hasher: privacy.hasher.clone(),
    })
}

/// Reads `clear` or `hashed`; `true` is hashed.
fn keys(value: &Value) -> Read<bool> {
    values::word(value, &[("clear", false), ("hashed", true)])
}

/// Returns the parts of recorded requests that are hashed: those of `privacy.hash`, and user ids.
fn recorded_parts(privacy: &PrivacySettings) -> Vec<Part> {
    let mut parts = vec![Part::UserId];
    parts.extend(privacy.parts.iter().filter(|part| **part != Part::UserId).cloned());
    parts
}

fn sample(record: &mut Section<'_>) -> Option<SampleSettings> {
    let mut section = record.section(SAMPLE);
    let share = section.read(SHARE, "100%", share);
    let by = section.read(BY, "user_id", by);
    let salt = section.optional(SALT, values::text);
    section.close();
    let share_ppm = share.millionths();
    (share != EnforcedShare::ALL).then_some(SampleSettings { share_ppm, by, salt })
}

fn rotation(record: &mut Section<'_>) -> Rotation {
    let mut section = record.section(ROTATE);
    let size = section.read(SIZE, "256MiB", size);
    let keep = section.read(KEEP, "4", values::count(1_000));
    section.close();
    Rotation { size, keep }
}

fn share(value: &Value) -> Read<EnforcedShare> {
    const VALID: Invalid =
        Invalid::new("must be a percentage above 0% and at most 100%, such as 5%");
    match values::field::<EnforcedShare>(value) {
        Ok((Field::Set(share), shown)) if share.millionths() > 0 => Ok((share, shown)),
        _ => Err(VALID),
    }
}

fn by(value: &Value) -> Read<Vec<Part>> {
    match privacy::parts(value) {
        Ok((parts, shown)) if !parts.is_empty() => Ok((parts, shown)),
        _ => Err(Invalid::new("must be a list of user_id, resource and attributes.NAME")),
    }
}

/// Reads a number of bytes, with a unit or without one: 1 MiB to 1 TiB.
fn size(value: &Value) -> Read<u64> {
    const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let text = values::scalar(value).unwrap_or_default();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((&text, 1));
    let bytes = number.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let bytes = bytes.filter(|bytes| (1 << 20..=1 << 40).contains(bytes));
    let valid = "must be 1MiB to 1024GiB, such as 256MiB";
    Ok((bytes.ok_or(Invalid(Cow::Borrowed(valid)))?, text))
}
