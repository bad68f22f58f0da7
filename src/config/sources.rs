//! The sources of the configuration, merged by figment: files in order < environment < command line.
//! The rules of files are joined to one list (`joined_rules.rs`).
//!
//! The keys of each source are first made canonical (`_` becomes `-`, and some keys have aliases), so
//! that one spelling overrides another. Messages use the original spelling.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use rlaas_auth::ApiKeyMode;
use serde_saphyr::UserMessageFormatter;

use super::envoy::EnvoyResource;
use super::joined_rules::{FileRule, JoinedRules};
use super::problem::{Notice, Problem, ProblemKind};
use super::ratelimit_environment::RatelimitEnvironment;
use super::rules::RULES;
use super::tree::{Nulls, Tree};
use super::yaml;
use crate::rules::spec::RuleField;

/// Prefix of the environment variables with settings.
const PREFIX: &str = "RLAAS_";
/// `RLAAS_TOKEN` and `RLAAS_API_KEY` are no settings: they are for the commands that call a server.
const CREDENTIALS: [&str; 2] = ["TOKEN", "API_KEY"];
/// Settings that may be any string, so brackets do not make them a list.
const FREE_TEXTS: [&str; 4] =
    ["store.redis.password", "store.redis.username", "store.redis.master-name", "telemetry.log"];
/// Origin of the values of the command line.
pub const COMMAND_LINE: &str = "command line";
/// The key below which figment holds all values, so that one lookup returns them all.
pub(super) const ROOT: &str = "root";

/// The sources of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// YAML files: later settings override earlier ones, and rules are joined.
    pub files: Vec<PathBuf>,
    /// Environment variables. Others than `REDIS_URL`, `RUST_LOG` and those that start with `RLAAS_` are
    /// ignored, unless `CONFIG_TYPE` is set: then those of envoyproxy/ratelimit count, too.
    pub environment: Vec<(String, String)>,
    /// Keys and values from the command line.
    pub arguments: Vec<(String, String)>,
    /// Rules that a management server has sent (`envoy.xds`).
    pub resources: Arc<[EnvoyResource]>,
    /// The mode of API keys in force; `None` before the start.
    pub api_keys: Option<ApiKeyMode>,
}

impl Sources {
    /// Returns sources with the environment of this process.
    pub fn with_environment(files: Vec<PathBuf>, arguments: Vec<(String, String)>) -> Self {
        // No setting of ours has a name or value that is not UTF-8.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let environment = std::env::vars_os().filter_map(text).collect();
        Self { files, environment, arguments, ..Self::default() }
    }

    /// Reads and merges all sources. Files with a project at the top are merged by themselves, those
    /// of each project together.
    pub(super) fn read(&self) -> (Tree, Vec<Tree>) {
        let mut layers = Layers::default();
        let mut projects: BTreeMap<String, Layers> = BTreeMap::new();
        let of_ratelimit = RatelimitEnvironment::detect(&self.environment);
        if let Some(environment) = &of_ratelimit {
            environment.add_to(&mut layers);
        }
        for file in &self.files {
            match SourceFile::read(file) {
                Ok(source) => match source.project() {
                    Some(project) => projects.entry(project).or_default().add_source(source),
                    None => layers.add_source(source),
                },
                Err(problem) => layers.problems.push(problem),
            }
        }
        for (name, value) in &self.environment {
            let origin = format!("environment variable {name}");
            match name.as_str() {
                "REDIS_URL" if of_ratelimit.is_none() => {
                    layers.add(origin.clone(), nest("store.backend", "redis".into()));
                    layers.add(origin, nest("store.redis.url", value.as_str().into()));
                }
                "RUST_LOG" if !value.is_empty() => {
                    layers.add(origin, nest("telemetry.log", value.as_str().into()));
                }
                _ => {}
            }
        }
        for (name, value) in &self.environment {
            if let Some(key) = key_of(name) {
                let origin = format!("environment variable {name}");
                layers.add_value(origin, &key, value);
            }
        }
        for (key, value) in &self.arguments {
            layers.add_value(COMMAND_LINE.to_owned(), key, value);
        }
        (layers.tree(), projects.into_values().map(Layers::tree).collect())
    }
}

/// Returns the tree of a text that is the only source.
pub(super) fn tree_of_text(origin: String, text: String) -> Tree {
    let mut layers = Layers::default();
    match SourceFile::parse(origin, None, text) {
        Ok(source) => layers.add_source(source),
        Err(problem) => layers.problems.push(problem),
    }
    layers.tree()
}

/// Returns the tree of a single file, in which `null` means unset; without a text it has no lines.
pub(super) fn tree_of(origin: String, text: String, dict: Dict) -> Tree {
    let mut layers = Layers::default();
    layers.texts.insert(origin.clone(), text);
    layers.add(origin, dict);
    layers.tree().with_nulls(Nulls::Unset)
}

