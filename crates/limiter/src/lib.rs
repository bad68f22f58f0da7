//! Rate limiting as a library: decides requests by rules, in this process or in Redis.
//!
//! [`limiter::Limiter`] decides a request by every rule that it meets, in one atomic step of its
//! [`store::Store`]. It knows no protocol and no metrics library: an [`observer::Observer`] is told
//! what happens.
//!
//! # Background work
//!
//! Nothing runs in the background by itself. [`limiter::Limiter::run`] is a future that the owner of
//! the limiter runs for as long as the limiter is used, and drops to stop: it sweeps expired keys
//! out of memory, and keeps the connections to Redis. From memory a limiter decides without it and
//! without any runtime; keys that have expired then leave as new ones come, and small corrections
//! of the wall clock are not followed.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `redis` | the Redis store, with its scripts |
//! | `yaml` | rules from YAML, in the module of that name |

pub mod limiter;
pub mod observer;
pub mod store;
#[cfg(feature = "yaml")]
pub mod yaml;

pub(crate) use rlaas_core::{algorithm, clock, operation, plan, rules, verdict};
