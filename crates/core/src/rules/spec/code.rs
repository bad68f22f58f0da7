//! Builder methods for rules in code. [`RuleSpec::build`] reports all problems, each with the name
//! of its field.
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
use crate::algorithm::{Algorithm, OnChange, WindowFrom};
use crate::clock::Micros;
use crate::rules::{EnforcedShare, Percentage, Rule, RuleMode, Share};

/// Builders by algorithm.
impl Rule {
    /// Starts building a rule with a fixed window.
    pub fn fixed_window(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::FixedWindow)
    }

    /// Starts building a rule with a sliding window log.
    pub fn sliding_window_log(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::SlidingWindowLog)
    }

    /// Starts building a rule with a sliding window counter.
    pub fn sliding_window_counter(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::SlidingWindowCounter)
    }

    /// Starts building a rule with a token bucket.
    pub fn token_bucket(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::TokenBucket)
    }

    /// Starts building a rule with a leaky bucket.
    pub fn leaky_bucket(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::LeakyBucket)
    }

    /// Starts building a rule with GCRA.
    pub fn gcra(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::Gcra)
    }

    /// Starts building a rule that bounds work in flight.
    pub fn concurrency(name: impl Into<String>) -> RuleSpec {
        RuleSpec::named(name, Algorithm::Concurrency)
    }
}

/// Builder methods. Each replaces the previous value.
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

    /// Sets how many units can be taken at once, for algorithms that have a burst. By default
    /// the units per window.
    #[must_use]
    pub fn burst(self, units: u64) -> Self {
        Self { burst: Field::Set(units), ..self }
    }

    /// Sets the units that each request takes, whatever it says itself: 1 to 2^32 - 1.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { cost: Field::Set(units), ..self }
    }

    /// Lets costs be reported after the fact: they are counted even if too few units are left, as debt.
    #[must_use]
    pub fn post_paid(self) -> Self {
        Self { post_paid: Field::Set(true), ..self }
    }

    /// Lets reservations hold units for up to this time: 100 ms to 24 h. They are charged when they are
    /// settled.
    #[must_use]
    pub fn reservable(self, longest: impl Into<Micros>) -> Self {
        Self { reservable: Field::Set(true), ..self }.hold(longest)
    }

    /// Sets the longest time of a hold: 100 ms to 24 h.
    #[must_use]
    pub fn hold(self, longest: impl Into<Micros>) -> Self {
        Self { hold: Field::Set(longest.into()), ..self }
    }

    /// Sets the most that a reservation may hold, after [`RuleSpec::reservable`]: 1 % to 100 % of the units at
    /// once. A larger cost is held by as many.
    #[must_use]
    pub fn hold_share(self, share: Share) -> Self {
        Self { hold_share: Field::Set(Percentage(share)), ..self }
    }

    /// Tells an event when a key has used these parts of its limit: up to 5, each 1 % to 100 %.
    #[must_use]
    pub fn notify_at(self, shares: impl IntoIterator<Item = Share>) -> Self {
        Self { notify_at: Field::Set(shares.into_iter().map(Percentage).collect()), ..self }
    }

    /// Sets where requests have limits of their own: `attributes.NAME`, or `request` for that of a descriptor.
    #[must_use]
    pub fn limit_from(self, place: impl Into<String>) -> Self {
        Self { limit_from: Field::Set(place.into()), ..self }
    }

    /// Sets the most units of debt, after [`RuleSpec::post_paid`].
    #[must_use]
    pub fn max_debt(self, units: u64) -> Self {
        Self { max_debt: Field::Set(units), ..self }
    }

    /// Applies the rule only to requests for this resource. `*` matches any text.
    #[must_use]
    pub fn resource(mut self, pattern: impl Into<String>) -> Self {
        self.matcher.resource = Field::Set(vec![pattern.into()]);
        self
    }

    /// Applies the rule only to requests with this attribute. `*` matches any text. May be called
    /// for several attributes.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, pattern: impl Into<String>) -> Self {
        self.matcher.attributes.insert(name.into(), Field::Set(vec![pattern.into()]));
        self
    }

    /// Counts requests by these parts: `user_id`, `resource`, names of attributes, or `NAME|user_id`.
    #[must_use]
    pub fn key_by<T: Into<String>>(self, parts: impl IntoIterator<Item = T>) -> Self {
        Self { key_by: Field::Set(parts.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets shadow mode: the rule decides and counts, but refuses no request.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.mode(RuleMode::Shadow)
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(self, mode: RuleMode) -> Self {
        Self { mode: Field::Set(mode), ..self }
    }

    /// Enforces the rule for a part of the keys; for the others it is in shadow mode.
    #[must_use]
    pub fn enforce(self, share: EnforcedShare) -> Self {
        Self { enforce: Field::Set(share), ..self }
    }

    /// Sets where windows of one length begin.
    #[must_use]
    pub fn window_from(self, from: WindowFrom) -> Self {
        Self { window_from: Field::Set(from), ..self }
    }

    /// Sets the units in use after a change of limit, burst or window.
    #[must_use]
    pub fn on_change(self, policy: OnChange) -> Self {
        Self { on_change: Field::Set(policy), ..self }
    }

    /// Sets the part of the limit from which a key is near it: the decision then says so, and the
    /// observer counts it.
    #[must_use]
    pub fn near_limit(self, share: Share) -> Self {
        Self { near_limit: Field::Set(share), ..self }
    }

    /// Sets the policy for the time when the store fails.
    #[must_use]
    pub fn on_store_failure(self, policy: StoreFailurePolicy) -> Self {
        Self { on_store_failure: Field::Set(policy), ..self }
    }
}
