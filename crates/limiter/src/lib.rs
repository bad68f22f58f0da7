//! Rate limiting as a library: exact, atomic decisions by rules, from memory or from Redis.
//!
//! ```
//! use std::time::Duration;
//!
//! use rlaas_limiter::{Limiter, Request, Rule};
//!
//! let login = Rule::gcra("login").limit(2).per(Duration::from_secs(60));
//! let limiter = Limiter::builder().rule(login).build()?;
//! let alice = Request::user("alice").build()?;
//! for expected in [true, true, false] {
//!     let verdict = limiter.check_now(&alice).expect("memory never waits")?;
//!     assert_eq!(verdict.is_allowed(), expected);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Limiter`] decides a [`Request`] by every rule that it matches, in one atomic step of its
//! [`store::Store`], and takes units only if all enforced rules allow it. The [`Verdict`] has one
//! decision for each rule, with the remaining units and an exact `retry_after`. Clones of a limiter
//! share rules, states and connections.
//!
//! | to | use |
//! | --- | --- |
//! | define rules in code, or in YAML | [`Rule`], `LimiterBuilder::yaml` |
//! | decide from memory, without a runtime | [`Limiter::check_now`] |
//! | decide from any store | [`Limiter::check`] |
//! | return units of a request that was not served | [`Limiter::check_with_receipts`], [`Limiter::refund`] |
//! | see and change the state of a key | [`Limiter::inspect`], [`Limiter::change`] |
//! | replace all rules at once | [`Limiter::replace_rules`] |
//! | limit an axum, tonic or hyper service | the module `tower` |
//! | send rate-limit headers | [`headers`], [`problem`] |
//! | count decisions in a metrics library | [`observer::Observer`] |
//!
//! # Background work
//!
//! A limiter spawns no background tasks. [`Limiter::run`] is a future that the owner of the limiter
//! polls for as long as the limiter is used, and drops to stop it. It removes expired keys from
//! memory, follows changes of the wall clock, and keeps the connections to Redis.
//!
//! Without it, and without any runtime, a limiter still decides from memory: new keys then evict
//! expired ones, and a wall clock that is set is not followed. With Redis,
//! [`Limiter::for_worker`] gives each thread its own connections.
//!
//! # Beside decisions
//!
//! What instances share beside decisions, such as a log of changes or messages to all of them, goes
//! through a [`fleet::Fleet`]. A limiter that nobody asks for one has none.
//!
//! # When the store fails
//!
//! Memory never fails. If Redis does not decide before the deadline, each rule applies its policy
//! ([`rules::OnStoreFailure`]): an error (the default), allow, deny, or a local share of the limit.
//! [`Source`] in each decision names who decided. A decision is never sent twice when it is unknown
//! whether Redis executed it.
//!
//! # Custom stores
//!
//! A type that implements [`store::CustomStore`] is a store, for [`LimiterBuilder::custom`]. A store
//! that can read the records of keys, and write them on condition that they have not changed, uses
//! [`step::execute_on_records`] for the decision: `examples/custom_store.rs` has about 100 lines.
//! With the feature `conformance`, `conformance_tests!` makes a test of each promise for each
//! algorithm, and `conformance::run` reports the promises that a store breaks.
//!
//! # Features
//!
//! No feature is enabled by default.
//!
//! | feature | adds |
//! | --- | --- |
//! | `conformance` | a conformance suite for custom stores |
//! | `journal` | a journal of the memory store: what a restart must not lose |
//! | `redis` | the Redis store: standalone, Sentinel, Cluster |
//! | `serde` | serialisation of records and rules, for custom stores |
//! | `tower` | a layer for axum, tonic and hyper |
//! | `yaml` | rules from YAML, in the format of the service |
//!
//! The minimum Rust version is 1.88. Raising it is a change of the minor version.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "conformance")]
pub mod conformance;
mod expiring_map;
pub mod fleet;
pub mod grpc_timeout;
pub mod headers;
#[cfg(feature = "journal")]
pub mod journal;
mod limiter;
pub mod observer;
pub mod problem;
mod project_counts;
pub mod store;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "yaml")]
pub mod yaml;

pub use limiter::{
    BuildError, ChangeError, CheckError, DenyCache, DenyCacheSettings, DescriptorAnswer,
    DescriptorVerdict, FORGET_TOPIC, KeyChange, KeyState, KeysChanged, Limiter, LimiterBuilder,
    OpenReservation, PendingCheck, Preview, Reported, Reserved, RuleDecision, Settled, Settling,
    Snapshot, Source, StartedCheck, Verdict,
};
pub use rlaas_core::clock::Deadline;
pub use rlaas_core::rules::{Attributes, InvalidRequest, Request, Rule};
#[doc(no_inline)]
pub use rlaas_core::{
    algorithm, calendar, clock, control, explain, idempotency, limit_history, operation, plan,
    reservation, rules, step, summary, verdict,
};
