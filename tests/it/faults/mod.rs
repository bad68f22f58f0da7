//! Faults: how the service behaves when its surroundings break. Servers and signals are real.

mod attacks;
mod bans;
mod breaker;
mod clock;
mod cluster;
mod connections;
mod control_permissions;
mod deadlines;
mod deny_cache;
mod drain;
mod error_replies;
mod idempotency;
mod load;
mod multi_shard;
mod multi_shard_candidates;
mod multi_shard_library;
mod policies;
mod redis;
mod redis_permissions;
mod redis_protocol;
mod reload;
mod restarts;
mod rollout;
mod sentinel;
mod tls;
mod workers;
