//! Differences of rules, field by field, in the words of rules files.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::RuleChange;
use rlaas_proto::ratelimit::admin::v1::rule_change::Kind;
use rlaas_proto::ratelimit::v1::Rule;

use super::rules_text::RulesFormat;
use super::table::table_with_rows;
use super::text::{foreign, number};

/// Most rules whose fields are shown.
const MAX_SHOWN: usize = 200;

/// Differences of rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleDiff<'a> {
    /// The name of the differences, in the plural and in lower case. Each table of a page has another.
    pub(super) subject: &'a str,
    pub(super) caption: &'a str,
    pub(super) changes: &'a [RuleChange],
    pub(super) format: RulesFormat,
}

impl RuleDiff<'_> {
    /// Returns a line with counts, and the table.
    pub(super) fn render(&self) -> Markup {
        let count =
            |kind: Kind| self.changes.iter().filter(|change| change.kind() == kind).count() as u64;
        let (created, deleted) = (count(Kind::Created), count(Kind::Deleted));
        let changed = count(Kind::Updated);
        let columns = ["Rule", "Change", "Field", "Before", "After"].map(|title| (title, false));
        html! {
            p.summary {
                (number(created)) " new, " (number(changed)) " changed, " (number(deleted)) " deleted"
            }
            @if !self.changes.is_empty() {
                (table_with_rows(self.subject, self.caption, &columns, &html! {
                    @for change in self.changes.iter().take(MAX_SHOWN) { (self.rows(change)) }
                }))
            }
            @if self.changes.len() > MAX_SHOWN {
                p.notice { "Only the first " (number(MAX_SHOWN as u64)) " rules are shown." }
            }
        }
    }

    /// Returns a row for each field that differs.
    fn rows(&self, change: &RuleChange) -> Markup {
        let fields = |rule: Option<&Rule>| rule.map(self.format.fields).unwrap_or_default();
        let (before, after) = (fields(change.before.as_ref()), fields(change.after.as_ref()));
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let mut keys: Vec<&String> =
            keys.into_iter().filter(|key| before.get(*key) != after.get(*key)).collect();
        if change.after.is_none() {
            keys.clear();
        }
        let rest = keys.iter().skip(1);
        html! {
            tr {
                th scope="row" rowspan=(keys.len().max(1)) { (foreign(&change.rule_name)) }
                td rowspan=(keys.len().max(1)) { (kind(change)) }
                @match keys.first() {
                    Some(key) => (cells(change, key, &before, &after)),
                    None => td colspan="3" { span.muted { "–" } }
                }
            }
            @for key in rest { tr { (cells(change, key, &before, &after)) } }
        }
    }
}

fn kind(change: &RuleChange) -> Markup {
    html! {
        @match change.kind() {
            Kind::Created => span.good { "new" },
            Kind::Deleted => span.bad { "deleted" },
            Kind::Updated | Kind::Unspecified => span.warn { "changed" },
        }
    }
}

fn cells(
    change: &RuleChange,
    key: &str,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Markup {
    let value = |fields: &BTreeMap<String, String>| {
        let default = || html! { span.muted { "default" } };
        fields.get(key).map_or_else(default, |value| foreign(value))
    };
    let nothing = html! { span.muted { "–" } };
    let before = if change.before.is_some() { value(before) } else { nothing };
    html! {
        td { (foreign(key)) }
        td.wide { (before) }
        td.wide { (value(after)) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::rules_text::RulesReading;
    use super::*;

    pub(crate) const FORMAT: RulesFormat = RulesFormat {
        read: |_| RulesReading { project: None, unmatched: None, rules: vec![], problems: vec![] },
        print: |_, _| String::new(),
        fields: |rule| {
            let fields = [("limit", rule.max_requests.to_string()), ("window", "60s".to_owned())];
            fields.map(|(name, value)| (name.to_owned(), value)).into()
        },
        help: Vec::new,
    };

    #[test]
    fn fields_that_differ_are_shown_before_and_after() {
        let rule = |max_requests| {
            let window = Some(prost_types::Duration { seconds: 60, nanos: 0 });
            Some(Rule { name: "<b>".to_owned(), max_requests, window, ..Rule::default() })
        };
        let change = |kind: Kind, before, after| RuleChange {
            kind: kind.into(),
            rule_name: "<b>".to_owned(),
            before,
            after,
            changed_fields: None,
        };
        let changes = [
            change(Kind::Created, None, rule(1)),
            change(Kind::Updated, rule(1), rule(2)),
            change(Kind::Deleted, rule(1), None),
        ];
        let diff = RuleDiff {
            subject: "differences",
            caption: "Differences",
            changes: &changes,
            format: FORMAT,
        };
        let html = diff.render().into_string();
        assert_eq!(html.matches("<tr>").count(), 1 + 2 + 1 + 1, "{html}");
        for text in [">new<", ">changed<", ">deleted<", "&lt;b&gt;", ">limit<", ">60s<"] {
            assert!(html.contains(text), "{text}: {html}");
        }
        assert!(!html.contains("<b>"), "{html}");
    }
}
