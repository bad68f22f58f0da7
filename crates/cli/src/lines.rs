//! Responses as lines that are no table, and differences of rules, field by field, in the words of rules
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use rlaas_proto::ratelimit::admin::v1::rule_change::Kind;
use rlaas_proto::ratelimit::admin::v1::{
    ApiKey, BanKeyRequest, BanKeyResponse, Coverage, GetRevisionRequest, GetRevisionResponse,
    RestoreCatalogueResponse, Revision, RevokeKeyResponse, RollbackResponse, RotateKeyResponse,
    RuleChange, SetModeRequest, SetModeResponse,
};
use rlaas_proto::ratelimit::v1::Rule;
use serde_json::Value;

use crate::fields::{self, typed};
use crate::output::{Exchange, Lines};
use crate::text::printable;
use crate::{keys, text};

/// Returns the function of this name.
///
/// # Panics
///
/// If there is none: a test reads all names.
pub(crate) fn by_name(name: &str) -> fn(&Exchange) -> Lines {
    match name {
        "deleted_project" => {
            |exchange| format!("project {} deleted\n", requested(exchange, "project_id")).into()
        }
        "deleted_rule" => {
            |exchange| format!("rule {} deleted\n", requested(exchange, "rule_name")).into()
        }
        "restored_catalogue" => |exchange| {
            let response: RestoreCatalogueResponse = typed(&exchange.response);
            format!("catalogue restored as revision {}\n", response.catalogue_revision).into()
        },
        "states" => |exchange| keys::inspected(&exchange.response).into(),
        "change" => keys::change,
        "banned" => banned,
        "unbanned" => unbanned,
        "secret" => secret,
        "revoked_key" => revoked_key,
        "difference" => difference,
        "restored_rules" => restored_rules,
        "mode" => mode,
        other => panic!("no lines {other}"),
    }
}

/// Shows a field of the request.
fn requested(exchange: &Exchange, field: &str) -> String {
    text::value(&fields::text(&exchange.request, field))
}

/// The secret alone, for programs that read the output; all else is a warning.
fn secret(exchange: &Exchange) -> Lines {
    // A created key has the same fields, without a previous one.
    let RotateKeyResponse { key, secret, previous, .. } = typed(&exchange.response);
    let id = text::value(&key.unwrap_or_default().id);
    let mut warning = if secret.is_empty() {
        format!("key {id} was created before, under this request id; rotate it for a new secret")
    } else {
        format!("this is the only copy of the secret of key {id}")
    };
    if let Some(ApiKey { id, expires_at, .. }) = previous {
        let end = text::time(expires_at.as_ref());
        warning = format!("{warning}; key {} ends at {end}", text::value(&id));
    }
    let text = if secret.is_empty() { String::new() } else { format!("{secret}\n") };
    Lines { text, warning: Some(warning), ..Lines::default() }
}

/// What a ban on all rules did to each.
fn banned(exchange: &Exchange) -> Lines {
    let response: BanKeyResponse = typed(&exchange.response);
    let BanKeyResponse { banned, banned_before, not_overridable, keyed_otherwise, .. } = response;
    let BanKeyRequest { project_id, .. } = typed(&exchange.request);
    let project = format!("project {}\n", text::project(&project_id));
    let mut lines =
        project + &named("banned on", &banned) + &named("banned before on", &banned_before);
    lines += &named("not banned, because not overridable, on", &not_overridable);
    let found_nothing = banned.is_empty() && banned_before.is_empty();
    if found_nothing && not_overridable.is_empty() {
        lines += "nothing was changed: no rule has keys of these parts\n";
    } else if found_nothing {
        lines += "nothing was changed: add `overridable: true` to a rule\n";
    }
    if !keyed_otherwise.is_empty() {
        let count = text::count(keyed_otherwise.len() as u64, "rule");
        let _infallible = writeln!(lines, "not covered, because keyed otherwise: {count}");
    }
    lines += &keys::in_force(response.everywhere_by.as_ref());
    lines += "rules that are made later are not covered\n";
    Lines { found_nothing, ..lines.into() }
}

/// The rules on which bans were ended.
fn unbanned(exchange: &Exchange) -> Lines {
    let BanKeyResponse { ended, everywhere_by, .. } = typed(&exchange.response);
    if ended.is_empty() {
        let text = "nothing was changed: no ban was found\n".to_owned();
        return Lines { found_nothing: true, ..text.into() };
    }
    (named("not banned any more on", &ended) + &keys::in_force(everywhere_by.as_ref())).into()
}

/// Returns a line with the names of rules; none without rules.
fn named(what: &str, rules: &[String]) -> String {
    let names: Vec<_> = rules.iter().map(|rule| text::value(rule)).collect();
    let (count, names) = (text::count(rules.len() as u64, "rule"), names.join(", "));
    if rules.is_empty() { String::new() } else { format!("{what} {count}: {names}\n") }
}

