//! Modes of rules that are set at run time.

use std::sync::{Arc, PoisonError};

use super::{Limiter, Snapshot};
use crate::clock::Timestamp;
use crate::rules::{ModeSettings, RuleSet};

/// The settings in force, as of a point in time.
#[derive(Debug, Default)]
pub(super) struct ModesInForce {
    settings: ModeSettings,
    at: Timestamp,
}

impl ModesInForce {
    /// Sets the modes of rules that are to be put in force.
    pub(super) fn apply(&self, rules: RuleSet) -> RuleSet {
        rules.with_modes(&self.settings, self.at)
    }
}

impl Limiter {
    /// Puts the modes of `settings` in force that have not ended at `now`, in place of all that were
    /// set before, also for rules that replace those of today. The revisions of the rules stay: a
    /// mode changes no state. To be called again at [`ModeSettings::next_end`], and by one caller
    /// at a time.
    pub fn set_modes(&self, settings: &ModeSettings, now: Timestamp) {
        let before = self.shared.modes.load_full();
        // Between the two times no mode has ended, or lives again because the clock was set back.
        let is_same_span = settings.next_end(before.at) == settings.next_end(now);
        if before.settings == *settings && is_same_span {
            return;
        }
        let modes = Arc::new(ModesInForce { settings: settings.clone(), at: now });
        // First, so that rules that are replaced meanwhile have these modes.
        self.shared.modes.store(Arc::clone(&modes));
        {
            let _turn = self.shared.replacing.lock().unwrap_or_else(PoisonError::into_inner);
            let snapshot = self.snapshot();
            let rules = modes.apply(snapshot.rules.clone());
            if snapshot.rules != rules {
                self.put_in_force(rules, snapshot.revision);
                self.declare_rules();
                self.shared.changes.send_replace(());
            }
        }
        let _turn =
            self.shared.last_project_revision.lock().unwrap_or_else(PoisonError::into_inner);
        for (project, snapshot) in self.shared.projects.all() {
            if before.settings.concern(&project) || settings.concern(&project) {
                let rules = modes.apply(snapshot.rules.clone());
                if snapshot.rules != rules {
                    let observer = &*self.shared.observer;
                    let snapshot = Snapshot::of_project(rules, snapshot.revision, observer);
                    self.shared.projects.set(&project, Some(Arc::new(snapshot)));
                }
            }
        }
    }
}
