//! Rules files, as the pages of the console show and read them.

use std::collections::BTreeMap;

use rlaas_console::{FieldHelp, RulesFormat, RulesReading};
use rlaas_proto::ratelimit::v1::{Rule, UnmatchedPolicy};
use rlaas_proto::rule_messages;

use super::super::{Problem, Problems, reference};
use super::{RulesFile, read};
use crate::rules::Unmatched;

/// Rules files, as pages show and read them.
pub const FORMAT: RulesFormat =
    RulesFormat { read: read_of_page, print, fields: rule_fields, help: field_help };

fn read_of_page(text: &str) -> RulesReading {
    let (file, Problems(problems)) = read("text".to_owned(), text.to_owned());
    RulesReading {
        project: file.project.map(|id| id.as_str().to_owned()),
        unmatched: file.unmatched.map(|policy| match policy {
            Unmatched::DefaultRule => UnmatchedPolicy::DefaultRule,
            Unmatched::Allow => UnmatchedPolicy::Allow,
            Unmatched::Deny => UnmatchedPolicy::Deny,
        }),
        rules: file.rules.iter().map(rule_messages::message).collect(),
        problems: problems.iter().map(Problem::text).collect(),
    }
}

/// Prints rules of a project.
fn print(project: &str, rules: &[Rule]) -> String {
    let rules = rules.iter().map(|rule| {
        let rule = rule_messages::explicit(&rule_messages::spec(rule));
        rule_messages::without_defaults(&rule)
    });
    RulesFile { project: project.parse().ok(), unmatched: None, rules: rules.collect() }.to_yaml()
}

/// Returns the fields of a rule that are not at their defaults.
fn rule_fields(rule: &Rule) -> BTreeMap<String, String> {
    let shown = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    let fields = rule_messages::fields(&rule_messages::spec(rule));
    fields.into_iter().map(|(key, value)| (key, shown(value))).collect()
}

/// Returns the fields of rules, in the order of the documentation.
fn field_help() -> Vec<FieldHelp> {
    let settings = reference().into_iter();
    let of_rules = settings.filter_map(|setting| {
        let name = setting.path.strip_prefix("rules[].")?.to_owned();
        let (about, must_be) = (setting.about, setting.must_be);
        Some(FieldHelp { name, about, must_be })
    });
    of_rules.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_messages_are_in_the_words_of_files() {
        let window = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let rule = rlaas_proto::ratelimit::v1::Rule {
            name: "pay".to_owned(),
            max_requests: 1,
            window,
            ..Default::default()
        };
        let fields = rule_fields(&rule);
        assert_eq!((&*fields["limit"], &*fields["window"]), ("1", "60s"));
        assert!(!fields.contains_key("name"), "{fields:?}");
        let text = print("shop", &[rule]);
        let RulesReading { project, rules, problems, .. } = read_of_page(&text);
        assert_eq!((project.as_deref(), &*rules[0].name), (Some("shop"), "pay"), "{text}");
        assert!(problems.is_empty(), "{problems:?}");
    }
}
