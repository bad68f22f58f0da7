//! What breaks, and what must happen then: real servers, real signals.

#[path = "../common/mod.rs"]
mod common;

mod cluster;
mod drain;
mod load;
mod places;
mod redis;
mod reload;
mod sentinel;
mod tls;
