//! A validator for the subset of JSON Schema that `openapi.json` uses.

use serde_json::Value;

/// Keywords that are not validated here. schemathesis validates patterns.
const IGNORED: [&str; 4] = ["description", "pattern", "format", "example"];

/// Resolves a `$ref` into the document.
pub(crate) fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let Some(reference) = value.get("$ref") else { return value };
    let pointer = reference.as_str().and_then(|reference| reference.strip_prefix('#'));
    let found = document.pointer(pointer.expect("a reference into the document"));
    found.unwrap_or_else(|| panic!("{reference} does not exist"))
}

/// Returns the problems of a value, each with the path to it.
///
/// # Panics
///
/// If the schema uses an unknown keyword.
pub(crate) fn problems(document: &Value, schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let schema = resolve(document, schema).as_object().expect("a schema");
    let mut wrong = Vec::new();
    let mut require = |is_valid: bool, what: &Value| {
        if !is_valid {
            wrong.push(format!("{path}: {value} is not {what}"));
        }
    };
    for (keyword, rule) in schema {
        let number = || rule.as_f64().expect("a number");
        let size = || rule.as_u64().and_then(|size| usize::try_from(size).ok()).expect("a size");
        match keyword.as_str() {
            "type" => {
                let types = rule.as_array().map_or(std::slice::from_ref(rule), Vec::as_slice);
                let is_of = |of: &Value| is_of_type(value, of.as_str().expect("a type"));
                require(types.iter().any(is_of), rule);
            }
            "const" => require(value == rule, rule),
            "enum" => require(rule.as_array().expect("values").contains(value), rule),
            "minimum" => require(value.as_f64().is_none_or(|value| value >= number()), rule),
            "maximum" => require(value.as_f64().is_none_or(|value| value <= number()), rule),
            "minLength" => require(value.as_str().is_none_or(|text| text.len() >= size()), rule),
            "maxLength" => require(value.as_str().is_none_or(|text| text.len() <= size()), rule),
            "minItems" => require(value.as_array().is_none_or(|list| list.len() >= size()), rule),
            "maxItems" => require(value.as_array().is_none_or(|list| list.len() <= size()), rule),
            "maxProperties" => require(value.as_object().is_none_or(|of| of.len() <= size()), rule),
            "required" => {
                for name in rule.as_array().expect("names") {
                    require(value.get(name.as_str().expect("a name")).is_some(), name);
                }
            }
            keyword => assert!(
                IGNORED.contains(&keyword) || INSIDE.contains(&keyword),
                "{keyword} is not known"
            ),
        }
    }
    for keyword in INSIDE.iter().filter(|keyword| schema.contains_key(**keyword)) {
        wrong.extend(problems_inside(document, (keyword, schema), value, path));
    }
    wrong
}

/// Keywords whose values are schemas.
const INSIDE: [&str; 6] =
    ["properties", "additionalProperties", "propertyNames", "items", "allOf", "oneOf"];

fn problems_inside(
    document: &Value,
    (keyword, schema): (&str, &serde_json::Map<String, Value>),
    value: &Value,
    path: &str,
) -> Vec<String> {
    let rule = &schema[keyword];
    let empty = serde_json::Map::new();
    let members = value.as_object().unwrap_or(&empty);
    let inside = |schema: &Value, value: &Value, name: &str| {
        problems(document, schema, value, &format!("{path}/{name}"))
    };
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    match keyword {
        "properties" => properties
            .iter()
            .filter_map(|(name, schema)| Some(inside(schema, members.get(name)?, name)))
            .flatten()
            .collect(),
        "additionalProperties" => members
            .iter()
            .filter(|(name, _)| !properties.contains_key(*name))
            .flat_map(|(name, value)| match rule {
                Value::Bool(false) => vec![format!("{path}/{name}: not known")],
                schema => inside(schema, value, name),
            })
            .collect(),
        "propertyNames" => members
            .keys()
            .flat_map(|name| inside(rule, &Value::from(name.as_str()), name))
            .collect(),
        "items" => value
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|item| inside(rule, item, "item"))
            .collect(),
        "allOf" => rule
            .as_array()
            .expect("schemas")
            .iter()
            .flat_map(|schema| problems(document, schema, value, path))
            .collect(),
        _ => {
            let schemas = rule.as_array().expect("schemas").iter();
            let fitting =
                schemas.filter(|schema| problems(document, schema, value, path).is_empty()).count();
            if fitting == 1 { Vec::new() } else { vec![format!("{path}: fits {fitting}")] }
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        name => panic!("type {name} is not known"),
    }
}
