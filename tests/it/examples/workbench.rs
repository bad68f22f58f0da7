//! Folders in which example clients are built: copies below `target`, which later runs reuse.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlaas_testkit::tools::{cache_dir, fetch, finish, skipped};

/// Build outputs and downloads, which are not copied.
const BUILD_OUTPUTS: [&str; 8] =
    [".cache", ".venv", "__pycache__", "bin", "build", "dist", "node_modules", "target"];

/// A copy of a folder of the project, and of the folder of protos.
#[derive(Debug)]
pub(super) struct Workbench {
    folder: &'static str,
    root: PathBuf,
    /// The text of all copied files: as long as it is the same, the build is up to date.
    sources: String,
}

impl Workbench {
    /// Copies the sources of a folder.
    pub(super) fn new(folder: &'static str) -> Self {
        let root = cache_dir("examples").join(folder);
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut sources = String::new();
        for part in ["proto", folder] {
            copy(&project.join(part), &root.join(part), &mut sources);
        }
        Self { folder, root, sources }
    }

    /// Returns a command that runs in the folder of the client, with caches below `target`.
    pub(super) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.root.join(self.folder));
        command.envs([("GOFLAGS", "-modcacherw"), ("GOTOOLCHAIN", "local")]);
        command.env("GOMODCACHE", self.cache()).env("GOCACHE", self.cache().join("build"));
        command.env("npm_config_cache", self.cache());
        command.env("PYTHONPATH", self.packages()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Fetches and builds the client unless the build is up to date. Returns `false` and reports
    /// the skipped test if the tools or the package index are missing.
    ///
    /// # Panics
    ///
    /// If the build fails.
    pub(super) fn is_ready(&self, to_fetch: &[&[&str]], to_build: &[&[&str]]) -> bool {
        let stamp = self.root.join("built");
        if fs::read_to_string(&stamp).is_ok_and(|built| built == self.sources) {
            return true;
        }
        for step in to_fetch {
            if let Err(why) = fetch(&self.command(step[0], &step[1..])) {
                assert!(!why.contains("COMPILATION ERROR"), "{why}");
                skipped(self.folder, &why);
                return false;
            }
        }
        for step in to_build {
            let built = finish(&mut self.command(step[0], &step[1..]));
            built.unwrap_or_else(|why| panic!("{}: {why}", self.folder));
        }
        fs::write(stamp, &self.sources).expect("a file below target");
        true
    }

    /// Returns the folder of downloads, which may be deleted.
    pub(super) fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Returns the folder of Python packages.
    pub(super) fn packages(&self) -> PathBuf {
        self.root.join("packages")
    }
}

/// Copies the files of a folder, and appends their texts to `sources`.
pub(crate) fn copy(from: &Path, to: &Path, sources: &mut String) {
    fs::create_dir_all(to).expect("a folder below target");
    let entries = fs::read_dir(from).expect("a folder of the project");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let copied = to.join(path.file_name().expect("a name"));
        if BUILD_OUTPUTS.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            copy(&path, &copied, sources);
        } else if let Ok(text) = fs::read_to_string(&path) {
            sources.push_str(&text);
            fs::copy(path, copied).expect("a file below target");
        }
    }
}
