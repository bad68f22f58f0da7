//! The names that were removed, and what to use instead: settings, commands and options.
//!
//! A name is looked up only when it is unknown: one that exists wins.

/// What has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedKind {
    /// A setting, or a section with all below it, by its whole key.
    Setting,
    /// A command, by all its words.
    Command,
    /// An option, after the words of its command.
    Flag,
}

/// A name that was removed.
#[derive(Clone, Copy, Debug)]
pub struct RemovedName {
    /// What had it.
    pub kind: RemovedKind,
    /// The name.
    pub name: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

/// All names that were removed.
pub const REMOVED: &[RemovedName] = &[
    setting("telemetry.preview", LIMITS_ON_TRIAL),
    setting("store.memory.journal.counters", "use store.memory.snapshot"),
    setting("store.memory.journal.fsync", "use store.memory.snapshot"),
    command("plan", "rlaas simulate with two files says what a limit would have done"),
    command("rule preview", LIMITS_ON_TRIAL),
];

const LIMITS_ON_TRIAL: &str = "see \"Limits on trial\" in docs/rules.md";

const fn setting(name: &'static str, instead: &'static str) -> RemovedName {
    RemovedName { kind: RemovedKind::Setting, name, instead }
}

const fn command(name: &'static str, instead: &'static str) -> RemovedName {
    RemovedName { kind: RemovedKind::Command, name, instead }
}

/// Returns what to do instead of a name, if it was removed.
pub fn instead_of(kind: RemovedKind, name: &str) -> Option<&'static str> {
    let found = REMOVED.iter().find(|removed| removed.kind == kind && removed.name == name);
    found.map(|removed| removed.instead)
}
