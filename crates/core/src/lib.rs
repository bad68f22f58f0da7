//! The pure part of rate limiting: algorithms, rules, plans, decisions and verdicts.
//!
//! The crate has no async functions except in traits, no I/O and no metrics. Time comes from
//! [`clock`] alone, so that tests and simulations can set it. To limit requests in a process, use
//! rlaas-limiter, which adds stores; to use the service, rlaas-client.
//!
//! | module | has |
//! | --- | --- |
//! | [`algorithm`] | the six algorithms, limits, costs, decisions |
//! | [`calendar`] | windows of days, weeks, months, quarters and years of a time zone |
//! | [`clock`] | points in time, clocks, deadlines |
//! | [`rules`] | rules, requests, keys, specifications of rules |
//! | [`plan`] | from a request to hits on states |
//! | [`explain`] | why each rule applies to a request, or does not |
//! | [`control`] | overrides and bans of single keys |
//! | [`limit_history`] | the limits by which a key was counted |
//! | [`operation`] | the interface of stores: requests, replies, receipts |
//! | [`step`] | one atomic step of a store |
//! | [`idempotency`] | the same request under the same request id takes its units once |
//! | [`verdict`], [`summary`] | from decisions on hits to the outcome of a request |
//! | [`decide`], [`refusal_cache`] | the interface of deciders, a cache of refusals |
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `serde` | rules from YAML, JSON and the like ([`rules::spec`]), and states to be stored |
//!
//! # Example
//!
//! ```
//! use rlaas_core::algorithm::{Algorithm, Cost, Limit, State};
//! use rlaas_core::clock::{Micros, Timestamp};
//!
//! let limit = Limit::new(5, Micros::from_secs(60))?;
//! let mut state = State::None;
//! let now = Timestamp::from_millis(1_700_000_100_000);
//! for _ in 0..5 {
//!     assert!(Algorithm::Gcra.take(&mut state, &limit, now, Cost::ONE).is_allowed());
//! }
//! assert!(!Algorithm::Gcra.take(&mut state, &limit, now, Cost::ONE).is_allowed());
//! # Ok::<(), rlaas_core::algorithm::LimitError>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
pub mod calendar;
pub mod clock;
pub mod control;
pub mod decide;
pub mod explain;
pub mod idempotency;
pub mod limit_history;
pub mod operation;
pub mod plan;
pub mod refusal_cache;
pub mod reservation;
pub mod rules;
pub mod step;
pub mod summary;
pub mod verdict;
