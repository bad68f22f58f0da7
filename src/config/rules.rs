//! The rules: `rate-limiter` (the default rule), `rules` and `unmatched`.
//!
//! They are read as specifications, which `rlaas-core` validates and builds. Its problems are
//! reported with the line of the field.

use super::section::Section;
use crate::algorithm::Limit;
use crate::rules::spec::{Field, MatcherSpec, OverrideSpec, RuleSpec, RulesSpec, StoreFailureSpec};
use crate::rules::{RuleSet, Unmatched};

/// Fields of the default rule whose keys have other names than in `rules`.
const KEYS_OF_DEFAULT_RULE: [(&str, &str); 3] = [
    ("rate-limiter.algorithm", "rate-limiter.use-algo"),
    ("rate-limiter.limit", "rate-limiter.max-requests"),
    ("rate-limiter.window", "rate-limiter.window-size"),
];

pub(super) fn read(root: &mut Section<'_>) -> RuleSet {
    let default_rule = default_rule(root);
    let rules = root.items("rules").into_iter();
    let rules = rules.map(|section| section.map_or_else(RuleSpec::default, named_rule)).collect();
    let unmatched = root.field_or("unmatched", Unmatched::default());
    let spec = RulesSpec { default_rule, rules, unmatched };
    spec.build().unwrap_or_else(|mut problems| {
        for problem in &mut problems {
            let renamed = KEYS_OF_DEFAULT_RULE.iter().find(|(field, _)| *field == problem.field);
            if let Some((_, key)) = renamed {
                (*key).clone_into(&mut problem.field);
            }
        }
        root.refuse_fields(problems);
        // A placeholder: the problems prevent its use.
        RulesSpec::default().build().expect("the built-in rule is valid")
    })
}

fn default_rule(root: &mut Section<'_>) -> RuleSpec {
    let mut section = root.section("rate-limiter");
    let algorithm = section.field_or("use-algo", RuleSpec::DEFAULT_ALGORITHM);
    let window = section.field_or("window-size", RuleSpec::DEFAULT_WINDOW);
    let limit = section.field_or("max-requests", RuleSpec::DEFAULT_LIMIT);
    let burst = match limit {
        Field::Set(units) if (1..=Limit::MAX_UNITS).contains(&units) => {
            section.field_or("burst", units)
        }
        _ => section.field("burst"),
    };
    let key_by = section.field("key-by");
    let failure = store_failure(&mut section);
    if !section.has("fail-open") && !section.has("on-store-failure") {
        section.field_or("fail-open", false);
    }
    section.close();
    RuleSpec { algorithm, window, limit, burst, key_by, ..RuleSpec::from(failure) }
}

fn named_rule(mut section: Section<'_>) -> RuleSpec {
    let spec = RuleSpec {
        version: section.field("version"),
        name: section.field("name"),
        endpoint: section.field("endpoint"),
        matcher: matcher(&mut section),
        key_by: section.field("key-by"),
        algorithm: section.field("algorithm"),
        limit: section.field("limit"),
        window: section.field("window"),
        burst: section.field("burst"),
        shadow: section.field("shadow"),
        ..RuleSpec::from(store_failure(&mut section))
    };
    let overrides = section.items("overrides").into_iter();
    let overrides =
        overrides.map(|section| section.map_or_else(OverrideSpec::default, override_spec));
    let spec = RuleSpec { overrides: overrides.collect(), ..spec };
    section.close();
    spec
}

/// Reads an override: `limit`, `limit: 0` or `unlimited: true`.
fn override_spec(mut section: Section<'_>) -> OverrideSpec {
    let spec = OverrideSpec {
        matcher: matcher(&mut section),
        unlimited: section.field("unlimited"),
        limit: section.field("limit"),
        burst: section.field("burst"),
    };
    section.close();
    spec
}

fn matcher(section: &mut Section<'_>) -> MatcherSpec {
    let mut conditions = section.section("match");
    let spec = MatcherSpec {
        resource: conditions.field("resource"),
        user_id: conditions.field("user-id"),
        attributes: conditions.section("attributes").fields(),
    };
    conditions.close();
    spec
}

pub(super) fn store_failure(section: &mut Section<'_>) -> StoreFailureSpec {
    StoreFailureSpec {
        local_share: section.field("local-share"),
        on_store_failure: section.field("on-store-failure"),
        fail_open: section.field("fail-open"),
        breaker_opens_rule: section.field("breaker-opens-rule"),
    }
}
