//! A file that is open only while it is read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// A file that is opened for each piece that is read of it, so that more files can be merged than a
/// process may have open. A piece is as long as the reader's buffer, so this costs little.
#[derive(Debug)]
pub(super) struct ReopenedFile {
    path: PathBuf,
    position: u64,
    identity: Option<FileIdentity>,
}

/// What stays the same while a file is renamed or appended to.
type FileIdentity = (u64, u64);

impl ReopenedFile {
    /// Creates a reader of the file from its beginning.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, position: 0, identity: None }
    }
}

impl Read for ReopenedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = File::open(&self.path)?;
        let identity = identity(&file)?;
        if *self.identity.get_or_insert(identity) != identity {
            return Err(io::Error::other("the file was replaced while it was read"));
        }
        file.seek(SeekFrom::Start(self.position))?;
        let read = file.read(buffer)?;
        self.position += read as u64;
        Ok(read)
    }
}

/// Returns the device and the number of the file on it.
#[cfg(unix)]
fn identity(file: &File) -> io::Result<FileIdentity> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(_: &File) -> io::Result<FileIdentity> {
    Ok((0, 0))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pieces_follow_each_other_and_another_file_is_an_error() {
        let path = std::env::temp_dir().join(format!("rlaas-reopened-{}", std::process::id()));
        fs::write(&path, "abcdef").expect("a file");
        let mut file = ReopenedFile::new(path.clone());
        let mut piece = [0; 4];
        assert_eq!(file.read(&mut piece).expect("a piece"), 4);
        assert_eq!(&piece, b"abcd");
        assert_eq!(file.read(&mut piece).expect("a piece"), 2);
        assert_eq!(file.read(&mut piece).expect("the end"), 0);
        let other = path.with_extension("other");
        fs::write(&other, "other text").expect("a file");
        fs::rename(&other, &path).expect("a file");
        assert!(file.read(&mut piece).is_err());
        fs::remove_file(&path).expect("a file");
    }
}
