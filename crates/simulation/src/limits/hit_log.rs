//! The hits of traffic on keys, in order of time, to be read several times.
//!
//! A hit takes a few bytes. The first ones stay in memory, the others go to a temporary file, which
//! has no name from the moment it is open, so that nothing is left even after a crash.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use rlaas_core::clock::Timestamp;

use super::LimitsError;

/// Bytes of a block. A block has whole hits.
const BLOCK: usize = 1 << 20;
/// Blocks that stay in memory.
const IN_MEMORY: usize = 32;
/// Most bytes of one hit: three numbers.
const LONGEST: usize = 3 * 10;

/// Where hits are kept, and how many.
#[derive(Clone, Debug)]
pub struct SpoolSettings {
    /// Directory of the temporary file.
    pub directory: PathBuf,
    /// Most bytes of hits.
    pub max_bytes: u64,
}

/// One request that takes units from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedHit {
    pub(super) at: Timestamp,
    /// Number of the key.
    pub(super) key: u32,
    pub(super) cost: u32,
}

/// Hits in order of time.
#[derive(Debug)]
pub(super) struct HitLog {
    settings: SpoolSettings,
    /// The block that is written.
    block: Vec<u8>,
    in_memory: Vec<Vec<u8>>,
    /// Lengths of the blocks in the file.
    in_file: Vec<usize>,
    file: Option<File>,
    bytes: u64,
    last: Timestamp,
}

impl HitLog {
    pub(super) fn new(settings: SpoolSettings) -> Self {
        Self {
            settings,
            block: Vec::with_capacity(BLOCK),
            in_memory: Vec::new(),
            in_file: Vec::new(),
            file: None,
            bytes: 0,
            last: Timestamp::EPOCH,
        }
    }

    /// Appends a hit. A time before that of the last hit counts as the same time.
    pub(super) fn push(&mut self, hit: LoggedHit) -> Result<(), LimitsError> {
        if self.block.len() + LONGEST > BLOCK {
            self.end_block()?;
        }
        let before = self.block.len();
        push_number(&mut self.block, hit.at.since(self.last).as_micros());
        push_number(&mut self.block, hit.key.into());
        push_number(&mut self.block, hit.cost.into());
        self.last = self.last.max(hit.at);
        self.bytes += (self.block.len() - before) as u64;
        let max_bytes = self.settings.max_bytes;
        if self.bytes > max_bytes { Err(LimitsError::SpoolFull { max_bytes }) } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<(), LimitsError> {
        if self.in_memory.len() < IN_MEMORY {
            let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
            self.in_memory.push(block);
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(unnamed_file(&self.settings).map_err(LimitsError::Spool)?),
        };
        file.write_all(&self.block).map_err(LimitsError::Spool)?;
        self.in_file.push(self.block.len());
        self.block.clear();
        Ok(())
    }

    /// Calls `visit` with each hit.
    pub(super) fn for_each(&self, mut visit: impl FnMut(LoggedHit)) -> Result<(), LimitsError> {
        let mut at = Timestamp::EPOCH;
        for block in &self.in_memory {
            read_block(block, &mut at, &mut visit).map_err(LimitsError::Spool)?;
        }
        if let Some(file) = &self.file {
            self.read_file(file, &mut at, &mut visit).map_err(LimitsError::Spool)?;
        }
        read_block(&self.block, &mut at, &mut visit).map_err(LimitsError::Spool)
    }

    fn read_file(
        &self,
        mut file: &File,
        at: &mut Timestamp,
        visit: &mut impl FnMut(LoggedHit),
    ) -> io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        let mut block = vec![0; BLOCK];
        for length in &self.in_file {
            let block = &mut block[..*length];
            file.read_exact(block)?;
            read_block(block, at, visit)?;
        }
        Ok(())
    }
}

/// Creates a file that only this user can read, and removes its name.
fn unnamed_file(settings: &SpoolSettings) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let random = RandomState::new().hash_one(std::process::id());
    let path = settings.directory.join(format!("rlaas-hits-{random:016x}"));
    let file = options.open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn read_block(
    mut block: &[u8],
    at: &mut Timestamp,
    visit: &mut impl FnMut(LoggedHit),
) -> io::Result<()> {
    let mut number = || take_number(&mut block).ok_or(io::ErrorKind::InvalidData);
    let narrow = |number: u64| u32::try_from(number).map_err(|_| io::ErrorKind::InvalidData);
    while let Ok(micros) = number() {
        *at = *at + rlaas_core::clock::Micros::from_micros(micros);
        let (key, cost) = (narrow(number()?)?, narrow(number()?)?);
        visit(LoggedHit { at: *at, key, cost });
    }
    Ok(())
}

/// Appends a number in groups of seven bits, the lowest first. The high bit marks all but the last.
fn push_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    to.push(u8::try_from(number).expect("seven bits"));
}

fn take_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(max_bytes: u64) -> HitLog {
        HitLog::new(SpoolSettings { directory: std::env::temp_dir(), max_bytes })
    }

    fn hit(number: u32) -> LoggedHit {
        let at = Timestamp::from_micros(1_700_000_000_000_000 + u64::from(number / 2) * 1_000);
        LoggedHit { at, key: number % 70_000, cost: number.wrapping_mul(2_654_435_761) }
    }

    #[test]
    fn hits_are_read_as_often_as_wanted_from_memory_and_file() {
        // About 45 MB: more than the blocks that stay in memory.
        let directory = std::env::temp_dir().join(format!("rlaas-hit-log-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a folder");
        let settings = SpoolSettings { directory: directory.clone(), max_bytes: u64::MAX };
        let mut log = HitLog::new(settings);
        let count = 4_500_000;
        for number in 0..count {
            log.push(hit(number)).expect("space");
        }
        let metadata = log.file.as_ref().expect("a file").metadata().expect("of the file");
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777, 0o600);
        assert!(metadata.len() > 1 << 20);
        // It has no name: only an empty folder can be removed.
        fs::remove_dir(&directory).expect("an empty folder");
        for _ in 0..2 {
            let mut number = 0;
            log.for_each(|read| {
                assert_eq!(read, hit(number));
                number += 1;
            })
            .expect("hits");
            assert_eq!(number, count);
        }
    }

    #[test]
    fn too_many_hits_are_an_error_that_names_the_option() {
        let mut log = log(100);
        let error = (0..100).find_map(|number| log.push(hit(number)).err()).expect("an error");
        assert!(error.to_string().contains("--spool-max"), "{error}");
    }

    #[test]
    fn a_time_before_the_last_one_counts_as_the_last_one() {
        let mut log = log(u64::MAX);
        for micros in [5, 3, 7] {
            let at = Timestamp::from_micros(micros);
            log.push(LoggedHit { at, key: 0, cost: 1 }).expect("space");
        }
        let mut times = Vec::new();
        log.for_each(|hit| times.push(hit.at.as_micros())).expect("hits");
        assert_eq!(times, [5, 5, 7]);
    }
}
