//! The rules: `rate-limiter` (the default rule), `rules` and `unmatched`.
//!
//! They are read as specifications, which `rlaas-core` validates and builds. Its problems are
//! reported with the line of the field.

use std::iter;

use figment::value::{Dict, Value};
use rlaas_auth::ApiKeyMode;
use rlaas_auth::{api_key_problems, key_attribute_problems};

use super::section::Section;
use super::setting::Setting;
use super::values;
use crate::algorithm::Limit;
use crate::rules::spec::{Field, FieldKind, Problem, RuleField, RuleSpec, RulesSpec};
use crate::rules::{RuleSet, Unmatched};

const DEFAULT_RULE: Setting =
    Setting::new("rate-limiter", "The default rule, for requests that no other rule matches.");
pub(super) const RULES: Setting = Setting::new(
    "rules",
    "Rules beside the default rule. All that match a request apply; if one denies, none takes \
     units. Their order has no meaning. The rules of several files are one list.",
);
pub(super) const REPLACE: Setting = Setting::new(
    "replace",
    "true: the rule stands in the place of the whole rule of this name in an earlier file; default \
     false.",
)
.example("true");

/// Reads the specification.
pub(super) fn read(root: &mut Section<'_>) -> RulesSpec {
    let default_rule = default_rule(root);
    let rules = named_rules(root);
    let unmatched = unmatched(root, Some(Unmatched::default().name()));
    RulesSpec { default_rule, rules, unmatched }
}

/// Builds the rules. None may use the attributes of API keys; unless `keys` are off, neither `api_key`.
pub(super) fn build(root: &Section<'_>, spec: &RulesSpec, keys: ApiKeyMode) -> RuleSet {
    root.refuse_fields(match keys {
        ApiKeyMode::Off => problems_of(spec, key_attribute_problems),
        _ => api_key_problems_of(spec),
    });
    spec.build().unwrap_or_else(|mut problems| {
        for problem in &mut problems {
            let is_alias = |name: &&str| problem.field == format!("rate-limiter.{name}");
            let mut fields = RuleField::of_default_rule();
            if let Some(field) = fields.find(|field| field.aliases.iter().any(is_alias)) {
                problem.field = format!("rate-limiter.{}", field.key);
            }
        }
        root.refuse_fields(problems);
        // A placeholder: the problems prevent its use.
        RulesSpec::default().build().expect("the built-in rule is valid")
    })
}

/// Reads the policy for requests that no rule matches.
pub(super) fn unmatched(root: &mut Section<'_>, default: Option<&str>) -> Field<Unmatched> {
    let value = root.value_of(&RulesSpec::UNMATCHED, default);
    value.map_or(Field::Unset, |value| value.deserialize().unwrap_or(Field::Unreadable))
}

/// Reads the list of rules.
pub(super) fn named_rules(root: &mut Section<'_>) -> Vec<RuleSpec> {
    let rules = root.items(RULES).into_iter();
    rules.map(|section| section.map_or_else(RuleSpec::default, named_rule)).collect()
}

/// Returns the problems of rules that use the attribute `api_key`, which requests without a project
/// never have while API keys are on.
pub(super) fn api_key_problems_of(spec: &RulesSpec) -> Vec<Problem> {
    problems_of(spec, api_key_problems)
}

fn problems_of(spec: &RulesSpec, problems: fn(&RuleSpec, &str) -> Vec<Problem>) -> Vec<Problem> {
    let default_rule = ("rate-limiter".to_owned(), &spec.default_rule);
    let rules = spec.rules.iter().enumerate();
    let rules = rules.map(|(index, rule)| (format!("rules[{index}]"), rule));
    let all = iter::once(default_rule).chain(rules);
    all.flat_map(|(path, rule)| problems(rule, &path)).collect()
}

fn default_rule(root: &mut Section<'_>) -> RuleSpec {
    let mut section = root.section(DEFAULT_RULE);
    let mut values = Dict::new();
    for field in RuleField::of_default_rule() {
        let limit = values.get("max-requests").and_then(Value::to_u128);
        let default = match (field.key, limit) {
            ("use-algo" | "window-size" | "max-requests", _) => field.default.map(str::to_owned),
            ("burst", Some(units)) if (1..=Limit::MAX_UNITS.into()).contains(&units) => {
                Some(units.to_string())
            }
            ("fail-open", _) if !section.has("fail-open") && !section.has("on-store-failure") => {
                Some("false".to_owned())
            }
            _ => None,
        };
        let value = section.value_of(field, default.as_deref());
        values.extend(value.map(|value| (field.key.to_owned(), value)));
    }
    section.close();
    spec(values)
}

fn named_rule(mut section: Section<'_>) -> RuleSpec {
    let values = values_of(&mut section, RuleSpec::FIELDS);
    let mut spec = RuleSpec { file: section.file(), ..spec(values) };
    // Files were joined by it before.
    section.optional(REPLACE, values::boolean);
    if let Some(name) = spec.name_by_endpoint() {
        let text = format!("the rule has no name: {name} was made from endpoint and algorithm");
        section.warn("name", text);
    }
    section.close();
    spec
}

/// Returns the specification with values that were read.
fn spec(values: Dict) -> RuleSpec {
    Value::from(values).deserialize().expect("fields of rules, each of its type or unreadable")
}

/// Reads fields, those of parts included.
fn values_of(section: &mut Section<'_>, fields: &[RuleField]) -> Dict {
    let mut values = Dict::new();
    for field in fields {
        let value = match field.kind {
            FieldKind::Value(..) => section.value_of(field, None),
            FieldKind::Section(fields) => {
                let mut below = section.section(field.into());
                let values = values_of(&mut below, fields);
                below.close();
                Some(values.into())
            }
            FieldKind::List(fields) => {
                let items = section.items(field.into()).into_iter();
                let items = items.map(|item| {
                    let Some(mut item) = item else { return Dict::new() };
                    let values = values_of(&mut item, fields);
                    item.close();
                    values
                });
                Some(items.collect::<Vec<_>>().into())
            }
            FieldKind::Map(of_name) => {
                let mut names = section.section(field.into());
                let texts = names.fields::<Vec<String>>(of_name.into());
                names.note_takes(of_name);
                Some(Value::serialize(texts).expect("texts"))
            }
        };
        values.extend(value.map(|value| (field.key.to_owned(), value)));
    }
    values
}

/// Reads some fields that rules have, for limits of another kind.
pub(super) fn read_some(section: &mut Section<'_>, keys: &[&str]) -> RuleSpec {
    let fields = keys.iter().filter_map(|key| RuleField::find(key));
    let values =
        fields.filter_map(|field| Some((field.key.to_owned(), section.value_of(field, None)?)));
    spec(values.collect())
}
