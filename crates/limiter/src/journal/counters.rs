//! Counters on disk: the states of keys that changed in each interval, each once.
//!
//! A file begins with a dump: the states of all keys, in parts between those that changed
//! meanwhile, and a record that it is complete. From then on the files before it are not needed.
//! So the files never have more than the store had in memory, plus what changed since. A write
//! that fails loses the changes of its interval; once writing succeeds, a dump makes up for them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::{error, info, warn};

use super::JournalError;
use super::folder::{self, FileName, Folder};
use super::frame::FileKind;
use super::log_file::LogFile;
use super::recovery::{Recovered, recover};
use super::status::Status;
use crate::algorithm::State;
use crate::clock::{HighWaterMarks, Micros, Timestamp};

/// Length of records from which on they are written as one frame. The state of a log may have
/// several hundred kilobytes.
const FRAME_LEN: usize = 64 << 10;
/// Bytes since the last dump from which on another one is made, however small it was.
const MIN_DUMPED_LEN: u64 = 16 << 20;

/// A record. Its encoding by postcard must not change: the tests pin it.
#[derive(Debug, Serialize, Deserialize)]
enum Record<'a> {
    /// The state of a key; [`State::None`] if it has none any more.
    State(&'a str, Cow<'a, State>),
    /// The time of the latest decision on limits with this window.
    Mark(Micros, Timestamp),
    /// All keys that are not in this file up to here have no state.
    DumpComplete,
}

/// Encoded records. Made while a lock is held, and written without it.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Records {
    /// Adds the state of a key.
    pub(crate) fn push_state(&mut self, key: &str, state: &State) {
        self.push(&Record::State(key, Cow::Borrowed(state)));
    }

    /// Adds the time of the latest decision on limits with this window.
    pub(crate) fn push_mark(&mut self, window: Micros, time: Timestamp) {
        self.push(&Record::Mark(window, time));
    }

    fn push(&mut self, record: &Record<'_>) {
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(record, bytes).expect("memory can be written");
        self.ends.push(self.bytes.len());
    }
}

/// Counters that were restored.
#[derive(Debug, Default)]
pub(crate) struct RestoredCounters {
    pub(crate) states: HashMap<Box<str>, State>,
    pub(crate) marks: HighWaterMarks,
}

/// Counters of one file.
#[derive(Debug, Default)]
struct Replay {
    restored: RestoredCounters,
    /// States of the file that is read, which replace all others if its dump is complete.
    of_file: HashMap<Box<str>, State>,
}

impl Replay {
    fn apply(&mut self, record: Record<'_>) {
        match record {
            Record::State(key, state) => _ = self.of_file.insert(key.into(), state.into_owned()),
            Record::Mark(window, time) => self.restored.marks.set(window, time),
            Record::DumpComplete => self.restored.states.clear(),
        }
    }

    fn end_file(&mut self) {
        self.restored.states.extend(self.of_file.drain());
    }
}

/// The files of counters.
#[derive(Debug)]
pub(crate) struct CountersLog {
    folder: Arc<Folder>,
    status: Arc<Status>,
    file: LogFile,
    /// Number of the newest file, which may be one that could not be created.
    number: u64,
    sealed: Vec<FileName>,
    sealed_len: u64,
    /// Length of the newest file when its dump was complete.
    dumped_len: u64,
    is_failing: bool,
    /// `true` if the files lack a change.
    is_incomplete: bool,
    buffer: Vec<u8>,
}

