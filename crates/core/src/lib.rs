//! The pure part of rate limiting: what time it is, what an algorithm decides, and which rules a
//! request meets.
//!
//! Nothing here waits, reads a socket or counts a metric: the crate has no async, no I/O and no
//! Prometheus. The clock alone reads what time it is, so that tests and simulations can move it.
//! With the feature `serde` rules are read from YAML, JSON and the like: see [`rules::spec`].
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

pub mod algorithm;
pub mod clock;
pub mod decide;
pub mod operation;
pub mod plan;
pub mod refusal_cache;
pub mod rules;
pub mod step;
pub mod summary;
pub mod verdict;
