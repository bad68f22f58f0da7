//! Modes of rules that are set at run time, in place of those of the configuration.
//!
//! Each setting names a rule, or all of them, and says when it was set. Of those that concern a
//! rule the latest counts, also after its end: then the rule has its configured mode. So instances
//! that know the same settings agree, in whatever order they heard of them.

use std::collections::BTreeMap;

use super::Mode;
use crate::clock::Timestamp;

/// A mode in which a rule can be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleMode {
    /// The rule decides, counts and can refuse requests.
    Enforce,
    /// The rule decides and counts, but refuses no request.
    Shadow,
    /// The rule is ignored.
    Off,
}

/// A mode in place of that of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetMode {
    /// Mode of the configuration.
    pub configured: Mode,
    /// Time at which it is back.
    pub ends_at: Timestamp,
}

/// The rules that a setting concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModeScope {
    /// Their project. `None`: every project.
    pub project: Option<String>,
    /// Name of the rule. `None`: every rule.
    pub rule: Option<String>,
}

/// A mode that was set for some rules. The greater of two settings is the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModeSetting {
    /// When it was set.
    pub set_at: Timestamp,
    /// When it ends.
    pub ends_at: Timestamp,
    /// The mode. `None`: that of the configuration.
    pub mode: Option<RuleMode>,
    /// Until when the setting is remembered: no setting that it replaces ends later.
    pub kept_until: Timestamp,
}

/// The settings that an instance knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModeSettings(BTreeMap<ModeScope, ModeSetting>);

impl RuleMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Shadow, Self::Off];

    /// Returns the name of the mode in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }

    /// Returns this mode for a rule that is configured otherwise: a quota stays one.
    #[must_use]
    pub const fn in_place_of(self, configured: Mode) -> Mode {
        match (self, configured) {
            (Self::Off, _) => Mode::Off,
            (Self::Enforce, Mode::Quota | Mode::ShadowQuota) => Mode::Quota,
            (Self::Enforce, Mode::Enforced | Mode::Shadow | Mode::Off) => Mode::Enforced,
            (Self::Shadow, Mode::Quota | Mode::ShadowQuota) => Mode::ShadowQuota,
            (Self::Shadow, Mode::Enforced | Mode::Shadow | Mode::Off) => Mode::Shadow,
        }
    }
}

impl ModeScope {
    /// Returns `true` if there may be a rule that both scopes concern.
    pub fn overlaps(&self, other: &Self) -> bool {
        let meet = |own: &Option<String>, other: &Option<String>| {
            own.is_none() || other.is_none() || own == other
        };
        meet(&self.project, &other.project) && meet(&self.rule, &other.rule)
    }
}

impl ModeSettings {
    /// Adds a setting, unless a later one of the same scope is known. Returns `true` if it is now
    /// part of the settings, and was not before.
    pub fn merge(&mut self, scope: &ModeScope, setting: ModeSetting) -> bool {
        match self.0.get_mut(scope) {
            Some(known) if *known >= setting => false,
            Some(known) => {
                *known = setting;
                true
            }
            None => {
                self.0.insert(scope.clone(), setting);
                true
            }
        }
    }

    /// Forgets settings that have nothing to say from `now` on.
    pub fn forget_ended(&mut self, now: Timestamp) {
        self.0.retain(|_, setting| setting.kept_until > now);
    }

    /// Iterates over the settings.
    pub fn iter(&self) -> impl Iterator<Item = (&ModeScope, &ModeSetting)> {
        self.0.iter()
    }

    /// Returns the latest setting of exactly these rules.
    pub fn get(&self, scope: &ModeScope) -> Option<&ModeSetting> {
        self.0.get(scope)
    }

    /// Returns the mode of a rule at `now`, and its end. `None`: that of the configuration.
    pub fn in_force(
        &self,
        project: &str,
        rule: &str,
        now: Timestamp,
    ) -> Option<(RuleMode, Timestamp)> {
        if self.0.is_empty() {
            return None;
        }
        let own = |rule: Option<&str>| ModeScope {
            project: Some(project.to_owned()),
            rule: rule.map(str::to_owned),
        };
        let scopes = [own(Some(rule)), own(None), ModeScope { project: None, rule: None }];
        let latest = scopes.iter().filter_map(|scope| self.0.get(scope)).max()?;
        latest.mode.filter(|_| latest.ends_at > now).map(|mode| (mode, latest.ends_at))
    }

    /// Returns `true` if there may be a setting for rules of the project.
    pub fn concern(&self, project: &str) -> bool {
        self.0.keys().any(|scope| scope.project.as_deref().is_none_or(|own| own == project))
    }