impl CountersLog {
    pub(super) fn open(
        folder: Arc<Folder>,
        status: Arc<Status>,
    ) -> Result<(Self, RestoredCounters), JournalError> {
        let mut replay = Replay::default();
        let recovered = recover(&folder, FileKind::Counters, |payload| {
            let Some(mut payload) = payload else { return replay.end_file() };
            while !payload.is_empty() {
                // The checksum is right, so a record that is not readable is of a later version.
                let Ok((record, rest)) = postcard::take_from_bytes(payload) else { break };
                replay.apply(record);
                payload = rest;
            }
        })?;
        let Recovered { file, sealed, sealed_len, is_damaged, .. } = recovered;
        let log = Self {
            folder,
            status,
            number: file.number(),
            file,
            sealed,
            sealed_len,
            dumped_len: 0,
            is_failing: false,
            is_incomplete: is_damaged,
            buffer: Vec::new(),
        };
        log.report_len();
        Ok((log, replay.restored))
    }

    /// Adds records, and empties them. [`CountersLog::flush`] makes them durable.
    pub(crate) fn append(&mut self, records: &mut Records) {
        let mut start = 0;
        for end in records.ends.drain(..) {
            let record = &records.bytes[start..end];
            start = end;
            if self.buffer.len() + record.len() > FRAME_LEN {
                self.end_frame();
            }
            self.buffer.extend_from_slice(record);
        }
        records.bytes.clear();
    }

    fn end_frame(&mut self) {
        // After a failure nothing is written before the next flush, which repairs the files.
        if !self.buffer.is_empty() && !self.is_failing {
            self.file.push(&self.buffer);
            let written = self.file.write_if_long();
            self.report_failure(&written);
        }
        self.buffer.clear();
    }

    /// Writes what was added, and waits until it is on disk.
    pub(crate) fn flush(&mut self) {
        let was_failing = self.is_failing;
        self.end_frame();
        if self.is_failing && !was_failing {
            return;
        }
        if !self.is_failing && !self.file.is_changed() {
            return;
        }
        let written = if self.is_failing { self.repair() } else { self.file.flush() };
        self.report(&written);
        self.report_len();
    }

    /// Returns `true` if all states should be dumped.
    pub(crate) fn needs_dump(&self) -> bool {
        let since_dump = self.sealed_len + self.file.len() - self.dumped_len;
        !self.is_failing
            && (self.is_incomplete || since_dump >= self.dumped_len.max(MIN_DUMPED_LEN))
    }

    /// Begins a file. All states must follow, then [`CountersLog::finish_dump`].
    pub(crate) fn begin_dump(&mut self) {
        self.number += 1;
        match LogFile::create(&self.folder, FileKind::Counters, self.number) {
            Ok(next) => self.seal(next),
            Err(error) => return self.report(&Err(error)),
        }
        self.is_incomplete = false;
    }

    /// Ends a dump, after which the files before are removed. Does nothing if a write has failed
    /// meanwhile.
    pub(crate) fn finish_dump(&mut self) {
        if self.is_failing || self.is_incomplete {
            return;
        }
        let mut records = Records::default();
        records.push(&Record::DumpComplete);
        self.append(&mut records);
        self.flush();
        if self.is_failing {
            return;
        }
        for name in self.sealed.drain(..) {
            if let Err(error) = folder::remove(&self.folder.file(FileKind::Counters, name)) {
                warn!(%error, "old journal file not removed");
            }
        }
        self.sealed_len = 0;
        self.dumped_len = self.file.len();
        self.report_len();
    }

    /// Records that a change is missing, so that a dump is needed.
    pub(crate) fn mark_incomplete(&mut self) {
        self.is_incomplete = true;
    }

    /// After a failure: cuts off what was not completely written, and goes on in a new file.
    fn repair(&mut self) -> Result<(), JournalError> {
        self.file.cut()?;
        self.number += 1;
        let next = LogFile::create_with_space(&self.folder, FileKind::Counters, self.number)?;
        self.seal(next);
        Ok(())
    }

    fn seal(&mut self, next: LogFile) {
        let sealed = std::mem::replace(&mut self.file, next);
        self.sealed_len += sealed.len();
        self.sealed.push(sealed.name());
    }

    fn report_failure(&mut self, written: &Result<(), JournalError>) {
        if written.is_err() {
            self.report(written);
        }
    }

