//! Decisions of one thread, on their way to the sketches.

use std::collections::HashMap;

use ring::digest::{SHA256, digest};

/// Most decisions of a batch.
const MAX_ENTRIES: usize = 1_024;
/// Bytes of keys after which a batch is full.
const FULL_BYTES: usize = 32 * 1024;
/// Longest key that is kept as it is. A longer one is kept by its hash.
pub const MAX_KEY: usize = 256;
/// Most long keys of a batch that are remembered by their hashes: others come with later batches.
const MAX_LONG: usize = 8;
/// Bytes of the hash of a long key: 128 bits.
const HASH_BYTES: usize = 16;

/// Returns `true` for the hash by which a long key is counted.
pub fn is_hash(key: &str) -> bool {
    let digits = key.strip_prefix('#').filter(|digits| digits.len() == 2 * HASH_BYTES);
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A decision on a key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Whether the rule denied the request.
    pub is_denied: bool,
    /// Whether the rule allowed the request near the limit.
    pub is_near_limit: bool,
    /// Units that were taken, or charged after the fact.
    pub taken: u32,
}

/// Decisions of one thread.
#[derive(Debug, Default)]
pub(super) struct Batch {
    entries: Vec<Entry>,
    /// The keys, one after the other. Each is UTF-8.
    keys: Vec<u8>,
    /// Long keys by their hashes.
    pub(super) long: HashMap<(u32, String), String>,
}

/// A decision of a batch.
#[derive(Clone, Copy, Debug)]
struct Entry {
    rule: u32,
    key_bytes: u16,
    usage: Usage,
}

impl Batch {
    /// Creates a batch that a thread can fill without allocating.
    pub(super) fn with_capacity() -> Self {
        Self {
            entries: Vec::with_capacity(MAX_ENTRIES),
            keys: Vec::with_capacity(FULL_BYTES + MAX_KEY),
            long: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(super) fn push(&mut self, rule: u32, key: &[u8], usage: Usage) {
        let start = self.keys.len();
        if key.len() <= MAX_KEY {
            self.keys.extend_from_slice(key);
        } else {
            self.push_hash(rule, key);
        }
        let key_bytes = u16::try_from(self.keys.len() - start).expect("at most MAX_KEY");
        self.entries.push(Entry { rule, key_bytes, usage });
    }

    /// Adds `#` and the hash of a long key. No encoded key begins with `#` and has its length and
    /// its alphabet by chance.
    #[cold]
    fn push_hash(&mut self, rule: u32, key: &[u8]) {
        let mut hash = "#".to_owned();
        for byte in &digest(&SHA256, key).as_ref()[..HASH_BYTES] {
            for digit in [byte >> 4, byte & 15] {
                hash.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        }
        self.keys.extend_from_slice(hash.as_bytes());
        let named = (rule, hash);
        if self.long.len() < MAX_LONG && !self.long.contains_key(&named) {
            self.long.insert(named, String::from_utf8_lossy(key).into_owned());
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_ENTRIES || self.keys.len() >= FULL_BYTES
    }

    /// Returns the decisions: rule, key and usage.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], Usage)> {
        let mut rest = self.keys.as_slice();
        self.entries.iter().map(move |entry| {
            let (key, after) = rest.split_at(entry.key_bytes.into());
            rest = after;
            (entry.rule, key, entry.usage)
        })
    }
}
