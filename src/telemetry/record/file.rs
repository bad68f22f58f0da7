//! The file of a recording: blocks, rotation, errors.
//!
//! The file is written by this process alone. When it is full, or a process starts, it becomes
//! `FILE.1`, what was `FILE.1` becomes `FILE.2`, and so on. While it can't be written, requests are
//! counted instead; the count is the first thing that is written when there is space again.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rlaas_simulation::recording::{
    Discarded, EncodedRequest, Header, RecordingError, Writer, hash_values,
};
use thiserror::Error;
use tracing::{error, info};

use super::{RecordMetrics, Rotation};
use crate::clock::{Micros, Timestamp};
use crate::rules::HashedParts;

/// Time between two attempts to write.
const RETRY_INTERVAL: Micros = Micros::from_secs(1);

/// Settings of the file.
#[derive(Clone, Debug)]
pub(super) struct FileSettings {
    /// Its path.
    pub(super) path: PathBuf,
    /// What its header says, except for the time.
    pub(super) header: Header,
    /// Parts whose values are hashed.
    pub(super) hashed: Option<HashedParts>,
    /// When it begins afresh.
    pub(super) rotation: Rotation,
}

/// Reason why a recording can't be started.
#[derive(Debug, Error)]
pub enum RecordFileError {
    /// It can't be opened, or what has its name not be renamed.
    #[error("can't open {}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Something else has its name.
    #[error("{} must be a file or absent", .0.display())]
    NotAFile(PathBuf),
    /// Another process writes it.
    #[error("{} is written by another process", .0.display())]
    Locked(PathBuf),
}

/// Writes a recording.
#[derive(Debug)]
pub(super) struct RecordFile {
    settings: FileSettings,
    metrics: RecordMetrics,
    /// `None` while there is no file that can be written.
    writer: Option<Writer<File>>,
    /// Requests that are not in the recording, which it does not say yet.
    lost: u64,
    /// Time of the next attempt, while the file can't be written.
    failing_until: Option<Timestamp>,
}

impl RecordFile {
    /// Begins a file. One that exists is rotated.
    pub(super) fn open(
        settings: FileSettings,
        metrics: RecordMetrics,
        now: Timestamp,
    ) -> Result<Self, RecordFileError> {
        let mut recording = Self { settings, metrics, writer: None, lost: 0, failing_until: None };
        check(&recording.settings.path)?;
        if let Err(error) = recording.begin(now) {
            if !is_full(&error) {
                let path = recording.settings.path;
                let source = match error {
                    RecordingError::Io(source) => source,
                    other => io::Error::other(other),
                };
                return Err(RecordFileError::Io { path, source });
            }
            recording.fail(&error, now);
        }
        Ok(recording)
    }

