//! Problems of rules, with the paths of fields of messages.

use rlaas_core::rules::spec::{Problem, RuleField, RuleSpec};

/// Returns a problem with the path of the field in the message. `rule` is the path of the rule, empty
/// if the field begins with that of a list of rules.
pub fn in_message(problem: Problem, rule: &str) -> Problem {
    let Problem { field, text } = problem;
    // `rules[3].limit` of a list, `limit` of one rule.
    let (list, own) = match field.split_once("].") {
        Some((list, own)) if field.starts_with("rules[") => (format!("{list}]"), own),
        _ if field == "rules" => return Problem { field: of_list(rule), text },
        _ => (rule.to_owned(), field.as_str()),
    };
    let (part, own) = match own.split_once("].") {
        Some((part, own)) if part.starts_with("overrides[") => (format!(".{part}]"), own),
        _ => (String::new(), own),
    };
    let is_of_key = text.contains("auth.api-keys");
    let is_override = !part.is_empty();
    let name = match own {
        "limit" | "burst" if is_override => format!("grant.{own}"),
        "unlimited" if is_override => "grant".to_owned(),
        "endpoint" if is_of_key => "matchers".to_owned(),
        own if own.starts_with("match.") => "matchers".to_owned(),
        own => {
            let field = RuleSpec::FIELDS.iter().find(|field| field.key == own);
            let name = field.and_then(RuleField::name_in_messages);
            name.unwrap_or_else(|| own.replace('-', "_"))
        }
    };
    let text = match own {
        _ if is_of_key => text,
        "enforce" if text.contains('%') => "must be 0 to 1000000".to_owned(),
        "enforce" => "requires the mode ENFORCE".to_owned(),
        "local-share" | "near-limit" => "must be 1 to 1000000".to_owned(),
        "key-by" => {
            "must be user_id, resource, attributes.NAME or attributes.NAME|user_id, each once"
                .to_owned()
        }
        own if own.starts_with("match.") => {
            "must have a known part, once, and at least one text".to_owned()
        }
        _ => text,
    };
    Problem { field: format!("{list}{part}.{name}"), text }
}

fn of_list(rule: &str) -> String {
    if rule.is_empty() { "rules".to_owned() } else { rule.to_owned() }
}
