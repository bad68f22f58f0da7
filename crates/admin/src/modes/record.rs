//! Settings of modes as the store has them.

use prost::Message;
use rlaas_limiter::rules::{ModeScope, ModeSetting, RuleMode};

use crate::request_ids::{hash, hex};
use rlaas_core::clock::Timestamp;

/// A setting as it is stored. Later versions add fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModeRecord {
    /// `None`: every project.
    #[prost(string, optional, tag = "1")]
    project: Option<String>,
    /// `None`: every rule.
    #[prost(string, optional, tag = "2")]
    rule: Option<String>,
    /// 0: that of the configuration. Else a position in [`RuleMode::ALL`], counted from 1.
    #[prost(uint32, tag = "3")]
    mode: u32,
    #[prost(uint64, tag = "4")]
    set_at_us: u64,
    #[prost(uint64, tag = "5")]
    ends_at_us: u64,
    #[prost(uint64, tag = "6")]
    kept_until_us: u64,
}

impl ModeRecord {
    pub(super) fn new(scope: &ModeScope, setting: ModeSetting) -> Self {
        let ModeSetting { set_at, ends_at, mode, kept_until } = setting;
        let position = mode.and_then(|mode| RuleMode::ALL.iter().position(|known| *known == mode));
        Self {
            project: scope.project.clone(),
            rule: scope.rule.clone(),
            mode: position.map_or(0, |at| u32::try_from(at + 1).unwrap_or_default()),
            set_at_us: set_at.as_micros(),
            ends_at_us: ends_at.as_micros(),
            kept_until_us: kept_until.as_micros(),
        }
    }

    /// Reads a setting; `None` if it can't be read, or has a mode of a later version.
    pub(super) fn read(bytes: &[u8]) -> Option<(ModeScope, ModeSetting)> {
        let record = Self::decode(bytes).ok()?;
        let mode = match usize::try_from(record.mode).ok()?.checked_sub(1) {
            None => None,
            Some(at) => Some(*RuleMode::ALL.get(at)?),
        };
        let setting = ModeSetting {
            set_at: Timestamp::from_micros(record.set_at_us),
            ends_at: Timestamp::from_micros(record.ends_at_us),
            mode,
            kept_until: Timestamp::from_micros(record.kept_until_us),
        };
        Some((ModeScope { project: record.project, rule: record.rule }, setting))
    }
}

/// Returns the name of a setting in its map.
pub(super) fn name(scope: &ModeScope) -> String {
    let part =
        |part: &Option<String>| part.clone().map_or_else(String::new, |name| format!("={name}"));
    hex(&hash(&[part(&scope.project).as_bytes(), part(&scope.rule).as_bytes()]))
}
