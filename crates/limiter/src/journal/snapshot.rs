//! Snapshots of the memory store's states: one file that is written whole, again and again.
//!
//! It has frames as the journal's files, and a frame has parts: the length of the rest in 4 bytes,
//! the kind in 1, and the content. Parts of an unknown kind are skipped. What belongs to a key is in
//! one frame. The last frame says that the file is complete: one that is not, or that has a damaged
//! bit, is not used at all.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};
use tracing::error;

use super::JournalError;
use super::change::take_bytes;
use super::folder::{Folder, WholeFile};
use super::frame::FileKind;
use super::reader::scan_file;
use crate::algorithm::State;
use crate::clock::{Micros, Timestamp};
use crate::limit_history::LimitHistory;
use crate::reservation::{Holds, RememberedSettlement};

const FILE: &str = "snapshot.states";
/// Extension of a file that was not used because it is damaged.
const DAMAGED: &str = "damaged";
/// Length of a block from which on it takes no further key. A single key may have a megabyte.
const BLOCK_LEN: usize = 64 << 10;
/// Bytes of the disk that a snapshot leaves free for the journal, and bytes after which it looks.
const RESERVED_SPACE: u64 = 4 << 20;
const LEN_PER_CHECK: u64 = 1 << 20;

/// Settings of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    /// The folder; it may be that of a journal. Created, with the mode 0700, if it does not exist.
    pub path: PathBuf,
    /// Time from the start of a snapshot to the next one, which waits until the first is written.
    pub interval: Duration,
}