    /// Writes requests, or counts them.
    pub(super) fn write(&mut self, mut requests: &[EncodedRequest<'_>]) {
        while let Some(first) = requests.first() {
            let writer = self.writer.as_mut().filter(|_| self.failing_until.is_none());
            let Some(writer) = writer else {
                self.drop_requests(requests.len() as u64);
                return;
            };
            match writer.write_encoded(&mut requests) {
                Ok(()) => {}
                Err(RecordingError::TooLarge) => self.drop_requests(1),
                Err(error) => self.fail(&error, first.at),
            }
        }
    }

    /// Adds requests that are not in the recording, and are counted in the metrics already.
    pub(super) fn add_lost(&mut self, requests: u64) {
        self.lost += requests;
    }

    /// Writes the block that is not full yet. Rotates the file if it is full, and tries again to
    /// write one that could not be written.
    pub(super) fn flush(&mut self, now: Timestamp) {
        if self.failing_until.is_some_and(|until| now < until && until.since(now) <= RETRY_INTERVAL)
        {
            return;
        }
        if let Err(error) = self.write_all(now) {
            self.fail(&error, now);
        } else if self.failing_until.take().is_some() {
            self.metrics.failing.set(0);
            info!(path = %self.settings.path.display(), "recording can be written again");
        }
    }

    /// Ends the recording.
    pub(super) fn finish(mut self) {
        if self.failing_until.is_none()
            && let Some(writer) = self.writer.take()
            && let Err(error) = writer.finish()
        {
            error!(%error, "recording can't be ended");
        }
    }

    fn write_all(&mut self, now: Timestamp) -> Result<(), RecordingError> {
        let Some(writer) = &mut self.writer else { return self.begin(now) };
        writer.write_lost(self.lost)?;
        // A block that can't be written has it, and gives it back.
        self.lost = 0;
        writer.flush()?;
        if writer.len() >= self.settings.rotation.size
            && let Some(writer) = self.writer.take()
        {
            // Without its end the file is readable too.
            let ended = writer.finish();
            self.begin(now)?;
            ended?;
        }
        Ok(())
    }

    /// Rotates the files, and begins one.
    fn begin(&mut self, now: Timestamp) -> Result<(), RecordingError> {
        let FileSettings { path, header, hashed, rotation } = &self.settings;
        rotate(path, *rotation)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        // Where files can't be locked, nobody is warned.
        let _locked = file.try_lock();
        let begun = Writer::new(file, &Header { created: now, ..header.clone() });
        let writer = begun.inspect_err(|_| {
            // An empty file is not to push out one that has something.
            let _still_there = fs::remove_file(path);
        })?;
        let hashed = hashed.clone();
        self.writer = Some(match hashed {
            Some(parts) => {
                writer.with_rewrite(Box::new(move |request| hash_values(request, &parts)))
            }
            None => writer,
        });
        Ok(())
    }

    /// Counts the requests of the block that could not be written, and cuts the file to the blocks
    /// before.
    fn fail(&mut self, error: &RecordingError, now: Timestamp) {
        if let Some(mut writer) = self.writer.take() {
            let Discarded { requests, lost } = writer.discard();
            self.drop_requests(requests);
            self.lost += lost;
            let len = writer.len();
            let file = writer.output();
            let cut = file.set_len(len).and_then(|()| file.seek(SeekFrom::Start(len)));
            // Otherwise the next attempt begins a new file.
            self.writer = cut.is_ok().then_some(writer);
        }
        if self.failing_until.replace(now + RETRY_INTERVAL).is_none() {
            self.metrics.failing.set(1);
            let path = self.settings.path.display();
            error!(%path, %error, "recording can't be written: requests are dropped");
        }
    }

    fn drop_requests(&mut self, requests: u64) {
        self.lost += requests;
        self.metrics.dropped.inc_by(requests);
    }
}

/// Checks that nothing but a file that nobody writes has this name.
fn check(path: &Path) -> Result<(), RecordFileError> {
    let failed = |source| RecordFileError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.is_file() => {
            return Err(RecordFileError::NotAFile(path.to_owned()));
        }
        Ok(_) => {}
    }
    match File::open(path).map_err(failed)?.try_lock() {
        Err(TryLockError::WouldBlock) => Err(RecordFileError::Locked(path.to_owned())),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Gives the file the first number, that of the first number the second one, and so on.
fn rotate(path: &Path, rotation: Rotation) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let exists = |path: &Path| fs::symlink_metadata(path).is_ok();
    if !exists(path) {
        return Ok(());
    }
    // Those after the first number that is free keep theirs.
    let free = (1..=rotation.keep).find(|number| !exists(&numbered(*number)));
    for number in (1..free.unwrap_or(rotation.keep)).rev() {
        fs::rename(numbered(number), numbered(number + 1))?;
    }
    fs::rename(path, numbered(1))
}

fn is_full(error: &RecordingError) -> bool {
    const FULL: [io::ErrorKind; 3] =
        [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
    matches!(error, RecordingError::Io(error) if FULL.contains(&error.kind()))
}
