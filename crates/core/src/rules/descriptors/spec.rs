//! Specifications of rules for descriptors, independent of a file format.

use std::sync::Arc;

use super::{DescriptorRule, Metadata};
use crate::algorithm::{Algorithm, Limit, Window};
use crate::clock::Micros;
use crate::rules::spec::{
    DebtSpec, Field, HoldSpec, Problem, Problems, Rate, RateSpec, SHARE, StoreFailureSpec, Whole,
};
use crate::rules::{Coupling, Grant, Mode, Share};

/// Most units per window. Those above [`Limit::MAX_UNITS`] are cut
/// to it.
const UNITS: Whole = Whole { from: 0, to: u32::MAX as u64 };

/// A rule for descriptors, not checked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct DescriptorSpec {
    /// Path of the rule, as in metrics ([`super::label`]).
    pub label: String,
    /// Name of the limit, for responses and for `replaces` of other rules.
    pub name: Option<Arc<str>>,
    /// Names of the limits that do not apply to requests to which this rule applies.
    pub replaces: Vec<Arc<str>>,
    /// Units per window, by default with a fixed window. Ignored if `unlimited`.
    pub rate: RateSpec,
    /// Whether everything is allowed.
    pub unlimited: bool,
    /// Whether the rule is enforced.
    pub mode: Mode,
    /// Policy for the time when the store fails.
    pub failure: StoreFailureSpec,
    /// Whether hits are reports of costs that were incurred already, counted even if too few units
    /// are left.
    pub post_paid: bool,
    /// Whether reservations hold units, which are charged when they are settled.
    pub reservable: Field<bool>,
    /// Longest time of a hold, with `reservable`: 100 ms to 24 h; by default 60 s.
    pub hold: Field<Micros>,
    /// Most units of debt; by default [as many as can be kept](Algorithm::max_debt) if `post_paid` or
    /// `reservable`, else the units per window.
    pub max_debt: Field<u64>,
    /// Part of the limit from which a key is near it; by default never.
    pub near_limit: Field<Share>,
    /// Whether overrides and bans of single keys can be set at run time. Not with `unlimited`.
    pub overridable: bool,
    /// Whether metrics have the values of requests.
    pub is_detailed: bool,
    /// Metadata for callers.
    pub metadata: Option<Arc<Metadata>>,
    /// File of the rule, for messages. Empty if there is none.
    pub file: Arc<str>,
}

impl DescriptorSpec {
    /// Builds the rule. `coupling` is that of the requests to which it applies.
    ///
    /// # Errors
    ///
    /// All [`Problem`]s, each with its field: `algorithm`, `limit`, `window`, `burst`, `post-paid`,
    /// `reservable`, `hold`, `max-debt`, `near-limit`, `overridable`, or one of [`StoreFailureSpec`].
    pub fn build(self, coupling: Coupling) -> Result<DescriptorRule, Vec<Problem>> {
        let mut problems = Problems::default();
        let failure = self.failure.build(&mut problems);
        let mut rate = if self.unlimited { self.rate.as_unlimited() } else { self.rate };
        if let Field::Set(units) = &mut rate.limit
            && *units <= UNITS.to
        {
            *units = (*units).min(Limit::MAX_UNITS);
        }
        if rate.algorithm.value().is_some_and(|algorithm| algorithm.has_slots()) {
            problems
                .add("algorithm", "must not be concurrency, which refuses every request of Envoy");
        }
        let (default, algorithms) = (Algorithm::FixedWindow, Algorithm::RATES);
        let (rate, grant) = rate.build(default, algorithms, UNITS, &mut problems);
        let holds =
            HoldSpec { reservable: self.reservable, hold: self.hold, ..HoldSpec::default() };
        let holds = holds.build(false, &mut problems).ok().flatten();
        if holds.is_some() && (self.unlimited || coupling == Coupling::EachAlone) {
            problems.add("reservable", "not with unlimited: true or envoy.count-refused");
        }
        let max_debt = self.max_debt(rate, grant, holds.is_some(), coupling, &mut problems);
        let near_limit = problems.read("near-limit", self.near_limit, SHARE);
        if self.overridable && self.unlimited {
            problems.add("overridable", "not with unlimited: true, which has no window");
        }
        let Some((((on_store_failure, breaker_opens), rate), grant)) = failure.zip(rate).zip(grant)
        else {
            return problems.finish(None);
        };
        problems.finish(Some(DescriptorRule {
            name: self.label.into(),
            limit_name: self.name,
            algorithm: rate.algorithm,
            grant: if self.unlimited { Grant::Unlimited } else { grant },
            mode: self.mode,
            set_mode: None,
            on_store_failure,
            breaker_opens,
            near_limit: near_limit.ok().flatten(),
            replaces: self.replaces,
            window: if self.unlimited { Window::ZERO } else { rate.window },
            overridable: self.overridable,
            is_detailed: self.is_detailed,
            is_post_paid: self.post_paid,
            holds,
            max_debt,
            metadata: self.metadata,
            file: self.file,
        }))
    }

    /// Checks `max_debt`, which is for rules whose hits are reports.
    fn max_debt(
        &self,
        rate: Option<Rate>,
        grant: Option<Grant>,
        is_reservable: bool,
        coupling: Coupling,
        problems: &mut Problems,
    ) -> Option<u64> {
        let algorithm = rate.map(|rate| rate.algorithm);
        let is_fixed = algorithm == Some(Algorithm::FixedWindow);
        let is_counted = coupling == Coupling::EachAlone && is_fixed;
        let later = is_reservable.then_some("reservable");
        let later = self.post_paid.then_some("post-paid").or(later);
        let debt = DebtSpec { later, max_debt: self.max_debt };
        let beside = "only with post_paid or reservable: true, or for a fixed window with envoy.count-refused";
        let beside = (self.unlimited || !(later.is_some() || is_counted)).then_some(beside);
        debt.build(algorithm, grant, beside, problems)
    }
}