    fn report(&mut self, written: &Result<(), JournalError>) {
        let is_failing = written.is_err();
        if is_failing {
            self.is_incomplete = true;
        }
        if is_failing == self.is_failing {
            return;
        }
        self.is_failing = is_failing;
        self.status.set_failing(FileKind::Counters, is_failing);
        match written {
            Ok(()) => info!("journal of counters is written again"),
            Err(error) => error!(%error, "journal write failed: a restart would lose counters"),
        }
    }

    fn report_len(&self) {
        self.status.set_len(FileKind::Counters, self.sealed_len + self.file.len());
    }
}

/// Removes the files of counters: while they are not kept they become stale.
pub(super) fn remove(folder: &Folder) -> Result<(), JournalError> {
    for name in folder.files(FileKind::Counters)? {
        folder::remove(&folder.file(FileKind::Counters, name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Cost, Limit};

    /// The encoding of one state of each algorithm, and of the other records. Files of this
    /// version must stay readable.
    #[test]
    fn the_encoding_of_records_does_not_change() {
        let now = Timestamp::from_millis(1_700_000_100_123);
        let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
        let encode = |record: &Record<'_>| {
            let bytes = postcard::to_extend(record, Vec::new()).expect("memory can be written");
            let read: Record<'_> = postcard::from_bytes(&bytes).expect("the same record");
            assert_eq!(format!("{read:?}"), format!("{record:?}"));
            bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        let mut encoded = Vec::new();
        for algorithm in Algorithm::ALL {
            let mut state = State::None;
            algorithm.take(&mut state, &limit, now, Cost::new(2));
            encoded.push(encode(&Record::State("a:b", Cow::Owned(state))));
        }
        encoded.push(encode(&Record::State("", Cow::Owned(State::None))));
        encoded.push(encode(&Record::Mark(Micros::from_secs(60), now)));
        encoded.push(encode(&Record::DumpComplete));
        assert_eq!(encoded, PINNED);
    }

    const PINNED: [&str; 9] = [
        "0003613a620197aac10d02f890a68dc2c48203",
        "0003613a62020200009bde9bffbc3102f89ef4a9c2c48203",
        "0003613a6203f882d8f0c1c482030200b8a3b1aac2c48203",
        "0003613a620400f882d8f0c1c48203b8f3cdfcc1c4820306",
        "0003613a620500f882d8f0c1c48203b8f3cdfcc1c4820302",
        "0003613a6206f8ee90fcc1c48203f882d8f0c1c48203808ece1c0500",
        "000000",
        "01808ece1cf882d8f0c1c48203",
        "02",
    ];

    #[test]
    fn a_complete_dump_replaces_what_was_before_it_and_not_what_came_after() {
        let mut replay = Replay::default();
        let gcra = |units| {
            let mut state = State::None;
            let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
            let now = Timestamp::from_millis(1_700_000_100_000);
            Algorithm::Gcra.take(&mut state, &limit, now, Cost::new(units));
            state
        };
        replay.apply(Record::State("reset", Cow::Owned(gcra(1))));
        replay.apply(Record::State("kept", Cow::Owned(gcra(1))));
        replay.end_file();
        replay.apply(Record::State("kept", Cow::Owned(gcra(2))));
        // Without the end of the dump the file before counts.
        replay.end_file();
        assert_eq!(replay.restored.states.len(), 2);
        assert_eq!(replay.restored.states["kept"], gcra(2));
        replay.apply(Record::State("kept", Cow::Owned(gcra(3))));
        replay.apply(Record::DumpComplete);
        replay.apply(Record::State("new", Cow::Owned(gcra(1))));
        replay.end_file();
        assert_eq!(replay.restored.states.len(), 2);
        assert_eq!(replay.restored.states["kept"], gcra(3));
        assert_eq!(replay.restored.states["new"], gcra(1));
    }
}
