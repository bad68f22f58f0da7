//! The names that were removed, and what to use instead: settings, commands and options.
//!
//! A name is looked up only when it is unknown: one that exists wins.
//!
//! Settings that need a feature which a build lacks are refused by name, too.

use figment::value::Value;

use super::section::Section;

/// What has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedKind {
    /// A setting, or a section with all below it, by its whole key; of an item of a list without its index.
    Setting,
    /// A command with all below it, by its words.
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
    setting("store.memory.journal.counters", "set store.memory.snapshot: 10s"),
    setting(
        "store.memory.journal.fsync",
        "set store.memory.snapshot: 10s; changes are on disk before their reply",
    ),
    setting("telemetry.preview", LIMITS_ON_TRIAL),
    setting("telemetry.record", "rlaas simulate reads access logs, and requests with their times"),
    setting(
        "rules[].candidates",
        "write a second rule with the same match and mode: shadow, see \"Limits on trial\" in \
         docs/rules.md",
    ),
    setting(
        "gorl",
        "write the section of GoRL as rate-limiter, with use-algo, key-by, max-requests, window-size and \
         fail-open; redis_url is store.redis.url",
    ),
    command(
        "plan",
        "see rlaas simulate: the limits to try in --config, those in force in --against",
    ),
    command("bench", "use ghz or h2load, see docs/benchmarks.md"),
    command("record", "rlaas simulate reads access logs, and requests with their times"),
    command("rule preview", LIMITS_ON_TRIAL),
    flag("simulate --key-file", "requests are read as they are"),
    flag("simulate --max-keys", "keys are never dropped in a simulation"),
    flag("simulate --progress", "a simulation takes seconds for a million requests"),
    flag("simulate --where", FILTER_BEFORE),
    flag("simulate --skip-status", FILTER_BEFORE),
    flag("simulate --stamp", TIMES),
    flag("simulate --zone", TIMES),
    flag("simulate --reorder", TIMES),
    flag("simulate --max-gap", TIMES),
    flag("simulate --envelope", "take lines out of it with jq -r .log, into --traffic -"),
];

const LIMITS_ON_TRIAL: &str = "see \"Limits on trial\" in docs/rules.md";
const FILTER_BEFORE: &str = "filter before with grep or jq, into --traffic -";
const TIMES: &str = "see \"Times\" in docs/simulation.md";

const fn setting(name: &'static str, instead: &'static str) -> RemovedName {
    RemovedName { kind: RemovedKind::Setting, name, instead }
}

const fn command(name: &'static str, instead: &'static str) -> RemovedName {
    RemovedName { kind: RemovedKind::Command, name, instead }
}

const fn flag(name: &'static str, instead: &'static str) -> RemovedName {
    RemovedName { kind: RemovedKind::Flag, name, instead }
}

/// Returns what to do instead of a name, if it was removed.
pub fn instead_of(kind: RemovedKind, name: &str) -> Option<&'static str> {
    let parts =
        name.split('[').map(|part| part.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    let name = parts.collect::<Vec<_>>().join("[");
    let found = REMOVED.iter().find(|removed| removed.kind == kind && removed.name == name);
    found.map(|removed| removed.instead)
}

/// Settings that need the feature `admin`, and what they are for.
const OF_ADMINISTRATION: &[(&str, &str)] = &[
    ("audit", "audit"),
    ("auth.api-keys", "projects"),
    ("auth.api-keys-max-age", "projects"),
    ("auth.oidc", "OpenID Connect"),
    ("envoy.projects", "projects"),
    ("projects", "projects"),
    ("server.console", "console"),
    ("telemetry.top-keys", "top keys"),
];

/// Adds a problem for each setting of the administration that is given and not off.
pub(super) fn refuse_administration(root: &Section<'_>) {
    refuse(root, OF_ADMINISTRATION);
}

/// Adds a problem for each of these settings that is given, if this build lacks what they are for.
pub(super) fn refuse(section: &Section<'_>, settings: &[(&str, &str)]) {
    if cfg!(feature = "admin") {
        return;
    }
    for (key, what) in settings {
        section.refuse_given(key, &format!("this build has no {what}: feature admin"));
    }
}

/// Returns `true` for a value that asks for nothing. YAML reads an unquoted `off` as a boolean.
pub(super) fn is_off(value: &Value) -> bool {
    matches!(value, Value::Bool(_, false)) || matches!(value.as_str(), Some("off" | "false" | ""))
}
