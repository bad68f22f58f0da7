//! Problems of rules, with the paths of fields of messages.

use rlaas_core::rules::spec::Problem;

/// Returns a problem with the path of the field in the message. `of` is the path of the rule, empty
/// if the field begins with that of a list of rules.
pub fn in_message(problem: Problem, of: &str) -> Problem {
    let Problem { field, text } = problem;
    // `rules[3].limit` of a list, `limit` of one rule.
    let (list, own) = match field.split_once("].") {
        Some((list, own)) if field.starts_with("rules[") => (format!("{list}]"), own),
        _ if field == "rules" => return Problem { field: of_list(of), text },
        _ => (of.to_owned(), field.as_str()),
    };
    let (part, own) = match own.split_once("].") {
        Some((part, own)) if part.starts_with("overrides[") => (format!(".{part}]"), own),
        _ => (String::new(), own),
    };
    let (name, text) = match (own, part.is_empty()) {
        ("limit", true) => ("max_requests".to_owned(), text),
        ("limit" | "burst", false) => (format!("grant.{own}"), text),
        ("unlimited", false) => ("grant".to_owned(), text),
        ("enforce", _) if text.contains('%') => {
            ("enforce_ppm".to_owned(), "must be 0 to 1000000".to_owned())
        }
        ("enforce", _) => ("enforce_ppm".to_owned(), "requires the mode ENFORCE".to_owned()),
        ("local-share" | "near-limit", _) => {
            (format!("{}_ppm", own.replace('-', "_")), "must be 1 to 1000000".to_owned())
        }
        ("match", _) => ("matchers".to_owned(), text),
        (own, _) if text.contains("auth.api-keys") => {
            let is_key = own == "key-by";
            (if is_key { "key_by" } else { "matchers" }.to_owned(), text)
        }
        (own, _) if own.starts_with("match.") => (
            "matchers".to_owned(),
            "must have a known part, once, and at least one text".to_owned(),
        ),
        ("key-by", _) => (
            "key_by".to_owned(),
            "must be user_id, resource, attributes.NAME or attributes.NAME|user_id, each once"
                .to_owned(),
        ),
        (own, _) => (own.replace('-', "_"), text),
    };
    Problem { field: format!("{list}{part}.{name}"), text }
}

fn of_list(of: &str) -> String {
    if of.is_empty() { "rules".to_owned() } else { of.to_owned() }
}
