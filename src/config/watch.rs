//! Detects changes of configuration files by polling.
//!
//! Symlinks are followed. A rewritten file, a file moved into place and a swapped symlink (as in a
//! Kubernetes `ConfigMap`) all have another inode, size or time. A check takes microseconds, so no
//! notification by the system (inotify) is needed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files of a configuration and their state at the last check.
#[derive(Debug)]
pub struct Watch {
    files: Vec<PathBuf>,
    snapshots: Vec<Option<Fingerprint>>,
    /// The number of files that are watched for good: the first ones.
    permanent: usize,
    /// Whether a file had changed at the last check, and may still be written to.
    was_changing: bool,
}

/// Device, inode, size, and change time in seconds and nanoseconds. A changed file differs in at least
/// one of them.
type Fingerprint = (u64, u64, u64, i64, i64);

/// A file that the configuration names, and its fingerprint before it was read.
#[derive(Clone, Debug)]
pub struct FileSnapshot {
    file: PathBuf,
    fingerprint: Option<Fingerprint>,
}

impl FileSnapshot {
    pub(super) fn take(file: &Path) -> Self {
        Self { file: file.to_owned(), fingerprint: fingerprint(file) }
    }
}

impl Watch {
    /// Starts to watch files.
    pub fn new(files: Vec<PathBuf>) -> Self {
        let permanent = files.len();
        Self { snapshots: fingerprints(&files), files, permanent, was_changing: false }
    }

    /// Watches these files as well, instead of those of an earlier call.
    pub fn follow(&mut self, named: Vec<FileSnapshot>) {
        self.files.truncate(self.permanent);
        self.snapshots.truncate(self.permanent);
        for FileSnapshot { file, fingerprint } in named {
            self.files.push(file);
            self.snapshots.push(fingerprint);
        }
    }

    /// Returns `true` if no file has changed since it was read.
    pub fn is_still(&self) -> bool {
        !self.was_changing && fingerprints(&self.files) == self.snapshots
    }

    /// Returns `true` if a file changed before the last check and none has changed since. A file that is
    /// being written can be valid but incomplete.
    pub fn has_settled(&mut self) -> bool {
        let now = fingerprints(&self.files);
        let changes = now != self.snapshots;
        self.snapshots = now;
        std::mem::replace(&mut self.was_changing, changes) && !changes
    }
}

fn fingerprints(files: &[PathBuf]) -> Vec<Option<Fingerprint>> {
    files.iter().map(|file| fingerprint(file)).collect()
}

fn fingerprint(file: &Path) -> Option<Fingerprint> {
    let found = std::fs::metadata(file).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn detects_writes_moves_and_swapped_symlinks() {
        let dir = std::env::temp_dir().join(format!("rlaas-watch-{}", std::process::id()));
        fs::create_dir_all(dir.join("one")).expect("a directory");
        fs::create_dir_all(dir.join("two")).expect("a directory");
        for (of, text) in [("one", "1"), ("two", "2")] {
            fs::write(dir.join(of).join("rlaas.yaml"), text).expect("a file");
        }
        // As in Kubernetes: rlaas.yaml → data/rlaas.yaml, data → one.
        symlink("one", dir.join("data")).expect("a symlink");
        symlink("data/rlaas.yaml", dir.join("rlaas.yaml")).expect("a symlink");
        let mut watch = Watch::new(vec![dir.join("rlaas.yaml"), dir.join("missing.yaml")]);
        assert!(!watch.has_settled());
        symlink("two", dir.join("data-new")).expect("a symlink");
        fs::rename(dir.join("data-new"), dir.join("data")).expect("a swap");
        assert!(!watch.has_settled(), "it has just changed");
        assert!(watch.has_settled());
        assert!(!watch.has_settled(), "told once");
        fs::write(dir.join("two/rlaas.yaml"), "").expect("a file");
        assert!(!watch.has_settled());
        fs::write(dir.join("two/rlaas.yaml"), "longer").expect("a file");
        assert!(!watch.has_settled(), "it goes on changing");
        assert!(watch.has_settled());
        fs::write(dir.join("missing.yaml"), "").expect("a file");
        assert_eq!([watch.has_settled(), watch.has_settled()], [false, true]);
        fs::remove_dir_all(&dir).expect("a removed directory");
        assert_eq!([watch.has_settled(), watch.has_settled()], [false, true]);
    }
}
