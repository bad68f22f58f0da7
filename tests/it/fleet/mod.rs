//! What instances share beside decisions: the same promises in memory and in Redis.

mod catalogue;
mod instance;
mod memory;
mod promises;
mod redis;
