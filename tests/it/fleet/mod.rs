//! What instances share beside decisions: the same promises in memory and in Redis.

mod bounded_reads;
mod catalogue;
pub(crate) mod instance;
mod memory;
mod promises;
mod redis;
