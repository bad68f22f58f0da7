//! Rule specs agree with the two other forms of a rule: files, and the message `Rule`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use prost_reflect::DescriptorPool;
use rlaas::config::{Config, Sources};
use rlaas::rules::spec::{RuleSpec, RulesSpec};
use serde_json::{Map, Value};

/// Fields of a spec whose name in the message differs, with their names there.
const OTHER_NAMES: [(&str, &[&str]); 10] = [
    ("limit", &["max_requests"]),
    ("local-share", &["local_share_ppm"]),
    ("near-limit", &["near_limit_ppm"]),
    ("enforce", &["enforce_ppm"]),
    ("hold-share", &["hold_share_ppm"]),
    ("notify-at", &["notify_at_ppm"]),
    ("match", &["matchers"]),
    // Short for `match.resource`.
    ("endpoint", &[]),
    // The message has no version of its own.
    ("version", &[]),
    // `shadow` is for callers that do not know `mode`.
    ("shadow", &["shadow", "mode"]),
];
/// Fields of the message that only rules of Envoy's files have, or only rules in force.
const OTHER_FIELDS: [&str; 3] = ["descriptor_rule", "mode_ends_at", "origin"];

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let files = folder.read_dir().expect("config").map(|entry| entry.expect("an entry").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

/// Reads the sections of a file that define rules.
fn spec(file: &Path) -> RulesSpec {
    let text = std::fs::read_to_string(file).expect("a file");
    let mut whole = serde_saphyr::from_str::<Option<Map<String, Value>>>(&text)
        .expect("YAML")
        .unwrap_or_default();
    whole.retain(|key, _| ["rate-limiter", "rules", "unmatched"].contains(&&**key));
    serde_json::from_value(whole.into()).expect("specifications")
}

#[test]
fn specs_of_a_file_build_the_rules_of_the_service() {
    let mut rules = 0;
    for file in files() {
        let sources = Sources { files: vec![file.clone()], ..Sources::default() };
        let config = Config::load(&sources).expect("a valid file");
        let mut spec = spec(&file);
        for rule in &mut spec.rules {
            rule.file = file.to_string_lossy().into();
        }
        let built = spec.build().expect("valid rules");
        assert_eq!(built, config.rules, "{}", file.display());
        rules += built.iter().count();
    }
    assert!(rules > 3, "only {rules}");
}

#[test]
fn library_reads_the_rules_of_the_service_from_a_file() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules.yaml");
    let text = std::fs::read_to_string(&file).expect("a file");
    let built = spec(&file).build().expect("valid rules");
    assert_eq!(rlaas_limiter::yaml::read_rules(&text).expect("valid rules"), built);
}

#[test]
fn specs_survive_a_yaml_round_trip() {
    for file in files() {
        let spec = spec(&file);
        let written = serde_saphyr::to_string(&spec).expect("YAML");
        let read: RulesSpec = serde_saphyr::from_str(&written).expect(&written);
        assert_eq!(read, spec, "{written}");
    }
}

#[test]
fn spec_and_message_have_the_same_fields() {
    let whole: RuleSpec = serde_saphyr::from_str(
        "{version: 1, name: a, endpoint: /a, match: {user-id: b}, key-by: c, algorithm: gcra, \
         limit: 1, window: 1s, burst: 1, mode: shadow, shadow: true, enforce: 25%, on-change: scale, local-share: 1, \
         on-store-failure: local, fail-open: true, breaker-opens-rule: true, near-limit: 0.8, notify-at: 80%, overridable: true, \
         cost: 1, post-paid: true, max-debt: 1, reservable: true, hold: 1s, max-holds: 1, hold-share: 20%, limit-from: request, calendar: {unit: day}, window-from: epoch, \
         overrides: [{match: {user-id: b}, limit: 2}]}",
    )
    .expect("a specification");
    let Value::Object(fields) = serde_json::to_value(whole).expect("JSON") else {
        panic!("no object");
    };
    let spec_fields: BTreeSet<String> = fields.keys().flat_map(|field| in_message(field)).collect();
    let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
    let message = pool.get_message_by_name("ratelimit.v1.Rule").expect("the message");
    let message_fields: BTreeSet<String> = message
        .fields()
        .map(|field| field.name().to_owned())
        .filter(|name| !OTHER_FIELDS.contains(&&**name))
        .collect();
    assert_eq!(spec_fields, message_fields);
}

fn in_message(field: &str) -> Vec<String> {
    match OTHER_NAMES.iter().find(|(name, _)| *name == field) {
        Some((_, names)) => names.iter().map(|name| (*name).to_owned()).collect(),
        None => vec![field.replace('-', "_")],
    }
}
