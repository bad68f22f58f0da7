//! Differences of rules on a terminal, field by field, in the words of rules files.

use std::collections::{BTreeMap, BTreeSet};

use rlaas_proto::ratelimit::admin::v1::RuleChange;
use rlaas_proto::ratelimit::admin::v1::rule_change::Kind;
use rlaas_proto::ratelimit::v1::Rule;
use serde_json::Value;

use crate::printable::printable;
use crate::text;

/// Returns the fields of a rule that are not at their defaults, but for its name, in the words of
/// rules files.
pub type RuleFields = fn(&Rule) -> BTreeMap<String, Value>;

/// Returns lines for each rule that differs: `+` is new, `~` differs, `-` is deleted.
pub fn lines(changes: &[RuleChange], of: RuleFields) -> String {
    changes.iter().map(|change| of_rule(change, of)).collect()
}

/// Returns how many rules are created, updated and deleted.
pub fn counts(changes: &[RuleChange]) -> [usize; 3] {
    [Kind::Created, Kind::Updated, Kind::Deleted]
        .map(|kind| changes.iter().filter(|change| change.kind() == kind).count())
}

fn of_rule(change: &RuleChange, of: RuleFields) -> String {
    let name = text::value(&change.rule_name);
    let (before, after) = (fields(change.before.as_ref(), of), fields(change.after.as_ref(), of));
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

fn fields(rule: Option<&Rule>, of: RuleFields) -> BTreeMap<String, String> {
    let shown = |value: Value| match value {
        Value::String(text) => text::value(&text),
        other => printable(&other.to_string()),
    };
    let fields = rule.map(of).unwrap_or_default();
    fields.into_iter().map(|(key, value)| (key, shown(value))).collect()
}