    /// Returns the first time after `now` at which a setting ends.
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self.0.values().map(|setting| setting.ends_at);
        ends.filter(|ends_at| *ends_at > now).min()
    }

    /// Returns the time until which a new setting of these rules must be remembered: while one that
    /// it replaces could apply again.
    pub fn kept_until(&self, scope: &ModeScope, ends_at: Timestamp) -> Timestamp {
        let replaced = self.0.iter().filter(|(other, _)| other.overlaps(scope));
        replaced.map(|(_, setting)| setting.kept_until).fold(ends_at, Timestamp::max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn scope(project: Option<&str>, rule: Option<&str>) -> ModeScope {
        ModeScope { project: project.map(str::to_owned), rule: rule.map(str::to_owned) }
    }

    /// Sets a mode as an instance does that knows all settings.
    fn set(
        settings: &mut ModeSettings,
        scope: &ModeScope,
        mode: Option<RuleMode>,
        set_at: u64,
        ends_at: u64,
    ) {
        let kept_until = settings.kept_until(scope, at(ends_at));
        let (set_at, ends_at) = (at(set_at), at(ends_at));
        assert!(settings.merge(scope, ModeSetting { set_at, ends_at, mode, kept_until }));
    }

    #[test]
    fn latest_setting_counts_and_its_end_brings_the_configured_mode_back() {
        let (pay, all) = (scope(Some(""), Some("pay")), scope(Some(""), None));
        let mut modes = ModeSettings::default();
        set(&mut modes, &pay, Some(RuleMode::Off), 10, 100);
        assert_eq!(modes.in_force("", "pay", at(10)), Some((RuleMode::Off, at(100))));
        assert_eq!(modes.in_force("", "other", at(10)), None);
        assert_eq!(modes.in_force("p", "pay", at(10)), None);
        set(&mut modes, &all, Some(RuleMode::Shadow), 20, 50);
        for rule in ["pay", "other"] {
            assert_eq!(
                modes.in_force("", rule, at(20)),
                Some((RuleMode::Shadow, at(50))),
                "{rule}"
            );
            assert_eq!(modes.in_force("", rule, at(50)), None, "{rule}");
        }
        // Not the mode that was set before: it stays replaced until its own end.
        modes.forget_ended(at(99));
        assert_eq!(modes.in_force("", "pay", at(99)), None);
        modes.forget_ended(at(100));
        assert_eq!(modes, ModeSettings::default());
    }

    #[test]
    fn a_mode_can_be_ended_early_for_one_rule_and_for_all() {
        let (pay, all, everywhere) =
            (scope(Some(""), Some("pay")), scope(Some(""), None), scope(None, None));
        let mut modes = ModeSettings::default();
        set(&mut modes, &everywhere, Some(RuleMode::Shadow), 10, 100);
        assert_eq!(modes.in_force("tenant", "a", at(10)), Some((RuleMode::Shadow, at(100))));
        set(&mut modes, &pay, None, 20, 20);
        assert_eq!(modes.in_force("", "pay", at(21)), None);
        assert_eq!(modes.in_force("", "other", at(21)), Some((RuleMode::Shadow, at(100))));
        modes.forget_ended(at(99));
        assert_eq!(modes.in_force("", "pay", at(99)), None, "the end is remembered");
        set(&mut modes, &all, None, 30, 30);
        assert_eq!(modes.in_force("", "other", at(31)), None);
        assert_eq!(modes.in_force("tenant", "a", at(31)), Some((RuleMode::Shadow, at(100))));
        assert_eq!((modes.next_end(at(31)), modes.next_end(at(100))), (Some(at(100)), None));
    }

    #[test]
    fn a_quota_stays_a_quota() {
        use Mode::{Enforced, Off, Quota, Shadow, ShadowQuota};
        for (configured, modes) in [
            (Enforced, [Enforced, Shadow, Off]),
            (Shadow, [Enforced, Shadow, Off]),
            (Off, [Enforced, Shadow, Off]),
            (Quota, [Quota, ShadowQuota, Off]),
            (ShadowQuota, [Quota, ShadowQuota, Off]),
        ] {
            assert_eq!(RuleMode::ALL.map(|mode| mode.in_place_of(configured)), modes);
        }
    }

    fn any_setting() -> impl Strategy<Value = (ModeScope, ModeSetting)> {
        let name = || prop::option::of("[ab]");
        let mode = prop::option::of(prop::sample::select(RuleMode::ALL.to_vec()));
        (name(), name(), mode, 0..50_u64, 0..50_u64).prop_map(
            |(project, rule, mode, from, until)| {
                let (set_at, ends_at) = (at(from), at(from + until));
                let setting = ModeSetting { set_at, ends_at, mode, kept_until: ends_at };
                (ModeScope { rule: project.as_ref().and(rule), project }, setting)
            },
        )
    }

    proptest! {
        #[test]
        fn instances_agree_whatever_the_order(
            (settings, shuffled) in prop::collection::vec(any_setting(), 0..12)
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        ) {
            let merged = |settings: &[(ModeScope, ModeSetting)]| {
                let mut modes = ModeSettings::default();
                for (scope, setting) in settings {
                    modes.merge(scope, *setting);
                    prop_assert!(!modes.merge(scope, *setting), "once is enough");
                }
                Ok(modes)
            };
            prop_assert_eq!(merged(&settings)?, merged(&shuffled)?);
        }
    }
}
