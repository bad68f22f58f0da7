//! Rules files that commands read, and the project that they are for.

use std::io::{self, Read};
use std::path::Path;

use rlaas_cli::text::project_id;

use crate::config::{Problem, Problems, RulesFile};

/// In place of a file: standard input.
const STDIN: &str = "-";

/// A file that was read, and is valid.
#[derive(Clone, Debug)]
pub(super) struct ProjectFile {
    /// Name in messages.
    pub(super) origin: String,
    /// Id of the project, as the protocol has it.
    pub(super) project: String,
    pub(super) content: RulesFile,
}

/// Reads a file, whose rules are for the project of the command or for the one that it names.
///
/// # Errors
///
/// All [`Problems`] of the file.
pub(super) fn read(file: &Path, project: Option<&str>) -> Result<ProjectFile, Problems> {
    let (origin, text) = text(file).map_err(|error| {
        Problems(vec![Problem::Unreadable { file: file.to_owned(), reason: error.to_string() }])
    })?;
    let content = RulesFile::parse(origin.clone(), text)?;
    let refuse = |key: &str, valid: &str| {
        let (origin, key, valid) = (origin.clone(), key.to_owned(), valid.to_owned());
        Problems(vec![Problem::Invalid { origin, key, valid, line: None, found: None }])
    };
    let named = content.project.as_ref().map(|id| id.as_str().to_owned());
    let given = project.map(project_id);
    if let (Some(named), Some(given)) = (&named, &given)
        && named != given
    {
        return Err(refuse("project", "must be the project of the option --project"));
    }
    let project = named.or(given).unwrap_or_default();
    if project.is_empty() && content.unmatched.is_some() {
        let valid = "must be in the configuration of the server for requests without an API key";
        return Err(refuse("unmatched", valid));
    }
    Ok(ProjectFile { origin, project, content })
}

/// Reads a file that has one rule. Its name must be that of the command, if it has one.
///
/// # Errors
///
/// All [`Problems`] of the file.
pub(super) fn read_one(
    file: &Path,
    project: Option<&str>,
    name: Option<&str>,
) -> Result<ProjectFile, Problems> {
    let source = read(file, project)?;
    let refuse = |key: &str, valid: &str| {
        let (origin, key, valid) = (source.origin.clone(), key.to_owned(), valid.to_owned());
        Err(Problems(vec![Problem::Invalid { origin, key, valid, line: None, found: None }]))
    };
    let [rule] = &source.content.rules[..] else {
        return refuse("rules", "must have one rule: `rlaas rule apply` writes many");
    };
    if name.is_some_and(|name| rule.name.value().is_none_or(|of_file| of_file != name)) {
        return refuse("rules[0].name", "must be the name of the command");
    }
    if source.content.unmatched.is_some() {
        return refuse("unmatched", "must not be given with one rule: `rlaas rule apply` sets it");
    }
    Ok(source)
}

/// Returns the name of a file in messages, and its text.
fn text(file: &Path) -> io::Result<(String, String)> {
    if file != Path::new(STDIN) {
        return Ok((file.display().to_string(), std::fs::read_to_string(file)?));
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text)?;
    Ok(("standard input".to_owned(), text))
}
