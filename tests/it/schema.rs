//! The JSON Schemas of files: they take every example, and refuse what a schema can know.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rlaas_testkit::TempDir;
use rlaas_testkit::tools::{cache_dir, fetch, finish, skipped};
use serde_json::Value;

const VALIDATOR: &str = "jsonschema==4.26.0";
/// Prints the problems of each document of a list.
const SCRIPT: &str = "\
import json, sys, jsonschema
schema, documents = (json.load(open(file)) for file in sys.argv[1:])
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
problems = lambda document: [e.json_path + ': ' + e.message for e in validator.iter_errors(document)]
print(json.dumps([problems(document) for document in documents]))
";
const CONFIGURATIONS: [&str; 11] = [
    "config/compose/rlaas.yaml",
    "config/container.yaml",
    "config/empty.yaml",
    "config/envoy/rlaas.yaml",
    "config/kubernetes/shared-tls/tls.yaml",
    "config/kubernetes/shared/rlaas.yaml",
    "config/kubernetes/shared/rules.yaml",
    "config/kubernetes/sidecar/rlaas.yaml",
    "config/rlaas.yaml",
    "config/rules.yaml",
    "crates/testkit/free-port.yaml",
];
const RULES: [&str; 2] = ["examples/gateway/load.yaml", "examples/gateway/rules.yaml"];

#[test]
fn schemas_take_every_example() {
    let examples = |files: &[&str]| -> Vec<Value> {
        let text = |file: &&str| fs::read_to_string(project(file)).expect("an example");
        files.iter().map(text).map(|text| document(&text)).collect()
    };
    let spelled = "project: shop\nunmatched: deny\nrules:\n- {name: a, strategy: token_bucket, \
                   limit_count: '5', window_seconds: 60, fail_open: 'true', on_change: keep_used, \
                   key_by: ip, match: {user_id: [a], attributes: {x.y: b}}, enforce: 5%, \
                   near_limit: '0.8', mode: false, overrides: [{match: {user-id: b}, max_requests: 7}]}\n";
    let mut rules = examples(&RULES);
    let all = [examples(&CONFIGURATIONS), rules.clone()].concat();
    rules.push(document(spelled));
    for (of, documents) in [("config", all), ("rules", rules)] {
        let Some(problems) = problems(of, &documents) else { return };
        assert!(problems.iter().all(Vec::is_empty), "{of}: {problems:#?}");
    }
}

#[test]
fn schema_refuses_what_it_can_know() {
    let with = |more: &str| format!("rules: [{{name: a, limit: 5, window: 1s{more}}}]");
    let cases = [
        "rules: 5".to_owned(),
        "rules: [5]".to_owned(),
        "rules: [{name: a, limit: -1, window: 1}]".to_owned(),
        "rules: [{name: a, limit: many, window: 1}]".to_owned(),
        "rules: [{name: 5, limit: 1, window: 1}]".to_owned(),
        "rules: [{name: a, limit: 1, window: [1s]}]".to_owned(),
        "rules: [{name: a, limit: 1, window: soon}]".to_owned(),
        "rules: [{name: a, limit: 1, window: -1}]".to_owned(),
        "rules: [null]".to_owned(),
        with(", windw: 1"),
        with(", strategy: magic"),
        with(", match: {user_id: 007}"),
        with(", match: {resourc: a}"),
        with(", match: {resource: {a: 1}}"),
        with(", match: {attributes: {plan: 7}}"),
        with(", on-store-failure: maybe"),
        with(", shadow: 2"),
        with(", burst: 0"),
        with(", version: 2"),
        with(", max-holds: 10001"),
        with(", near-limit: 2"),
        with(", enforce: half"),
        with(", enforce: 900%"),
        with(", calendar: {unit: decade}"),
        with(", overrides: [{match: {user: a}, limit: 1}]"),
        "rate-limiter: {use-algo: guess}".to_owned(),
        "rate-limiter: {mode: shadow}".to_owned(),
        "server: {listn: 127.0.0.1:1}".to_owned(),
        "store: {backend: file}".to_owned(),
        "deny-cache: {enabled: maybe}".to_owned(),
        "deny-cache: {max-keys: 0}".to_owned(),
        "unmatched: refuse".to_owned(),
        "rulez: []".to_owned(),
    ];
    let documents: Vec<Value> = cases.iter().map(|text| document(text)).collect();
    let Some(problems) = problems("config", &documents) else { return };
    for (text, problems) in cases.iter().zip(problems) {
        assert!(!problems.is_empty(), "{text} is taken");
    }
}

/// Returns the problems of documents, or reports that the test is skipped.
fn problems(of: &str, documents: &[Value]) -> Option<Vec<Vec<String>>> {
    let packages = match validator() {
        Ok(packages) => packages,
        Err(why) => {
            skipped("the schemas of files", why);
            return None;
        }
    };
    let dir = TempDir::new();
    let documents = dir.write("documents.json", &Value::from(documents).to_string());
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT]).arg(project(&format!("docs/reference/{of}.schema.json")));
    let printed = finish(command.arg(documents).env("PYTHONPATH", packages)).expect("a schema");
    Some(serde_json::from_str(&printed).expect("JSON"))
}

/// Returns the folder of the validator, which is installed once.
fn validator() -> Result<&'static Path, &'static str> {
    static PACKAGES: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        let packages = cache_dir("jsonschema").join("packages");
        if !packages.join("jsonschema").exists() {
            let mut install = Command::new("python3");
            install.args(["-m", "pip", "install", "-q", "--retries", "1", VALIDATOR, "--target"]);
            fetch(install.arg(&packages))?;
        }
        Ok(packages)
    });
    PACKAGES.as_deref().map_err(String::as_str)
}

fn document(yaml: &str) -> Value {
    serde_saphyr::from_str::<Option<Value>>(yaml).expect("YAML").unwrap_or_default()
}

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
