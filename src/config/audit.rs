//! The section `audit`.

use super::section::Section;
use super::setting::Setting;
use super::values;
use rlaas_admin::AuditKeys;
pub(super) use rlaas_admin::AuditSettings;

const AUDIT: Setting =
    Setting::new("audit", "The audit: every change by an administrator, before and after.");
const KEYS: Setting = Setting::new(
    "keys",
    "hashed: parts of keys are shown as # and 26 characters. clear: as they are.",
);
const MAX_ENTRIES: Setting = Setting::new(
    "max-entries",
    "Number of changes that are kept. An entry has at most 8 KiB; the memory store keeps at most \
     64 MiB.",
);

pub(super) fn read(root: &mut Section<'_>) -> AuditSettings {
    let mut section = root.section(AUDIT);
    let keys = section.read(KEYS, "hashed", |value| {
        values::word(value, &[("hashed", AuditKeys::Hashed), ("clear", AuditKeys::Clear)])
    });
    let max_entries = section.read(MAX_ENTRIES, "100000", values::count(10_000_000));
    section.close();
    AuditSettings { keys, max_entries }
}