fn revoked_key(exchange: &Exchange) -> Lines {
    let RevokeKeyResponse { key } = typed(&exchange.response);
    let key = key.unwrap_or_default();
    let state = key.state().as_str_name().trim_start_matches("STATE_").to_lowercase();
    format!("key {} is {state}\n", text::value(&key.id)).into()
}

/// A revision, and the differences of rules.
fn difference(exchange: &Exchange) -> Lines {
    let GetRevisionResponse { revision, changes } = typed(&exchange.response);
    let GetRevisionRequest { base_revision, .. } = typed(&exchange.request);
    let Revision { revision, created_at, actor, action, reason, .. } = revision.unwrap_or_default();
    let base = base_revision
        .map_or_else(|| "the one before".to_owned(), |base| format!("revision {base}"));
    let (at, actor) = (text::time(created_at.as_ref()), text::value(&actor));
    let (action, reason) = (text::value(&action), text::words(&reason));
    let head = format!("revision {revision} against {base}: {at}, {actor}, {action}, {reason}\n");
    let none = if changes.is_empty() { "  no differences\n" } else { "" };
    (head + none + &change_lines(&changes, exchange.rule_fields)).into()
}

/// The new revision, and the differences of rules.
fn restored_rules(exchange: &Exchange) -> Lines {
    let RollbackResponse { revision, changes } = typed(&exchange.response);
    let number = revision.unwrap_or_default().revision;
    if changes.is_empty() {
        return format!("revision {number}: nothing was changed\n").into();
    }
    format!("revision {number}\n{}", change_lines(&changes, exchange.rule_fields)).into()
}

fn mode(exchange: &Exchange) -> Lines {
    let request: SetModeRequest = typed(&exchange.request);
    let SetModeResponse { ends_at, everywhere_by, replayed, coverage } = typed(&exchange.response);
    let rule =
        if request.rule == "*" { "every rule".to_owned() } else { text::value(&request.rule) };
    let mode = match &ends_at {
        Some(end) => {
            let name = request.mode().as_str_name().trim_start_matches("RULE_MODE_").to_lowercase();
            format!("{name} until {}", text::time(Some(end)))
        }
        None => "mode of the configuration".to_owned(),
    };
    let Coverage { missing, .. } = coverage.unwrap_or_default();
    let missing: Vec<_> = missing.iter().map(|id| text::value(id)).collect();
    let place = match &everywhere_by {
        Some(by) => format!("in force here, everywhere by {}", text::time(Some(by))),
        None if missing.is_empty() => "in force here alone, the store is away".to_owned(),
        None => format!("in force here alone, the store is away; not on {}", missing.join(", ")),
    };
    let replayed = if replayed { " (set before, under this request id)" } else { "" };
    format!("{rule}: {mode}; {place}{replayed}\n").into()
}

/// Returns the fields of a rule that are not at their defaults, but for its name, in the words of
/// rules files.
pub type RuleFields = fn(&Rule) -> BTreeMap<String, Value>;

/// Returns lines for each rule that differs: `+` is new, `~` differs, `-` is deleted.
pub fn change_lines(changes: &[RuleChange], fields: RuleFields) -> String {
    changes.iter().map(|change| of_rule(change, fields)).collect()
}

/// Returns how many rules are created, updated and deleted.
pub fn change_counts(changes: &[RuleChange]) -> [usize; 3] {
    [Kind::Created, Kind::Updated, Kind::Deleted]
        .map(|kind| changes.iter().filter(|change| change.kind() == kind).count())
}

fn of_rule(change: &RuleChange, fields: RuleFields) -> String {
    let name = text::value(&change.rule_name);
    let (before, after) =
        (shown_fields(change.before.as_ref(), fields), shown_fields(change.after.as_ref(), fields));
    match change.kind() {
        Kind::Deleted => format!("  - {name}\n"),
        Kind::Created => {
            let line = |(key, value): (&String, &String)| format!("      {key}: {value}\n");
            format!("  + {name}\n{}", after.iter().map(line).collect::<String>())
        }
        Kind::Updated | Kind::Unspecified => {
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            let differing = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
            let shown = |fields: &BTreeMap<String, String>, key: &String| {
                fields.get(key).cloned().unwrap_or_else(|| "-".to_owned())
            };
            let line =
                |key| format!("      {key}: {} -> {}\n", shown(&before, key), shown(&after, key));
            format!("  ~ {name}\n{}", differing.map(line).collect::<String>())
        }
    }
}

fn shown_fields(rule: Option<&Rule>, fields: RuleFields) -> BTreeMap<String, String> {
    let shown = |value: Value| match value {
        Value::String(text) => text::value(&text),
        other => printable(&other.to_string()),
    };
    let fields = rule.map(fields).unwrap_or_default();
    fields.into_iter().map(|(key, value)| (key, shown(value))).collect()
}
