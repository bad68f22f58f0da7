//! Where a client is built: a copy of its folder below `target`, kept from run to run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlaas_testkit::tools::{fetch, finish, skipped, workshop};

/// What building leaves behind in a folder: nothing to copy.
const LEFT_BEHIND: [&str; 4] = [".venv", "bin", "node_modules", "target"];

/// The copy of a client's folder, beside one of the protos.
#[derive(Debug)]
pub(super) struct Workbench {
    language: &'static str,
    root: PathBuf,
    /// Everything that was copied: what is built of it is good for as long as it is the same.
    sources: String,
}

impl Workbench {
    /// Copies what has changed.
    pub(super) fn new(language: &'static str) -> Self {
        let root = workshop("examples").join(language);
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut sources = String::new();
        for part in ["proto".to_owned(), format!("examples/{language}")] {
            copy(&project.join(&part), &root.join(&part), &mut sources);
        }
        Self { language, root, sources }
    }

    /// A command in the client's folder, with its caches below `target`.
    pub(super) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder());
        command.envs([("GOFLAGS", "-modcacherw"), ("GOTOOLCHAIN", "local")]);
        command.env("GOMODCACHE", self.cache()).env("GOCACHE", self.cache().join("build"));
        command.env("npm_config_cache", self.cache());
        command.env("PYTHONPATH", self.packages()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Fetches and builds, unless that was done with the same sources. Without the tools or the
    /// package index it says what is skipped.
    ///
    /// # Panics
    ///
    /// If it can't be built.
    pub(super) fn is_ready(&self, to_fetch: &[&[&str]], to_build: &[&[&str]]) -> bool {
        let stamp = self.root.join("built");
        if fs::read_to_string(&stamp).is_ok_and(|built| built == self.sources) {
            return true;
        }
        for step in to_fetch {
            if let Err(why) = fetch(&self.command(step[0], &step[1..])) {
                assert!(!why.contains("COMPILATION ERROR"), "{why}");
                skipped(&format!("examples/{}", self.language), &why);
                return false;
            }
        }
        for step in to_build {
            let built = finish(&mut self.command(step[0], &step[1..]));
            built.unwrap_or_else(|why| panic!("{}: {why}", self.language));
        }
        fs::write(stamp, &self.sources).expect("a file below target");
        true
    }

    /// What is fetched and can be fetched again.
    pub(super) fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Where Python's packages go.
    pub(super) fn packages(&self) -> PathBuf {
        self.root.join("packages")
    }

    fn folder(&self) -> PathBuf {
        self.root.join("examples").join(self.language)
    }
}

/// Copies the files of a folder, and tells them in `sources`.
fn copy(from: &Path, to: &Path, sources: &mut String) {
    fs::create_dir_all(to).expect("a folder below target");
    let entries = fs::read_dir(from).expect("a folder of the project");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let copied = to.join(path.file_name().expect("a name"));
        if LEFT_BEHIND.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            copy(&path, &copied, sources);
        } else if let Ok(text) = fs::read_to_string(&path) {
            sources.push_str(&text);
            fs::write(copied, text).expect("a file below target");
        }
    }
}
