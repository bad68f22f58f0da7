//! Rules from code: a specification, step by step. What is wrong with it is reported when it is
//! built, with the name of the field.
//!
//! ```
//! use std::time::Duration;
//!
//! use rlaas_core::rules::Rule;
//!
//! let login = Rule::gcra("login").limit(5).per(Duration::from_secs(60));
//! assert_eq!(&*login.resource("/login").key_by(["ip"]).build().expect("a valid rule").name, "login");
//!
//! let problems = Rule::gcra("login").limit(5).build().expect_err("no window");
//! assert_eq!(problems[0].to_string(), "window: missing");
//! ```

use super::{Field, RuleSpec, StoreFailurePolicy};
use crate::algorithm::Algorithm;
use crate::clock::Micros;
use crate::rules::Rule;

/// Specifications by algorithm.
impl Rule {
    /// A rule by a fixed window.
    pub fn fixed_window(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::FixedWindow)
    }

    /// A rule by a sliding window log.
    pub fn sliding_window_log(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::SlidingWindowLog)
    }

    /// A rule by a sliding window counter.
    pub fn sliding_window_counter(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::SlidingWindowCounter)
    }

    /// A rule by a token bucket.
    pub fn token_bucket(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::TokenBucket)
    }

    /// A rule by a leaky bucket.
    pub fn leaky_bucket(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::LeakyBucket)
    }

    /// A rule by GCRA.
    pub fn gcra(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::Gcra)
    }
}

/// Steps of a specification; each replaces what was there.
impl RuleSpec {
    fn named(name: impl Into<String>, algorithm: Algorithm) -> Self {
        let (name, algorithm) = (Field::Set(name.into()), Field::Set(algorithm));
        Self { name, algorithm, ..Self::default() }
    }

    /// Sets the units per window; 0 denies everything.
    #[must_use]
    pub fn limit(self, units: u64) -> Self {
        Self { limit: Field::Set(units), ..self }
    }

    /// Sets the window: 1 ms to 366 days, in whole milliseconds.
    #[must_use]
    pub fn per(self, window: impl Into<Micros>) -> Self {
        Self { window: Field::Set(window.into()), ..self }
    }

    /// Sets the units at once, for algorithms that have a burst.
    #[must_use]
    pub fn burst(self, units: u64) -> Self {
        Self { burst: Field::Set(units), ..self }
    }

    /// Applies to requests for this resource alone; `*` is any text.
    #[must_use]
    pub fn resource(mut self, pattern: impl Into<String>) -> Self {
        self.matcher.resource = Field::Set(vec![pattern.into()]);
        self
    }

    /// Applies to requests with this attribute alone; `*` is any text.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, pattern: impl Into<String>) -> Self {
        self.matcher.attributes.insert(name.into(), Field::Set(vec![pattern.into()]));
        self
    }

    /// Counts by these parts of a request: `user_id`, `resource`, or names of attributes.
    #[must_use]
    pub fn key_by<T: Into<String>>(self, parts: impl IntoIterator<Item = T>) -> Self {
        Self { key_by: Field::Set(parts.into_iter().map(Into::into).collect()), ..self }
    }

    /// Decides and counts, and stops nobody.
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { shadow: Field::Set(true), ..self }
    }

    /// Sets the policy for when the store does not answer.
    #[must_use]
    pub fn on_store_failure(self, policy: StoreFailurePolicy) -> Self {
        Self { on_store_failure: Field::Set(policy), ..self }
    }
}
