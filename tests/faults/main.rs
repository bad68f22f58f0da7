//! What breaks, and what must happen then: real servers, real signals.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod breaker;
mod deadlines;
mod deny_cache;
mod drain;
mod load;
mod policies;
mod redis;
mod refusals;
mod reload;
mod restarts;
mod wire;
