//! External tools that may be missing, such as those of other languages.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::target_tmp;

/// Maximum number of lines of a reason.
const LINES: usize = 5;

/// Timeout of a download in seconds: an index may not respond at all.
const TIMEOUT: &str = "300";

/// Reports a skipped test on the terminal, because the harness hides the output of passed tests. The
/// line is also appended to the file that `SKIPPED_LIST` names; `tests/run.sh` prints that file at
/// its end.
///
/// # Panics
///
/// If `NO_SKIP` is set in the environment.
pub fn skipped(what: &str, why: &str) {
    assert!(std::env::var_os("NO_SKIP").is_none(), "NO_SKIP is set, but {what} can't run: {why}");
    left_out(what, why);
}

/// Reports a test that is run only if it is asked for, as [`skipped`] does, whatever `NO_SKIP` says.
pub fn left_out(what: &str, why: &str) {
    let why: Vec<&str> = why.lines().take(LINES).collect();
    let line = format!("SKIPPED {what}: {}\n", why.join("\n  "));
    let _ignored = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os("SKIPPED_LIST") {
        let list = OpenOptions::new().append(true).create(true).open(list);
        let written = list.and_then(|mut list| list.write_all(line.as_bytes()));
        written.expect("a list that can be written");
    }
}

/// Returns a directory for the downloads and builds of a tool, kept between runs below `target`.
pub fn cache_dir(name: &str) -> PathBuf {
    let path = target_tmp().join(name);
    std::fs::create_dir_all(&path).expect("a folder below target");
    path
}

/// Returns a directory below `target` with the files of a directory, and with the packages that its
/// `package-lock.json` names. Later runs reuse the packages.
///
/// # Errors
///
/// As [`finish`], if npm is missing or its registry is unreachable.
///
/// # Panics
///
/// If a file can't be copied.
pub fn npm_packages(name: &str, sources: &Path) -> Result<PathBuf, String> {
    let folder = cache_dir(name);
    let mut packages = String::new();
    let files = fs::read_dir(sources).expect("a folder of the project");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        let text = fs::read_to_string(file).expect("a file of the project");
        fs::write(folder.join(file.file_name().expect("a name")), &text)
            .expect("a file below target");
        if file.extension().is_some_and(|extension| extension == "json") {
            packages += &text;
        }
    }
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == packages) {
        return Ok(folder);
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--fetch-retries=1"]).current_dir(&folder);
    npm.env("npm_config_cache", folder.join("cache"));
    fetch(&npm)?;
    fs::write(stamp, packages).expect("a file below target");
    Ok(folder)
}

/// Runs a command that uses a package index, which may be unreachable.
///
/// # Errors
///
/// As [`finish`].
pub fn fetch(command: &Command) -> Result<String, String> {
    let mut bounded = Command::new("timeout");
    bounded.arg(TIMEOUT).arg(command.get_program()).args(command.get_args());
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    bounded.envs(variables);
    if let Some(dir) = command.get_current_dir() {
        bounded.current_dir(dir);
    }
    finish(&mut bounded)
}

/// Runs a command and returns its standard output.
///
/// # Errors
///
/// The command, its status and its output, if it fails.
pub fn finish(command: &mut Command) -> Result<String, String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let name = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    let out = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(out.into_owned());
    }
    let said = format!("{out}{}", String::from_utf8_lossy(&output.stderr));
    Err(format!("{name}: {}\n{}", output.status, said.trim_end()))
}
