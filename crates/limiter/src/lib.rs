//! Rate limiting as a library: decides requests by rules, in this process or in Redis.
//!
//! ```
//! use std::time::Duration;
//!
//! use rlaas_limiter::{Limiter, Request, Rule};
//!
//! let login = Rule::gcra("login").limit(2).per(Duration::from_mins(1));
//! let limiter = Limiter::builder().rule(login).build()?;
//! let alice = Request::user("alice").build()?;
//! for expected in [true, true, false] {
//!     let verdict = limiter.check_now(&alice).expect("memory never waits")?;
//!     assert_eq!(verdict.is_allowed(), expected);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Limiter`] decides a request by every rule that it matches, in one atomic step of its
//! [`store::Store`], and takes units only if all rules allow. Clones share everything. It knows no
//! protocol and no metrics library: an [`observer::Observer`] is told what happens.
//!
//! # Background work
//!
//! Nothing runs in the background by itself. [`Limiter::run`] is a future that the owner of the
//! limiter runs for as long as the limiter is used, and drops to stop: it sweeps expired keys out
//! of memory, and keeps the connections to Redis. From memory a limiter decides without it and
//! without any runtime ([`Limiter::check_now`]); keys that have expired then leave as new ones come,
//! and wall time that is set is not followed. With Redis, [`Limiter::for_worker`] gives each thread
//! connections of its own.
//!
//! # A store of one's own
//!
//! A type that implements [`store::CustomStore`] is a store: [`LimiterBuilder::custom`] takes it. A
//! store that can read what it holds of a key, and write it on condition that nobody else has
//! written meanwhile, leaves the decision to [`step::execute_on_records`]; `examples/custom_store.rs`
//! is one in about 100 lines. With the feature `conformance`, `conformance_tests!` makes a test of
//! each promise for each algorithm, and `conformance::run` reports which of them a store breaks.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `conformance` | the promises of every store, as cases for a store of one's own |
//! | `redis` | the Redis store, with its scripts |
//! | `serde` | records to be stored and read, for a store of one's own |
//! | `tower` | a layer for axum, tonic and hyper |
//! | `yaml` | rules from YAML, in the format of the service |
//!
//! The minimum Rust version is 1.95. Raising it is a change of the minor version.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod grpc_timeout;
pub mod headers;
mod limiter;
pub mod observer;
pub mod problem;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "yaml")]
pub mod yaml;

pub use limiter::{
    BuildError, CheckError, DenyCache, DenyCacheSettings, DescriptorAnswer, DescriptorVerdict,
    Limiter, LimiterBuilder, PendingCheck, RuleDecision, Snapshot, Source, StartedCheck, Verdict,
};
pub use rlaas_core::clock::Deadline;
pub use rlaas_core::rules::{Attributes, InvalidRequest, Request, Rule};
#[doc(no_inline)]
pub use rlaas_core::{algorithm, clock, operation, plan, rules, step, summary, verdict};
