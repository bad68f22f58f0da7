//! Rule specs agree with the two other forms of a rule: files, and the message `Rule`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use prost_reflect::DescriptorPool;
use rlaas::algorithm::{Algorithm, OnChange};
use rlaas::clock::Micros;
use rlaas::config::{Config, Sources};
use rlaas::rules::spec::{
    Field, MatcherSpec, OverrideSpec, RuleSpec, RulesSpec, StoreFailurePolicy,
};
use rlaas::rules::{EnforcedShare, Rule, Share};
use rlaas_proto::ratelimit::v1::grant::Kind;
use rlaas_proto::ratelimit::v1::{self as proto, GetConfigRequest, PartMatcher, RuleMode};
use serde_json::{Map, Value};

use rlaas_testkit::process::Rlaas;

/// Fields of a spec whose name in the message differs, with their names there.
const OTHER_NAMES: [(&str, &[&str]); 8] = [
    ("limit", &["max_requests"]),
    ("local-share", &["local_share_ppm"]),
    ("near-limit", &["near_limit_ppm"]),
    ("enforce", &["enforce_ppm"]),
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

#[tokio::test]
async fn rules_survive_a_round_trip_as_messages() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules.yaml");
    let built = spec(&file).build().expect("valid rules");
    let server = Rlaas::start_from(&file, &[]);
    let config = server.client().await.get_config(GetConfigRequest::default()).await;
    let config = config.expect("a response").into_inner();
    let read = config.rules.iter().filter(|rule| rule.name != Rule::DEFAULT);
    let read: Vec<Rule> =
        read.map(|rule| from_message(rule).build().expect("a valid rule")).collect();
    let expected: Vec<Rule> = built.iter().skip(1).cloned().collect();
    assert!(expected.len() >= 3);
    assert_eq!(read, expected);
}

#[test]
fn spec_and_message_have_the_same_fields() {
    let whole: RuleSpec = serde_saphyr::from_str(
        "{version: 1, name: a, endpoint: /a, match: {user-id: b}, key-by: c, algorithm: gcra, \
         limit: 1, window: 1s, burst: 1, mode: shadow, shadow: true, enforce: 25%, on-change: scale, local-share: 1, \
         on-store-failure: local, fail-open: true, breaker-opens-rule: true, near-limit: 0.8, overridable: true, \
         cost: 1, post-paid: true, max-debt: 1, reservable: true, hold: 1s, max-holds: 1, calendar: {unit: day}, \
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

/// Returns the spec of a rule in a message.
fn from_message(rule: &proto::Rule) -> RuleSpec {
    let algorithm = Algorithm::from_name(&rule.algorithm().as_str_name().to_lowercase());
    let window = rule.window.as_ref().expect("a window");
    let micros = u64::try_from(window.seconds).expect("seconds") * 1_000_000
        + u64::try_from(window.nanos / 1_000).expect("microseconds");
    let policy = match rule.on_store_failure() {
        proto::OnStoreFailure::Allow => StoreFailurePolicy::Allow,
        proto::OnStoreFailure::Deny => StoreFailurePolicy::Deny,
        proto::OnStoreFailure::Local => StoreFailurePolicy::Local,
        proto::OnStoreFailure::Error | proto::OnStoreFailure::Unspecified => {
            StoreFailurePolicy::Error
        }
    };
    let key_by =
        rule.key_by.iter().map(|part| part.strip_prefix("attributes.").unwrap_or(part).to_owned());
    RuleSpec {
        name: rule.name.clone().into(),
        matcher: matcher(&rule.matchers),
        key_by: key_by.collect::<Vec<_>>().into(),
        algorithm: algorithm.expect("an algorithm").into(),
        limit: u64::try_from(rule.max_requests).expect("a limit").into(),
        window: Micros::from_micros(micros).into(),
        burst: u64::try_from(rule.burst).expect("a burst").into(),
        shadow: (rule.mode() == RuleMode::Shadow).into(),
        local_share: Share::new(rule.local_share_ppm).map_or(Field::Unset, Field::Set),
        on_store_failure: policy.into(),
        breaker_opens_rule: rule.breaker_opens_rule.into(),
        near_limit: Share::new(rule.near_limit_ppm).map_or(Field::Unset, Field::Set),
        enforce: rule.enforce_ppm.and_then(EnforcedShare::new).map_or(Field::Unset, Field::Set),
        on_change: match rule.on_change() {
            proto::OnChange::Unspecified => Field::Unset,
            proto::OnChange::KeepUsed => Field::Set(OnChange::KeepUsed),
            proto::OnChange::KeepLeft => Field::Set(OnChange::KeepLeft),
            proto::OnChange::Scale => Field::Set(OnChange::Scale),
            proto::OnChange::Reset => Field::Set(OnChange::Reset),
        },
        overridable: rule.overridable.into(),
        overrides: rule.overrides.iter().map(exception).collect(),
        ..RuleSpec::default()
    }
}

fn exception(other: &proto::RuleOverride) -> OverrideSpec {
    let matcher = matcher(&other.matchers);
    let grant = other.grant.as_ref().expect("a grant");
    let spec = OverrideSpec { matcher, ..OverrideSpec::default() };
    match grant.kind.as_ref().expect("a kind") {
        Kind::Limit(units) => OverrideSpec {
            limit: u64::try_from(*units).expect("units").into(),
            burst: u64::try_from(grant.burst).expect("a burst").into(),
            ..spec
        },
        Kind::Unlimited(unlimited) => OverrideSpec { unlimited: (*unlimited).into(), ..spec },
        Kind::Banned(_) => OverrideSpec { limit: 0.into(), ..spec },
    }
}

fn matcher(matchers: &[PartMatcher]) -> MatcherSpec {
    let mut spec = MatcherSpec::default();
    for PartMatcher { part, any_of } in matchers {
        let texts = Field::Set(any_of.clone());
        match part.as_str() {
            "resource" => spec.resource = texts,
            "user_id" => spec.user_id = texts,
            attribute => {
                let name = attribute.strip_prefix("attributes.").expect("an attribute");
                spec.attributes.insert(name.to_owned(), texts);
            }
        }
    }
    spec
}
