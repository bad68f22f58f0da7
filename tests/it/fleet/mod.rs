//! What instances share beside decisions: the same promises in memory and in Redis.

mod memory;
mod promises;
