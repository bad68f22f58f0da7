//! The file of a recording: blocks, rotation, errors.
//!
//! The file is written by this process alone. When it is full, or a process starts, it becomes
//! `FILE.1`, what was `FILE.1` becomes `FILE.2`, and so on. While it can't be written, requests are
//! counted instead; the count is the first thing that is written when there is space again.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rlaas_core::clock::{Micros, Timestamp};
use rlaas_core::rules::HashedParts;
use rlaas_simulation::recording::{
    Discarded, Header, RecordedLine, RecordingForm, Writer, hash_values,
};
use thiserror::Error;
use tracing::{error, info};

use super::batch::RecordBatch;
use super::{RecordMetrics, RecordSettings, Rotation};

/// Time between two attempts to write.
const RETRY_INTERVAL: Micros = Micros::from_secs(1);

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
    settings: RecordSettings,
    /// What the header says, except for the time.
    header: Header,
    hashed: Option<HashedParts>,
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
        settings: RecordSettings,
        header: Header,
        metrics: RecordMetrics,
        now: Timestamp,
    ) -> Result<Self, RecordFileError> {
        let hashed = settings.hashed_parts();
        let (writer, lost, failing_until) = (None, 0, None);
        let mut recording = Self { settings, header, hashed, metrics, writer, lost, failing_until };
        check(&recording.settings.path)?;
        if let Err(error) = recording.begin(now) {
            if !is_full(&error) {
                let path = recording.settings.path;
                return Err(RecordFileError::Io { path, source: error });
            }
            recording.fail(&error, now);
        }
        Ok(recording)
    }

    /// Writes requests, or counts them.
    pub(super) fn write(&mut self, batch: RecordBatch, now: Timestamp) {
        for line in batch {
            let writer = self.writer.as_mut().filter(|_| self.failing_until.is_none());
            let Some(writer) = writer else {
                self.drop_requests(1);
                continue;
            };
            let line = match (line, &self.hashed) {
                (RecordedLine::Request { at, request, was_refused }, Some(parts)) => {
                    let request = hash_values(request, parts);
                    RecordedLine::Request { at, request, was_refused }
                }
                (line, _) => line,
            };
            if let Err(error) = writer.write(line) {
                self.fail(&error, now);
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

    fn write_all(&mut self, now: Timestamp) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return self.begin(now) };
        if self.lost > 0 {
            // A block that can't be written has it, and gives it back.
            writer.write(RecordedLine::Lost(std::mem::take(&mut self.lost)))?;
        }
        writer.flush()?;
        if writer.len() >= self.settings.rotation.size {
            self.writer = None;
            self.begin(now)?;
        }
        Ok(())
    }

    /// Rotates the files, and begins one.
    fn begin(&mut self, now: Timestamp) -> io::Result<()> {
        let RecordSettings { path, rotation, .. } = &self.settings;
        rotate(path, *rotation)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        // Where files can't be locked, nobody is warned.
        let _locked = file.try_lock();
        let is_zstd = path.extension().is_some_and(|extension| extension == "zst");
        let form = if is_zstd { RecordingForm::Zstd } else { RecordingForm::Plain };
        let begun = Writer::new(file, form, &Header { created: now, ..self.header.clone() });
        self.writer = Some(begun.inspect_err(|_| {
            // An empty file is not to push out one that has something.
            let _still_there = fs::remove_file(path);
        })?);
        Ok(())
    }

    /// Counts the requests of the block that could not be written, and cuts the file to the blocks
    /// before.
    fn fail(&mut self, error: &io::Error, now: Timestamp) {
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

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
