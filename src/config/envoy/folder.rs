//! Finds the rule files in a folder, as envoyproxy/ratelimit does: every file below it.
//!
//! Hidden files and folders are skipped. In a mounted Kubernetes volume this skips `..data`, whose
//! files are also visible as symlinks beside it. Symlinks to folders are not followed, so there are
//! no cycles; a notice reports them.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use crate::config::problem::{Notice, Problem};
use crate::config::section::Section;

/// Maximum depth of folders.
const MAX_LEVELS: usize = 16;
/// Maximum number of files and folders.
const MAX_ENTRIES: usize = 10_000;

/// The files and folders below a folder.
#[derive(Default)]
pub(super) struct FolderContents {
    /// Rule files, folder by folder, sorted by name.
    pub(super) files: Vec<PathBuf>,
    /// Folders, watched because they change when a file is added or removed.
    pub(super) folders: Vec<PathBuf>,
}

impl FolderContents {
    /// A single file that the settings name.
    pub(super) fn from_file(file: PathBuf) -> Self {
        Self { files: vec![file], folders: Vec::new() }
    }
}

/// Finds all files below `folder`. Adds problems and notices of skipped entries to `root`.
pub(super) fn find(folder: &Path, root: &Section<'_>) -> FolderContents {
    let found = FolderContents::default();
    let mut search = FolderWalk { found, entries_left: MAX_ENTRIES, is_complete: true, root };
    search.folder(folder, MAX_LEVELS);
    if search.found.files.is_empty() && search.is_complete {
        search.fail(folder, "has no rule files");
    }
    search.found
}

struct FolderWalk<'a> {
    found: FolderContents,
    entries_left: usize,
    /// No entry failed so far.
    is_complete: bool,
    root: &'a Section<'a>,
}

impl FolderWalk<'_> {
    fn folder(&mut self, folder: &Path, levels_left: usize) {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.fail(folder, &error.to_string()),
        };
        entries.sort_by_key(DirEntry::file_name);
        let is_hidden = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
        for entry in entries.iter().filter(|entry| !is_hidden(entry)) {
            if self.entries_left == 0 {
                return;
            }
            self.entries_left -= 1;
            if self.entries_left == 0 {
                return self.fail(
                    folder,
                    &format!("must have fewer than {MAX_ENTRIES} files and folders"),
                );
            }
            self.entry(&entry.path(), levels_left);
        }
    }

    fn entry(&mut self, path: &Path, levels_left: usize) {
        match fs::metadata(path) {
            Err(error) => self.fail(path, &error.to_string()),
            Ok(found) if found.is_file() => self.found.files.push(path.to_owned()),
            Ok(found) if !found.is_dir() => {
                self.skip(path, "not read: neither a file nor a folder");
            }
            Ok(_) if path.is_symlink() => {
                self.skip(path, "not read: a symlink to a folder");
            }
            Ok(_) if levels_left == 0 => {
                self.fail(path, &format!("must be at most {MAX_LEVELS} levels deep"));
            }
            Ok(_) => {
                self.found.folders.push(path.to_owned());
                self.folder(path, levels_left - 1);
            }
        }
    }

    fn skip(&self, path: &Path, text: &'static str) {
        let origin = path.display().to_string();
        self.root.add_notice(Notice { origin, key: String::new(), others: 0, text: text.into() });
    }

    fn fail(&mut self, path: &Path, reason: &str) {
        self.is_complete = false;
        self.root.add_problem(Problem::unreadable(path, reason));
    }
}
