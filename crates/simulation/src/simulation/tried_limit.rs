//! A limit that was tried, as the report shows it.

use std::fmt;

use rlaas_core::algorithm::{Algorithm, Limit, Window, WindowFrom};
use rlaas_core::clock::Micros;
use rlaas_core::rules::descriptors::DescriptorRule;
use rlaas_core::rules::{EnforcedShare, Grant, Mode, Rule};
use serde::Serialize;

use super::text::{count_text, length_text};

/// A limit that was tried: what a set of rules says of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TriedLimit {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// Units per window; 0 refuses all. `None`: unlimited.
    pub limit: Option<u64>,
    /// The window.
    #[serde(rename = "windowUs")]
    pub window: Micros,
    /// The windows of a calendar, in words; `window` is then the longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calendar: Option<String>,
    /// `first-use` if windows begin with the first use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_from: Option<&'static str>,
    /// Most units at once, if the algorithm has a burst.
    pub burst: Option<u64>,
    /// Whether it is enforced: `enforced`, `shadow`, `quota`, `shadow quota` or `off`.
    pub mode: &'static str,
    /// Share of the keys for which it is enforced, such as `25%`.
    pub enforced_share: String,
    /// Limits of their own for some requests.
    pub overrides: usize,
}

impl TriedLimit {
    fn new(algorithm: Algorithm, grant: Grant, window: Window, mode: Mode) -> Self {
        let burst = grant.limit().filter(|_| algorithm.has_burst()).map(Limit::burst);
        Self {
            algorithm: algorithm.name(),
            limit: match grant {
                Grant::Limited(limit) => Some(limit.units()),
                Grant::Banned => Some(0),
                Grant::Unlimited => None,
            },
            window: window.length(),
            calendar: window.calendar().map(ToString::to_string),
            window_from: window.is_from_first_use().then(|| WindowFrom::FirstUse.name()),
            burst,
            mode: match mode {
                Mode::Enforced => "enforced",
                Mode::Shadow => "shadow",
                Mode::Quota => "quota",
                Mode::ShadowQuota => "shadow quota",
                Mode::Off => "off",
            },
            enforced_share: EnforcedShare::ALL.to_string(),
            overrides: 0,
        }
    }
}

impl From<&Rule> for TriedLimit {
    fn from(rule: &Rule) -> Self {
        let limit = Self::new(rule.algorithm, rule.grant, rule.window, rule.mode);
        let (enforced_share, overrides) = (rule.enforce.to_string(), rule.overrides.len());
        Self { enforced_share, overrides, ..limit }
    }
}

impl From<&DescriptorRule> for TriedLimit {
    fn from(rule: &DescriptorRule) -> Self {
        Self::new(rule.algorithm, rule.grant, rule.window, rule.mode)
    }
}

/// Writes the limit for people: `5 per 1m, fixed-window, shadow`.
impl fmt::Display for TriedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Some(limit) if self.algorithm == Algorithm::Concurrency.name() => {
                write!(f, "{} at once", count_text(limit))?;
            }
            Some(limit) => {
                let length = || length_text(self.window);
                let window = self.calendar.clone().unwrap_or_else(length);
                write!(f, "{} per {window}", count_text(limit))?;
                if self.window_from.is_some() {
                    write!(f, " from the first use")?;
                }
            }
            None => write!(f, "unlimited")?,
        }
        if let Some(burst) = self.burst.filter(|burst| Some(*burst) != self.limit) {
            write!(f, ", burst {}", count_text(burst))?;
        }
        write!(f, ", {}", self.algorithm)?;
        if self.mode != "enforced" {
            write!(f, ", {}", self.mode)?;
        }
        if self.enforced_share != EnforcedShare::ALL.to_string() {
            write!(f, ", enforced for {} of the keys", self.enforced_share)?;
        }
        match self.overrides {
            0 => Ok(()),
            1 => write!(f, ", 1 override"),
            overrides => write!(f, ", {overrides} overrides"),
        }
    }
}
