//! Settings of what a build lacks: they are refused by name, and never ignored.

use figment::value::Value;

use super::section::Section;

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
