//! Connections to Redis: where they go, how they are opened and kept.

pub(crate) mod driver;
pub(crate) mod lanes;
pub(crate) mod manager;
pub(crate) mod options;
mod own_authority;
pub(crate) mod sentinel;
mod tls;
