//! Connections to Redis: where they lead, how they are opened, and when they are given up.
//!
//! redis-rs opens and drives a connection, a deadpool pool keeps it. A worker's batches check it out
//! one after the other, each for as long as it takes to send its call: a connection answers in
//! order, so the next call need not wait for the reply to this one.

pub(crate) mod address;
pub(crate) mod connector;
pub(crate) mod options;
pub(crate) mod pool;
mod self_signed;
pub(crate) mod sentinel;
pub(crate) mod server_info;
mod tls;
