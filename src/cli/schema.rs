//! `rlaas schema`: the JSON Schema of rules files and of the configuration, for editors and for the chart.
//!
//! It is made of the reference, so that no setting is missing. It refuses unknown keys and values of the
//! wrong type, and knows nothing of files, of keys that must be given, nor of settings that depend on others;
//! `rlaas check-config` does. What is below a section spelled with `_` is not checked.
//!
//! **Source:** <https://json-schema.org/draft/2020-12>.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::config::{Kind, SettingReference, Takes, reference};

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The settings that rules files have, beside their project.
const OF_RULES_FILES: [&str; 2] = ["unmatched", "rules"];

#[derive(Args, Debug)]
pub(super) struct SchemaArgs {
    /// Files to describe
    #[arg(value_enum, value_name = "OF")]
    files: Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Files {
    /// Rules of one project
    Rules,
    /// The configuration
    Config,
}

/// Returns the schema as JSON.
pub(super) fn printed(args: &SchemaArgs) -> String {
    let title = match args.files {
        Files::Rules => "Rules file of rlaas",
        Files::Config => "Configuration of rlaas",
    };
    let mut schema = section();
    schema["$schema"] = DRAFT.into();
    schema["title"] = title.into();
    if args.files == Files::Rules {
        let pattern = "^[a-z][a-z0-9-]{0,62}$";
        let description = "Project of the rules of a file.";
        schema["properties"]["project"] =
            json!({ "type": "string", "pattern": pattern, "description": description });
    }
    for mut setting in reference() {
        let top = setting.path.split(['.', '[']).next().unwrap_or_default();
        if args.files == Files::Rules && !OF_RULES_FILES.contains(&top) {
            continue;
        }
        // In a rules file the default is the policy of the project.
        setting.default = setting.default.filter(|_| args.files == Files::Config);
        add(&mut schema, &setting);
    }
    format!("{schema:#}\n")
}

/// Adds a setting to the schema of the sections around it.
fn add(schema: &mut Value, setting: &SettingReference) {
    let mut within = schema;
    let mut parts: Vec<&str> = setting.path.split('.').collect();
    let key = parts.pop().unwrap_or_default();
    for part in parts {
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        within = &mut within["properties"][name];
        if is_list {
            within = &mut within["items"];
        }
    }
    let mut value = match (setting.kind, &setting.takes) {
        (Kind::Section, _) => section(),
        (Kind::List, _) => {
            let item = json!({ "type": "object", "additionalProperties": false });
            json!({ "type": ["array", "null"], "items": item })
        }
        (Kind::Value, takes) => takes.as_ref().map_or_else(|| json!({}), values),
    };
    let spellings = setting.other_spellings();
    if !spellings.is_empty() {
        // Without their settings: an editor is to propose the names of the documentation.
        let any = if setting.kind == Kind::Value { value.clone() } else { json!({}) };
        within["patternProperties"][format!("^({})$", spellings.join("|"))] = any;
    }
    value["description"] = match setting.must_be.as_str() {
        "" => setting.about.into(),
        must_be => format!("{} Must be {must_be}.", setting.about).into(),
    };
    if let Some(default) = &setting.default {
        value["default"] = serde_saphyr::from_str(default).unwrap_or_default();
    }
    if setting.is_name {
        within["additionalProperties"] = value;
    } else {
        within["properties"][key] = value;
    }
}

/// Returns the schema of a section without settings.
fn section() -> Value {
    json!({ "type": ["object", "null"], "additionalProperties": false })
}

/// Returns the schema of values. YAML has numbers and booleans as texts, too, where they are quoted; YAML 1.1
/// has `off` as false.
fn values(takes: &Takes) -> Value {
    match takes {
        Takes::Boolean => json!({ "enum": [true, false, "true", "false"] }),
        Takes::Whole(from, to) => json!({ "anyOf": [
            { "type": "integer", "minimum": from, "maximum": to },
            { "type": "string", "pattern": "^[0-9]+$" },
        ] }),
        Takes::Words(words) => {
            let spelled = words.iter().map(|word| word.replace('-', "_"));
            let other = spelled.filter(|word| !words.contains(&word.as_str()));
            let mut all: Vec<Value> = words.iter().copied().map(Value::from).collect();
            all.extend(other.map(Value::from));
            if words.contains(&"off") {
                all.push(false.into());
            }
            json!({ "enum": all })
        }
        Takes::Text => json!({ "type": "string" }),
        Takes::Texts => json!({ "type": ["string", "array"], "items": { "type": "string" } }),
        Takes::Duration => json!({ "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": "^ *[0-9]|^(off|never)$" },
            { "const": false },
        ] }),
        Takes::Share => json!({ "anyOf": [
            { "type": "number", "exclusiveMinimum": 0, "maximum": 1 },
            { "type": "string", "pattern": "^(0?\\.[0-9]+|1(\\.0+)?)$" },
        ] }),
        Takes::Percentage => {
            json!({ "type": "string", "pattern": "^(100(\\.0+)?|[0-9]{1,2}(\\.[0-9]+)?) *%$" })
        }
        Takes::Percentages => {
            let share = values(&Takes::Percentage);
            json!({ "anyOf": [share, { "type": "array", "items": share, "maxItems": 5 }] })
        }
    }
}
