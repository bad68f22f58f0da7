//! The specification of a rule for descriptors, in no format: that of files is for their reader.

use std::sync::Arc;

use super::{DescriptorRule, Metadata};
use crate::algorithm::{Algorithm, Limit};
use crate::clock::Micros;
use crate::rules::spec::{Field, Problem, Problems, Rate, RateSpec, StoreFailureSpec};
use crate::rules::{Coupling, Grant, Mode};

/// Units per window, of which those above [`Limit::MAX_UNITS`] are cut.
const UNITS: (u64, &str) = (u32::MAX as u64, "must be a whole number from 0 to 4294967295");
const DEBT: &str = "must be 0 to 1000000000";

/// A rule for descriptors as a source gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorSpec {
    /// Path of the rule as metrics name it ([`super::label`]).
    pub label: String,
    /// What answers and `replaces` of other rules call it.
    pub name: Option<Arc<str>>,
    /// The rules that do not apply where this one does.
    pub replaces: Vec<Arc<str>>,
    /// How many units per how long; by default in a fixed window. What is unlimited has neither.
    pub rate: RateSpec,
    /// Everything is allowed.
    pub unlimited: bool,
    /// How the rule is enforced.
    pub mode: Mode,
    /// What requests meet when the store does not answer.
    pub failure: StoreFailureSpec,
    /// Hits are reports of what has happened already, counted whatever is left.
    pub post_paid: bool,
    /// The most units that reports may count above the limit; by default one limit.
    pub max_debt: Field<u64>,
    /// Metrics tell the values that requests have.
    pub is_detailed: bool,
    /// What the rule says of itself to those who ask.
    pub metadata: Option<Arc<Metadata>>,
    /// The file that it stands in, for messages; empty for none.
    pub file: Arc<str>,
}

impl DescriptorSpec {
    /// Builds the rule, for requests whose hits depend on each other as `coupling` says.
    ///
    /// # Errors
    ///
    /// Every [`Problem`] there is, with its field: `algorithm`, `limit`, `window`, `burst`,
    /// `max-debt`, or one of [`StoreFailureSpec`].
    pub fn build(self, coupling: Coupling) -> Result<DescriptorRule, Vec<Problem>> {
        let mut problems = Problems::default();
        let failure = self.failure.build(&mut problems);
        let rate = if self.unlimited { self.rate.as_unlimited() } else { self.rate };
        let (rate, grant) = rate.build(Algorithm::FixedWindow, UNITS, &mut problems);
        let max_debt = self.max_debt(rate, coupling, &mut problems);
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
            on_store_failure,
            breaker_opens,
            replaces: self.replaces,
            window: if self.unlimited { Micros::ZERO } else { rate.window },
            is_detailed: self.is_detailed,
            is_post_paid: self.post_paid,
            max_debt,
            metadata: self.metadata,
            file: self.file,
        }))
    }

    /// The most debt, of a rule whose hits may be reports.
    fn max_debt(
        &self,
        rate: Option<Rate>,
        coupling: Coupling,
        problems: &mut Problems,
    ) -> Option<u64> {
        let max_debt =
            problems.check("max-debt", &self.max_debt, DEBT, |units| *units <= Limit::MAX_UNITS);
        let max_debt = max_debt.ok()?.copied();
        let algorithm = rate?.algorithm;
        let units = self.rate.limit.value().map(|units| *units.min(&Limit::MAX_UNITS));
        let most_reported = u64::from(algorithm.max_cost());
        if self.post_paid && units.is_some_and(|units| units > most_reported) {
            let name = algorithm.name();
            problems
                .add("limit", format!("must be 0 to {most_reported} for {name} with post_paid"));
        }
        let is_log = algorithm == Algorithm::SlidingWindowLog;
        let most = if is_log { 0 } else { units.unwrap_or(Limit::MAX_UNITS) };
        let is_counted = coupling == Coupling::EachAlone && algorithm == Algorithm::FixedWindow;
        if max_debt.is_some() && (self.unlimited || !(self.post_paid || is_counted)) {
            let beside =
                "only with post_paid: true, or for a fixed window with envoy.count-refused";
            problems.add("max-debt", beside);
        } else if max_debt.is_some_and(|units| units > most) {
            let why = if is_log { " for sliding-window-log, which keeps no debt" } else { "" };
            problems.add("max-debt", format!("must be 0 to {most}{why}"));
        }
        max_debt
    }
}
