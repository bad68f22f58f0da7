//! Counters on disk: the states of keys that changed in each interval, each once.
//!
//! A file begins with a dump: the states of all keys, in parts between those that changed
//! meanwhile, and a record that it is complete. From then on the files before it are not needed.
//! So the files never have more than the store had in memory, plus what changed since. A write
//! that fails loses the changes of its interval; once writing succeeds, a dump makes up for them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::JournalError;
use super::folder::{self, Folder};
use super::frame::FileKind;
use super::log_files::LogFiles;
use super::recovery::{Recovered, recover};
use super::status::Status;
use crate::algorithm::State;
use crate::clock::{HighWaterMarks, Micros, Timestamp};
use crate::limit_history::LimitHistory;
use serde::{Deserialize, Serialize};

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
    /// The limits by which a key was counted, if its rule keeps them.
    Limits(&'a str, Cow<'a, LimitHistory>),
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

    /// Adds the limits by which a key was counted.
    pub(crate) fn push_limits(&mut self, key: &str, history: &LimitHistory) {
        self.push(&Record::Limits(key, Cow::Borrowed(history)));
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
    /// They expire by themselves, so a dump does not replace them.
    pub(crate) limits: HashMap<Box<str>, LimitHistory>,
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
            Record::Limits(key, history) => {
                self.restored.limits.insert(key.into(), history.into_owned());
            }
        }
    }

    fn end_file(&mut self) {
        self.restored.states.extend(self.of_file.drain());
    }
}

/// The files of counters.
#[derive(Debug)]
pub(crate) struct CountersLog {
    files: LogFiles,
    /// Length of the newest file when its dump was complete.
    dumped_len: u64,
    /// `true` if the files lack a change.
    is_incomplete: bool,
    /// Records of the next frame.
    buffer: Vec<u8>,
}

impl CountersLog {
    pub(super) fn open(
        folder: &Arc<Folder>,
        status: &Arc<Status>,
    ) -> Result<(Self, RestoredCounters), JournalError> {
        let mut replay = Replay::default();
        let recovered = recover(folder, status, FileKind::Counters, |payload| {
            let Some(payload) = payload else { return replay.end_file() };
            decode(payload).for_each(|record| replay.apply(record));
        })?;
        let Recovered { files, is_damaged: is_incomplete } = recovered;
        let log = Self { files, dumped_len: 0, is_incomplete, buffer: Vec::new() };
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
        if !self.buffer.is_empty() && !self.files.is_failing {
            self.files.last.push(&self.buffer);
            let written = self.files.last.write_if_long();
            self.report(&written);
        }
        self.buffer.clear();
    }

    /// Writes what was added, and waits until it is on disk.
    pub(crate) fn flush(&mut self) {
        let was_failing = self.files.is_failing;
        self.end_frame();
        let written = match (was_failing, self.files.is_failing) {
            (true, _) => self.files.repair(),
            (false, true) => return,
            (false, false) if !self.files.last.is_changed() => return,
            (false, false) => self.files.last.flush(),
        };
        self.report(&written);
    }

    /// Reports the bytes on disk.
    pub(crate) fn report_len(&self) {
        self.files.report_len();
    }

    /// Returns `true` if all states should be dumped.
    pub(crate) fn needs_dump(&self) -> bool {
        let since_dump = self.files.log_len() - self.dumped_len;
        !self.files.is_failing
            && (self.is_incomplete || since_dump >= self.dumped_len.max(MIN_DUMPED_LEN))
    }

    /// Begins a file. All states must follow, then [`CountersLog::finish_dump`].
    pub(crate) fn begin_dump(&mut self) {
        self.is_incomplete = false;
        let begun = self.files.begin_file();
        self.report(&begun);
    }

    /// Ends a dump, after which the files before are removed. Does nothing if a write has failed
    /// meanwhile.
    pub(crate) fn finish_dump(&mut self) {
        if self.files.is_failing || self.is_incomplete {
            return;
        }
        let mut records = Records::default();
        records.push(&Record::DumpComplete);
        self.append(&mut records);
        self.flush();
        if self.files.is_failing {
            return;
        }
        self.files.remove_sealed();
        self.dumped_len = self.files.log_len();
    }

    /// Records that a change is missing, so that a dump is needed.
    pub(crate) fn mark_incomplete(&mut self) {
        self.is_incomplete = true;
    }

    fn report(&mut self, written: &Result<(), JournalError>) {
        self.is_incomplete |= written.is_err();
        self.files.report(written);
    }
}

/// Returns the records of a frame. The checksum is right, so a record that is not readable is of a
/// later version: it is the last.
fn decode(mut payload: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let (record, rest) = postcard::take_from_bytes(payload).ok()?;
        payload = rest;
        Some(record)
    })
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
        let history = LimitHistory::new(&limit);
        encoded.push(encode(&Record::Limits("a:b", Cow::Owned(history))));
        assert_eq!(encoded, PINNED);
    }

    #[test]
    fn states_of_algorithms_are_valid_and_others_are_told_apart() {
        let most = Limit::new(1_000_000_000, Micros::from_secs(366 * 24 * 60 * 60));
        let least = Limit::new(1, Micros::from_millis(1));
        for limit in [most, least].map(|limit| limit.expect("a limit")) {
            for algorithm in Algorithm::ALL {
                let mut state = State::None;
                for (millis, units) in [(1, 1), (2, 1_000_000), (1, u32::MAX), (9, 1)] {
                    let now = Timestamp::from_millis(1_700_000_100_000 + millis);
                    algorithm.take(&mut state, &limit, now, Cost::new(units));
                    algorithm.report(&mut state, &limit, now, Cost::new(units));
                    assert!(state.is_valid(), "{algorithm:?}: {state:?}");
                }
            }
        }
        for damaged in [
            &b"\x06\x09\x01\x00\x05\x00"[..],
            b"\x06\x09\x01\x05\x05\x05",
            b"\x02\x03\x00\x00\x09\x02\x09\x01\x09",
            b"\x02\x01\x09\x01\x09",
        ] {
            let state: State = postcard::from_bytes(damaged).expect("a state");
            assert!(!state.is_valid(), "{state:?}");
        }
    }

    const PINNED: [&str; 10] = [
        "0003613a620197aac10d02f890a68dc2c48203",
        "0003613a62020200009bde9bffbc3102f89ef4a9c2c48203",
        "0003613a6203f882d8f0c1c482030200b8a3b1aac2c48203",
        "0003613a620400f882d8f0c1c48203b8f3cdfcc1c4820306",
        "0003613a620500f882d8f0c1c48203b8f3cdfcc1c4820302",
        "0003613a6206f8ee90fcc1c48203f882d8f0c1c48203808ece1c0500",
        "000000",
        "01808ece1cf882d8f0c1c48203",
        "02",
        "0303613a6200010505808ece1c000000",
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
