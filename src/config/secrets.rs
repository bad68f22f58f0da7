//! Decides which invalid values may be shown in a problem.

use figment::value::Value;

use super::values;

/// Maximum number of characters shown of a value.
const MAX_SHOWN_CHARS: usize = 40;
/// Sections with secrets, or where a user may put one by mistake: a private key instead of its path.
const SECRET_SECTIONS: [&str; 7] = [
    "auth",
    "envoy.xds.headers",
    "envoy.xds.tls",
    "privacy.key-file",
    "server.tls",
    "store",
    "telemetry.otlp",
];
/// Keys in these sections that are never secret.
const PUBLIC_KEYS: [&str; 9] = [
    "store.backend",
    "store.memory.max-keys",
    "store.redis.max-in-flight",
    "store.redis.mode",
    "store.redis.timeout",
    "telemetry.otlp.metrics",
    "telemetry.otlp.metrics-interval",
    "telemetry.otlp.sample-ratio",
    "telemetry.otlp.traces",
];

/// Returns the value of a canonical key, or its type; `None` if it may be a secret. Values in `match`
/// may be secret as well: API keys.
pub(super) fn shown(key: &str, value: &Value) -> Option<String> {
    let kind = match value {
        Value::Dict(..) => Some("a section"),
        Value::Array(..) => Some("a list"),
        Value::Empty(..) => Some("nothing"),
        _ => None,
    };
    if let Some(kind) = kind {
        return Some(kind.to_owned());
    }
    let text = values::scalar(value)?;
    let is_within = |section: &str| {
        let rest = key.strip_prefix(section);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let may_be_secret = (SECRET_SECTIONS.into_iter().any(is_within) && !PUBLIC_KEYS.contains(&key))
        || key.split('.').any(|part| part == "match")
        || text.contains("://")
        || text.contains('@')
        || text.contains('\n');
    if may_be_secret {
        return None;
    }
    let mut shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    let is_plain = !shown.is_empty() && !shown.contains(|c: char| c.is_control() || c == ' ');
    Some(if is_plain { shown } else { format!("{shown:?}") })
}
