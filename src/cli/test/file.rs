//! Test files: the rules that they name, and their cases.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::{Spanned, UserMessageFormatter};

use super::one_or::OneOr;
use super::request::{CheckFields, DescriptorsFields, GivenFields};
use super::rule_names::{RuleNames, RuleSources};
use super::step::{MAX_REQUESTS, PlacedProblem, StepReader, TestStep, for_each_request};
use super::value::StartTime;
use crate::config::{COMMAND_LINE, Config, Problem, Sources};

/// Most bytes of a test file.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// Problems of a file that are shown.
const MAX_PROBLEMS: usize = 100;

/// A valid test file.
#[derive(Debug)]
pub(super) struct TestFile {
    /// As it was named on the command line.
    pub(super) path: String,
    pub(super) sources: RuleSources,
    pub(super) config: Box<Config>,
    pub(super) cases: Vec<Spanned<TestCase>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFields {
    config: Option<OneOr<Vec<String>>>,
    envoy: Option<OneOr<Vec<String>>>,
    #[serde(default)]
    set: BTreeMap<String, String>,
    cases: Vec<Spanned<TestCase>>,
}

/// A named case. It begins with empty state.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestCase {
    pub(super) name: String,
    #[serde(default)]
    pub(super) start: StartTime,
    check: Option<CheckFields>,
    descriptors: Option<DescriptorsFields>,
    pub(super) steps: Vec<Spanned<TestStep>>,
    /// Number of steps that make requests.
    #[serde(skip)]
    pub(super) request_steps: usize,
}

impl TestFile {
    /// Reads a file and the rules that it names.
    ///
    /// # Errors
    ///
    /// All problems of all these files, one line each; if a file does not have the form of a test file,
    /// the first one.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let text = read_text(path).map_err(|reason| format!("{name}: {reason}\n"))?;
        let FileFields { config, envoy, set, mut cases } =
            serde_saphyr::from_str(&text).map_err(|error| {
                let error = error.without_snippet();
                format!("{name}: {}\n", error.render_with_formatter(&UserMessageFormatter))
            })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let paths = |paths: Option<OneOr<Vec<String>>>| -> Vec<PathBuf> {
            let paths = paths.map(OneOr::into_items).unwrap_or_default();
            paths.into_iter().map(|path| folder.join(path)).collect()
        };
        let (config, envoy) = (paths(config), paths(envoy));
        let sources = RuleSources { config, envoy, set: set.into_iter().collect() };
        let loaded = load(&sources, &name);
        let rules = RuleNames::new(loaded.as_ref().ok().map(|config| &config.rules));
        let mut problems = Vec::new();
        if sources.config.is_empty() && sources.envoy.is_empty() {
            problems
                .push(format!("{name}: config or envoy is missing: the files with the rules\n"));
        }
        if cases.is_empty() {
            problems.push(format!("{name}: cases: must have at least one case\n"));
        }
        let of_cases = check_cases(&mut cases, &rules);
        let more = of_cases.len().saturating_sub(MAX_PROBLEMS);
        problems.extend(of_cases.into_iter().take(MAX_PROBLEMS).map(|(place, problem)| {
            let (line, column) = (place.line(), place.column());
            format!("{name}:{line}:{column}: {problem}\n")
        }));
        if more > 0 {
            problems.push(format!("{name}: … and {more} more\n"));
        }
        match loaded {
            Ok(config) if problems.is_empty() => {
                Ok(Self { path: name, sources, config: Box::new(config), cases })
            }
            Ok(_) => Err(problems.concat()),
            Err(of_rules) => Err(problems.concat() + &of_rules),
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
        let line = |problem: &Problem| match &*problem.origin {
            COMMAND_LINE => format!("{test_file}: set: {}\n", problem.text()),
            _ => format!("{problem}\n"),
        };
        problems.0.iter().map(line).collect()
    })
}

/// Checks the cases, and reads their steps.
fn check_cases(cases: &mut [Spanned<TestCase>], rules: &RuleNames) -> Vec<PlacedProblem> {
    let (mut names, mut problems, mut requests) = (HashSet::new(), Vec::new(), 0);
    for (at, Spanned { value: case, referenced: place, .. }) in cases.iter_mut().enumerate() {
        let mut refuse = |problem| problems.push((*place, format!("cases[{at}].{problem}")));
        if !(1..=200).contains(&case.name.chars().count()) || case.name.contains(char::is_control) {
            refuse("name: must be 1 to 200 characters of one line");
        }
        if !names.insert(case.name.clone()) {
            refuse("name: another case has it");
        }
        if case.check.is_some() && case.descriptors.is_some() {
            refuse("descriptors: must not be given with check");
        }
        if case.steps.is_empty() {
            refuse("steps: must have at least one step");
        }
        let (check, descriptors) = (case.check.take(), case.descriptors.take());
        let mut reader = StepReader {
            case: GivenFields { check, descriptors },
            rules,
            problems: Vec::new(),
            request_steps: 0,
        };
        reader.read(&mut case.steps, &format!("cases[{at}]."));
        case.request_steps = reader.request_steps;
        let is_read = reader.problems.is_empty();
        problems.extend(reader.problems);
        if is_read
            && let Err((place, problem)) = for_each_request(&case.steps, &mut |_| requests += 1)
        {
            problems.push((place, format!("cases[{at}]: {problem}")));
        }
        if requests > MAX_REQUESTS {
            problems.push((
                *place,
                format!("cases[{at}]: more than {MAX_REQUESTS} requests of the file"),
            ));
            break;
        }
    }
    problems
}
