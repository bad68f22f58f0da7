//! Test files: the rules that they name, and their cases.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::fields::{Fields, FileProblems, FileValue};
use super::request::SharedRequest;
use super::rule_names::{RuleNames, RuleSources};
use super::scalar;
use super::step::{MAX_REQUESTS, StepContext, TestStep};
use super::yaml::YamlNode;
use crate::clock::Timestamp;
use crate::config::{Config, Problem, Sources};

/// Most bytes of a test file.
const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// A valid test file.
#[derive(Debug)]
pub(super) struct TestFile {
    /// As it was named on the command line.
    pub(super) path: String,
    pub(super) sources: RuleSources,
    pub(super) config: Box<Config>,
    pub(super) cases: Vec<TestCase>,
}

/// A named case. It begins with empty state.
#[derive(Debug)]
pub(super) struct TestCase {
    pub(super) name: String,
    pub(super) line: u64,
    pub(super) start: Timestamp,
    pub(super) steps: Vec<TestStep>,
}

impl TestFile {
    /// Reads a file and the rules that it names.
    ///
    /// # Errors
    ///
    /// All problems of all these files, one line each.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let text = read_text(path).map_err(|reason| format!("{name}: {reason}\n"))?;
        let root = YamlNode::parse(&text).map_err(|reason| format!("{name}: {reason}\n"))?;
        let problems = FileProblems::new(&name);
        let root = FileValue::root(&root, &problems);
        let Some(mut fields) = root.fields() else { return Err(problems.to_string()) };
        let folder = path.parent().unwrap_or(Path::new(""));
        let sources = read_sources(&mut fields, folder);
        let loaded = load(&sources, &name);
        let rules = RuleNames::new(loaded.as_ref().ok().map(|config| &config.rules));
        let cases = fields.require("cases").map(|list| read_cases(&list, &rules));
        fields.close();
        match (loaded, cases) {
            (Ok(config), Some(cases)) if problems.count() == 0 => {
                Ok(Self { path: name, sources, config: Box::new(config), cases })
            }
            (loaded, _) => {
                let of_rules = loaded.err().unwrap_or_default();
                Err(format!("{problems}{of_rules}"))
            }
        }
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| format!("can't be read: {error}"))?;
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| format!("can't be read: {error}"))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("must have at most {MAX_BYTES} bytes"));
    }
    Ok(text)
}

fn read_sources(fields: &mut Fields<'_>, folder: &Path) -> RuleSources {
    let paths = |value: Option<FileValue<'_>>| -> Vec<PathBuf> {
        let values = value.iter().flat_map(FileValue::one_or_items);
        values.filter_map(|value| value.read(path)).map(|path| folder.join(path)).collect()
    };
    let (config, envoy) = (paths(fields.take("config")), paths(fields.take("envoy")));
    if config.is_empty() && envoy.is_empty() {
        fields.at.refuse("config or envoy is missing: the files with the rules");
    }
    let set = fields.take("set").and_then(|value| value.entries()).unwrap_or_default();
    let set = set.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.text()?)));
    RuleSources { config, envoy, set: set.collect() }
}

fn path(text: &str) -> Result<PathBuf, &'static str> {
    if text.is_empty() || text.contains('\0') {
        return Err("must be the path of a file");
    }
    Ok(PathBuf::from(text))
}

/// Loads the rules, without the environment: that of this shell is not the server's.
fn load(sources: &RuleSources, test_file: &str) -> Result<Config, String> {
    let mut arguments = sources.set.clone();
    if !sources.envoy.is_empty() {
        // A list in YAML, as `--set` takes it.
        let quoted =
            |path: &PathBuf| format!("'{}'", path.display().to_string().replace('\'', "''"));
        let paths: Vec<String> = sources.envoy.iter().map(quoted).collect();
        arguments.push(("envoy.files".to_owned(), format!("[{}]", paths.join(", "))));
    }
    let files = sources.config.clone();
    let loaded = Config::load(&Sources { files, arguments, ..Sources::default() });
    loaded.map_err(|problems| {
        let named = |problem: &Problem| match problem.to_string().strip_prefix("command line: ") {
            Some(problem) => format!("{test_file}: set: {problem}\n"),
            None => format!("{problem}\n"),
        };
        problems.0.iter().map(named).collect()
    })
}

fn read_cases(list: &FileValue<'_>, rules: &RuleNames) -> Vec<TestCase> {
    let Some(items) = list.items() else { return Vec::new() };
    if items.is_empty() {
        list.refuse("must have at least one case");
    }
    let (mut names, mut requests) = (HashSet::new(), 0_u64);
    let mut cases = Vec::with_capacity(items.len());
    for item in &items {
        let before = requests;
        let Some(case) = read_case(item, rules, &mut requests) else { continue };
        if !names.insert(case.name.clone()) {
            item.refuse(format!("another case has the name {:?}", case.name));
        }
        if requests > MAX_REQUESTS && before <= MAX_REQUESTS {
            item.refuse(format!("must not make more than {MAX_REQUESTS} requests of the file"));
        }
        cases.push(case);
    }
    cases
}

fn read_case(value: &FileValue<'_>, rules: &RuleNames, requests: &mut u64) -> Option<TestCase> {
    let mut fields = value.fields()?;
    let name = fields.require("name").and_then(|value| value.read(case_name));
    let start = fields.take("start").map_or(Some(Timestamp::EPOCH), |of| of.read(scalar::start));
    let (check, descriptors) = (fields.take("check"), fields.take("descriptors"));
    let shared = SharedRequest::read(check.as_ref(), descriptors.as_ref());
    let context = StepContext { shared, rules };
    let steps = fields.require("steps").map(|list| context.read_steps(&list));
    fields.close();
    let (steps, schedule) = steps?;
    *requests = requests.saturating_add(schedule.requests);
    Some(TestCase { name: name?, line: value.node.line, start: start?, steps })
}

fn case_name(text: &str) -> Result<String, &'static str> {
    const MAX: usize = 200;
    let is_valid = (1..=MAX).contains(&text.chars().count()) && !text.contains(char::is_control);
    is_valid.then(|| text.to_owned()).ok_or("must be 1 to 200 characters of one line")
}
