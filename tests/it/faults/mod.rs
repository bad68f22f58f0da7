//! What breaks, and what must happen then: real servers, real signals.

mod access;
mod attacks;
mod breaker;
mod clock;
mod cluster;
mod connections;
mod deadlines;
mod deny_cache;
mod drain;
mod load;
mod places;
mod policies;
mod redis;
mod refusals;
mod reload;
mod restarts;
mod roll;
mod sentinel;
mod shards;
mod tls;
mod wire;
mod workers;