/// Formats a parser's error without the snippet of the text, which may have a secret.
pub(super) fn reason(error: &serde_saphyr::Error) -> String {
    without_urls(&error.without_snippet().render_with_formatter(&UserMessageFormatter))
}

/// Returns the key that an environment variable sets, if it is a setting.
fn key_of(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(PREFIX)?;
    let ours = name.contains("__") || !(is_service_link(name) || CREDENTIALS.contains(&name));
    ours.then(|| name.to_ascii_lowercase().replace("__", ".").replace('_', "-"))
}

/// Returns the environment variable of a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "__").replace('-', "_").to_ascii_uppercase())
}

/// Returns `true` for variables that Kubernetes sets for services named `rlaas` or `rlaas-…`.
fn is_service_link(name: &str) -> bool {
    name.ends_with("SERVICE_HOST")
        || name.contains("SERVICE_PORT")
        || name.split('_').any(|word| word == "PORT")
}

/// Returns `true` for `[a, b]`, `{ a: b }` and a list with one item per line. Anything else is a plain
/// string, such as `007` or the address `[::1]:80`.
fn is_collection(key: &str, text: &str) -> bool {
    let text = text.trim();
    let between = |open, close| text.starts_with(open) && text.ends_with(close);
    let is_free_text = FREE_TEXTS.contains(&key.replace('_', "-").as_str());
    !is_free_text && (between('[', ']') || between('{', '}') || text.starts_with("- "))
}

/// Returns nested dictionaries for a key such as `a.b.c`.
pub(super) fn nest(key: &str, value: Value) -> Dict {
    match key.split_once('.') {
        Some((first, rest)) => Dict::from([(first.to_owned(), nest(rest, value).into())]),
        None => Dict::from([(key.to_owned(), value)]),
    }
}

/// A file in YAML.
struct SourceFile {
    origin: String,
    /// `None` for a text that is not in a file.
    file: Option<PathBuf>,
    text: String,
    dict: Dict,
}

impl SourceFile {
    fn read(file: &Path) -> Result<Self, Problem> {
        let text =
            std::fs::read_to_string(file).map_err(|error| Problem::unreadable(file, error))?;
        Self::parse(file.display().to_string(), Some(file), text)
    }

    fn parse(origin: String, file: Option<&Path>, text: String) -> Result<Self, Problem> {
        let file = file.map(Path::to_owned);
        match yaml::parse::<Option<Dict>>(&text) {
            Ok(dict) => Ok(Self { origin, file, text, dict: dict.unwrap_or_default() }),
            Err(error) => {
                let reason = tab_problem(&text, &error).unwrap_or_else(|| reason(&error));
                Err(Problem::new(origin, String::new(), ProblemKind::Source(reason)))
            }
        }
    }

    /// Returns the project at the top, readable or not; `None` if the file is one of the service.
    fn project(&self) -> Option<String> {
        match self.dict.get("project")? {
            Value::Empty(..) => None,
            Value::String(_, id) => Some(id.clone()).filter(|id| !id.is_empty()),
            unreadable => Some(format!("{unreadable:?}")),
        }
    }
}

/// Returns the first line that is indented by a tab, if that may be what an error is about.
fn tab_problem(text: &str, error: &serde_saphyr::Error) -> Option<String> {
    let has_tab = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    let index = text.lines().position(has_tab).filter(|_| reason(error).contains("tab"))?;
    Some(format!("line {} is indented by a tab: indent by spaces", index + 1))
}

#[derive(Default)]
pub(super) struct Layers {
    sources: Vec<Layer>,
    spellings: Spellings,
    texts: Texts,
    rules: JoinedRules,
    pub(super) problems: Vec<Problem>,
    pub(super) notices: Vec<Notice>,
}

/// The contents of files by origin.
pub(super) type Texts = BTreeMap<String, String>;

/// The original spelling of keys, by origin and canonical key.
pub(super) type Spellings = BTreeMap<(String, String), String>;

impl Layers {
    fn add_source(&mut self, source: SourceFile) {
        let SourceFile { origin, file, text, mut dict } = source;
        self.texts.insert(origin.clone(), text);
        if let Some(Value::Array(..) | Value::Empty(..)) = dict.get(RULES.key) {
            let rules = dict.remove(RULES.key).and_then(Value::into_array).unwrap_or_default();
            let rules = rules.into_iter().enumerate().map(|(index, value)| {
                let (origin, file) = (origin.clone(), file.clone());
                FileRule { origin, file, index, value }
            });
            self.problems.extend(self.rules.join(rules));
        }
        self.add_layer(origin, file, dict);
    }

