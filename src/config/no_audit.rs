//! Stands for `audit` in a build without administration: its settings are refused (`removed`).

use super::section::Section;
use super::setting::Setting;

/// There is nothing to set.
#[derive(Clone, Copy, Debug)]
pub struct AuditSettings;

pub(super) fn read(root: &mut Section<'_>) -> AuditSettings {
    root.section(Setting::new("audit", "The audit, which this build does not have."));
    AuditSettings
}
