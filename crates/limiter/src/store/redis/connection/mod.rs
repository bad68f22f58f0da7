//! Connections to Redis: how they are opened, pooled and discarded.
//!
//! redis-rs opens and drives a connection, a deadpool pool keeps it. The batches of a worker check
//! it out one after the other, each only while it sends its call. A connection replies in order, so
//! the next call need not wait for a reply.

pub(crate) mod address;
pub(crate) mod connector;
pub(crate) mod options;
pub(crate) mod pool;
mod self_signed;
pub(crate) mod sentinel;
pub(crate) mod server_info;
mod tls;
