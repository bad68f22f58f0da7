//! Differences of rules on a terminal, field by field, in the words of rules files.

use std::collections::{BTreeMap, BTreeSet};

use rlaas_proto::ratelimit::admin::v1::RuleChange;
use rlaas_proto::ratelimit::admin::v1::rule_change::Kind;
use rlaas_proto::ratelimit::v1::Rule;
use serde_json::Value;

use crate::cli::admin::text;
use crate::cli::printable::printable;
use crate::rule_messages;

/// Returns lines for each rule that differs: `+` is new, `~` differs, `-` is deleted.
pub(super) fn lines(changes: &[RuleChange]) -> String {
    changes.iter().map(of_rule).collect()
}

/// Returns how many rules are created, updated and deleted.
pub(super) fn counts(changes: &[RuleChange]) -> [usize; 3] {
    [Kind::Created, Kind::Updated, Kind::Deleted]
        .map(|kind| changes.iter().filter(|change| change.kind() == kind).count())
}

fn of_rule(change: &RuleChange) -> String {
    let name = text::value(&change.rule_name);
    let (before, after) = (fields(change.before.as_ref()), fields(change.after.as_ref()));
    match change.kind() {
        Kind::Deleted => format!("  - {name}\n"),
        Kind::Created => {
            let line = |(key, value): (&String, &String)| format!("      {key}: {value}\n");
            format!("  + {name}\n{}", after.iter().map(line).collect::<String>())
        }
        Kind::Updated | Kind::Unspecified => {
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            let differing = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
            let shown = |of: &BTreeMap<String, String>, key: &String| {
                of.get(key).cloned().unwrap_or_else(|| "-".to_owned())
            };
            let line =
                |key| format!("      {key}: {} -> {}\n", shown(&before, key), shown(&after, key));
            format!("  ~ {name}\n{}", differing.map(line).collect::<String>())
        }
    }
}

/// Returns the fields of a rule that are not at their defaults, but for its name.
fn fields(rule: Option<&Rule>) -> BTreeMap<String, String> {
    let spec = rule.map(rule_messages::spec).unwrap_or_default();
    let shown = |value: Value| match value {
        Value::String(text) => text::value(&text),
        other => printable(&other.to_string()),
    };
    rule_messages::fields(&spec).into_iter().map(|(key, value)| (key, shown(value))).collect()
}