/// A part of a snapshot. Its encoding by postcard, which begins with the kind, must not change: the
/// tests pin it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Part<'a> {
    /// The state of a key.
    State(&'a str, Cow<'a, State>),
    /// The limits by which a key was counted, if its rule keeps them.
    Limits(&'a str, Cow<'a, LimitHistory>),
    /// The time of the latest decision on limits with this window.
    Mark(Micros, Timestamp),
    /// The snapshot is complete.
    End,
    /// The holds of a key.
    Holds(&'a str, Cow<'a, Holds>),
    /// The settlement of the reservation with this number, without its project. Read, not written.
    Settlement(u128, Cow<'a, RememberedSettlement>),
    /// The settlement of a reservation: the encoded id of its project, and its number.
    SettlementOf(&'a str, u128, Cow<'a, RememberedSettlement>),
    /// The encoded id of a project, and the time until which its settlements should have been remembered
    /// that were evicted because the table was full.
    EvictedSettlements(&'a str, Timestamp),
}

/// Encoded parts of one frame. Filled while a lock is held, and written without it.
#[derive(Debug, Default)]
pub(crate) struct Block(Vec<u8>);

impl Block {
    pub(crate) fn push(&mut self, part: &Part<'_>) {
        let start = self.0.len();
        let mut bytes = std::mem::take(&mut self.0);
        bytes.extend_from_slice(&[0; 4]);
        self.0 = postcard::to_extend(part, bytes).expect("memory can be written");
        // A state has at most a megabyte.
        let len = u32::try_from(self.0.len() - start - 4).unwrap_or(u32::MAX);
        self.0[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Returns `true` if the next key belongs in another block.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= BLOCK_LEN
    }
}

/// The file of the snapshots, in a folder that is locked against other processes.
#[derive(Debug)]
pub(crate) struct SnapshotFile {
    folder: Folder,
    path: PathBuf,
}

impl SnapshotFile {
    pub(crate) fn open(path: &Path) -> Result<Self, JournalError> {
        let folder = Folder::open(path, FileKind::Snapshot)?;
        let path = folder.path().join(FILE);
        Ok(Self { folder, path })
    }

    /// Passes the parts of the snapshot to `receive`, if there is one that is not damaged; `None` is
    /// a part of another version. A damaged one is kept under another name.
    pub(crate) fn restore(
        &self,
        mut receive: impl FnMut(Option<Part<'_>>),
    ) -> Result<(), JournalError> {
        if !self.path.exists() {
            return Ok(());
        }
        let mut end = Block::default();
        end.push(&Part::End);
        let mut is_complete = false;
        let scan =
            |receive: &mut dyn FnMut(&[u8])| scan_file(&self.path, FileKind::Snapshot, receive);
        let checked = scan(&mut |payload| is_complete = payload == end.0)?;
        if !is_complete || checked.damaged + checked.torn() > 0 {
            let kept = self.path.with_extension(DAMAGED);
            error!(
                file = %self.path.display(), kept = %kept.display(),
                "snapshot damaged: counters begin anew"
            );
            return self.folder.rename(&self.path, &kept);
        }
        scan(&mut |mut payload| {
            while let Some(part) = take_bytes(&mut payload) {
                receive(postcard::from_bytes(part).ok());
            }
        })?;
        Ok(())
    }

    /// Begins a snapshot, which replaces the one before when it is complete.
    pub(crate) fn begin(&self) -> Result<SnapshotWriter<'_>, JournalError> {
        let file = WholeFile::create(&self.path, FileKind::Snapshot)?;
        let (block, next_check) = (Block::default(), 0);
        Ok(SnapshotWriter { folder: &self.folder, file, block, next_check })
    }
}

/// A snapshot that is being written.
#[derive(Debug)]
pub(crate) struct SnapshotWriter<'a> {
    folder: &'a Folder,
    file: WholeFile,
    block: Block,
    /// Length from which on the space of the disk is looked up.
    next_check: u64,
}

impl SnapshotWriter<'_> {
    /// Returns the next block, to which [`SnapshotWriter::write_block`] belongs.
    pub(crate) fn block(&mut self) -> &mut Block {
        &mut self.block
    }

    /// Writes the block, and empties it.
    pub(crate) fn write_block(&mut self) -> Result<(), JournalError> {
        if self.file.len() >= self.next_check {
            self.check_space()?;
            self.next_check = self.file.len() + LEN_PER_CHECK;
        }
        self.file.push(&self.block.0)?;
        self.block.0.clear();
        Ok(())
    }

    /// Makes the snapshot durable.
    pub(crate) fn finish(mut self) -> Result<(), JournalError> {
        self.write_block()?;
        self.block.push(&Part::End);
        self.write_block()?;
        self.file.finish(self.folder).map(drop)
    }

    fn check_space(&self) -> Result<(), JournalError> {
        let path = self.folder.path();
        let disk = statvfs(path).map_err(|error| JournalError::io("read", path, error.into()))?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < RESERVED_SPACE {
            let error = io::Error::new(io::ErrorKind::StorageFull, "less than 4 MiB are free");
            return Err(JournalError::io("write a snapshot to", path, error));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Cost, Limit};
    use crate::reservation::{Hold, Settlement};

    /// The encoding of one state of each algorithm, and of the other parts. Files of this
    /// version must stay readable.
    #[test]
    fn the_encoding_of_parts_does_not_change() {
        let now = Timestamp::from_millis(1_700_000_100_123);
        let limit = Limit::new(5, Micros::from_secs(60)).expect("a limit");
        let encode = |record: &Part<'_>| {
            let bytes = postcard::to_extend(record, Vec::new()).expect("memory can be written");
            let read: Part<'_> = postcard::from_bytes(&bytes).expect("the same record");
            assert_eq!(format!("{read:?}"), format!("{record:?}"));
            bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        let mut encoded = Vec::new();
        for algorithm in Algorithm::RATES {
            let mut state = State::None;
            algorithm.take(&mut state, &limit, now, Cost::new(2));
            encoded.push(encode(&Part::State("a:b", Cow::Owned(state))));
        }
        encoded.push(encode(&Part::State("", Cow::Owned(State::None))));
        let history = LimitHistory::new(&limit);
        encoded.push(encode(&Part::Limits("a:b", Cow::Owned(history))));
        encoded.push(encode(&Part::Mark(Micros::from_secs(60), now)));
        encoded.push(encode(&Part::End));
        let mut holds = Holds::default();
        holds.put(Hold { ends_at: now, number: 1 << 64, units: 7 });
        encoded.push(encode(&Part::Holds("a:b", Cow::Owned(holds))));
        let settled = Settlement { charged: 1, returned: 2, debt: 3, uncounted: 4 };
        let settled = RememberedSettlement::new(vec![("a".into(), settled)], now);
        encoded.push(encode(&Part::Settlement(1 << 64, Cow::Owned(settled.clone()))));
        encoded.push(encode(&Part::SettlementOf("shop", 1 << 64, Cow::Owned(settled))));
        encoded.push(encode(&Part::EvictedSettlements("shop", now)));
        assert_eq!(encoded, PINNED);
    }

    #[test]
    fn states_of_algorithms_are_valid_and_others_are_told_apart() {
        let most = Limit::new(1_000_000_000, Micros::from_secs(366 * 24 * 60 * 60));
        let least = Limit::new(1, Micros::from_millis(1));
        for limit in [most, least].map(|limit| limit.expect("a limit")) {
            for algorithm in Algorithm::RATES {
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

    const PINNED: [&str; 14] = [
        "0003613a620197aac10d02f890a68dc2c48203",
        "0003613a62020200009bde9bffbc3102f89ef4a9c2c48203",
        "0003613a6203f882d8f0c1c482030200b8a3b1aac2c48203",
        "0003613a620400f882d8f0c1c48203b8f3cdfcc1c4820306",
        "0003613a620500f882d8f0c1c48203b8f3cdfcc1c4820302",
        "0003613a6206f8ee90fcc1c48203f882d8f0c1c48203808ece1c0500",
        "000000",
        "0103613a6200010505808ece1c000000",
        "02808ece1cf882d8f0c1c48203",
        "03",
        "0403613a6201f882d8f0c1c48203808080808080808080020707",
        "058080808080808080800201016101020304f882d8f0c1c48203",
        "060473686f708080808080808080800201016101020304f882d8f0c1c48203",
        "070473686f70f882d8f0c1c48203",
    ];
}