    /// Adds a value of the environment or the command line: a string, or a list or section in YAML.
    fn add_value(&mut self, origin: String, key: &str, text: &str) {
        if !is_collection(key, text) {
            return self.add(origin, nest(key, text.into()));
        }
        match serde_saphyr::from_str::<Value>(text) {
            Ok(value) => self.add(origin, nest(key, value)),
            Err(error) => {
                let (key, reason) = (without_urls(key), reason(&error));
                let valid = format!("must be a list or section in YAML: {reason}");
                self.problems.push(Problem::invalid(origin, key, valid));
            }
        }
    }

    fn tree(mut self) -> Tree {
        let mut figment = Figment::new();
        for (place, rule) in std::mem::take(&mut self.rules.0).into_iter().enumerate() {
            let FileRule { origin, file, index, value } = rule;
            let (path, spelled) = (format!("rules[{place}]"), format!("rules[{index}]"));
            let rules = vec![self.canonical_item(&origin, &path, &spelled, value)];
            let dict = nest(RULES.key, rules.into());
            figment = figment.admerge(Layer { origin, file, dict });
        }
        // The list of the environment or the command line replaces that of files.
        let figment = self.sources.into_iter().fold(figment, Figment::merge);
        let tree = Tree::new(figment, self.spellings, self.texts, self.problems);
        tree.notices.borrow_mut().extend(self.notices);
        tree
    }

    pub(super) fn add(&mut self, origin: String, dict: Dict) {
        self.add_layer(origin, None, dict);
    }

    fn add_layer(&mut self, origin: String, file: Option<PathBuf>, dict: Dict) {
        let dict = self.canonical(&origin, "", "", dict);
        self.sources.push(Layer { origin, file, dict });
    }

    /// Returns `dict` with canonical keys. `path` is its canonical key, `spelled` the original one.
    fn canonical(&mut self, origin: &str, path: &str, spelled: &str, dict: Dict) -> Dict {
        let mut canonical = Dict::new();
        for (key, value) in dict {
            let name = canonical_name(path, &key);
            let (key_path, key_spelled) = (join(path, &name), join(spelled, &key));
            let place = (origin.to_owned(), key_path.clone());
            if let Some(other) = self.spellings.insert(place, key_spelled.clone())
                && canonical.contains_key(&name)
            {
                let kind = ProblemKind::Twice(other);
                self.problems.push(Problem::new(origin.to_owned(), key_spelled, kind));
                continue;
            }
            let value = self.canonical_value(origin, &key_path, &key_spelled, value);
            canonical.insert(name, value);
        }
        canonical
    }

    fn canonical_value(&mut self, origin: &str, path: &str, spelled: &str, value: Value) -> Value {
        match value {
            Value::Dict(tag, dict) => Value::Dict(tag, self.canonical(origin, path, spelled, dict)),
            Value::Array(tag, items) => {
                let items = items.into_iter().enumerate().map(|(index, item)| {
                    let (path, spelled) =
                        (format!("{path}[{index}]"), format!("{spelled}[{index}]"));
                    self.canonical_item(origin, &path, &spelled, item)
                });
                Value::Array(tag, items.collect())
            }
            value => value,
        }
    }

    fn canonical_item(&mut self, origin: &str, path: &str, spelled: &str, item: Value) -> Value {
        self.spellings.insert((origin.to_owned(), path.to_owned()), spelled.to_owned());
        self.canonical_value(origin, path, spelled, item)
    }
}

/// Returns the canonical name of a key.
fn canonical_name(path: &str, key: &str) -> String {
    if path.ends_with(".match.attributes") || is_metadata(path) {
        return key.to_owned();
    }
    field_of(path, key).map_or_else(|| key.replace('_', "-"), |field| field.key.to_owned())
}

/// Returns the field of a rule that has a name below a path.
pub(super) fn field_of(path: &str, name: &str) -> Option<&'static RuleField> {
    match path {
        "rate-limiter" => RuleField::of_default_rule().find(|field| field.is_named(name)),
        path if path.starts_with("rules[") => RuleField::find(name),
        _ => None,
    }
}

/// Returns `true` for maps in `metadata` of a descriptor: their keys are data.
fn is_metadata(path: &str) -> bool {
    let is_key = |part: &str| part == "metadata" || part.starts_with("metadata[");
    path.starts_with("descriptors[") && path.split('.').any(is_key)
}

/// Returns the path of a key in a section.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Masks URLs: they may have passwords.
pub(super) fn without_urls(text: &str) -> String {
    let mask = |word| if str::contains(word, "://") { "***" } else { word };
    text.split(' ').map(mask).collect::<Vec<_>>().join(" ")
}

/// One source, as a provider for figment.
struct Layer {
    origin: String,
    /// The file, if the source is one.
    file: Option<PathBuf>,
    dict: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        let metadata = Metadata::named(self.origin.clone());
        match &self.file {
            Some(file) => metadata.source(file.as_path()),
            None => metadata,
        }
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let root = Dict::from([(ROOT.to_owned(), self.dict.clone().into())]);
        Ok(Profile::Default.collect(root))
    }
}
