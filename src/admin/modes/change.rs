//! A mode that an administrator sets.

use rlaas_limiter::rules::{ModeScope, RuleMode};

use super::ACTION;
use super::record::name;
use crate::admin::request_ids::hash;
use crate::clock::Micros;
use crate::telemetry::holder::Holder;

/// A mode to set, or to end.
#[derive(Clone, Debug)]
pub struct ModeChange {
    /// The caller.
    pub actor: String,
    /// On whose account the mode and its request id are held.
    pub holder: Holder,
    /// The rules.
    pub scope: ModeScope,
    /// The mode, and the time until it ends: at most 30 days. `None`: that of the
    /// configuration.
    pub mode: Option<(RuleMode, Micros)>,
    /// The reason that the caller gives: 1 to 1024 bytes.
    pub reason: String,
    /// Names the change, so that a retry does not repeat it: up to 64 bytes. Empty: none.
    pub request_id: String,
}

impl ModeChange {
    /// Returns the change in one line.
    pub(super) fn summary(&self) -> String {
        let ModeScope { project, rule } = &self.scope;
        let rules = match rule {
            Some(rule) => format!("rule {rule}"),
            None => "every rule".to_owned(),
        };
        let rules = match project.as_deref() {
            None => format!("{rules} of every project"),
            Some("") => rules,
            Some(project) => format!("{rules} of {project}"),
        };
        match self.mode {
            Some((mode, ttl)) => {
                let ttl = humantime::format_duration(ttl.into());
                format!("{rules}: mode {} for {ttl}", mode.name())
            }
            None => format!("{rules}: mode of the configuration"),
        }
    }

    /// Returns the change in one line, if it was made some time before it can be recorded.
    pub(super) fn summary_of_earlier(&self, ago: Micros) -> String {
        let ago = humantime::format_duration(Micros::from_secs(ago.as_secs_ceil()).into());
        format!("{}, set {ago} before while the store was away", self.summary())
    }

    /// Returns the hash of the change, by which another one under the same request id is detected.
    pub(super) fn fingerprint(&self) -> [u8; 16] {
        let (mode, ttl) = self.mode.map_or(("", 0), |(mode, ttl)| (mode.name(), ttl.as_micros()));
        let scope = name(&self.scope);
        let texts = [ACTION, &scope, mode, &self.reason].map(str::as_bytes);
        hash(&[&texts[..], &[&ttl.to_be_bytes()]].concat())
    }
}
