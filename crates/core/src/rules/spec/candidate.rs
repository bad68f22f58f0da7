//! Specifications of candidates.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::problem::Problems;
use super::rate::{self, AlgorithmNames, Rate};
use super::{Field, RateSpec};
use crate::algorithm::{Algorithm, Limit, LimitError, Window};
use crate::clock::Micros;
use crate::rules::{Candidate, Grant};

const UNITS: &str = "must be a whole number from 1 to 999999999999999";

/// A limit on trial. Fields that are unset are those of its rule; one at least must be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields, rename_all = "kebab-case"))]
pub struct CandidateSpec {
    /// Units per window: 1 to 1,000,000,000, of a fixed window to [`Limit::MAX_COUNTED`].
    #[cfg_attr(feature = "serde", serde(alias = "limit-count", alias = "limit_count"))]
    #[cfg_attr(feature = "serde", serde(alias = "max-requests", alias = "max_requests"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub limit: Field<u64>,
    /// The window: 1 ms to 366 days, in whole milliseconds.
    #[cfg_attr(feature = "serde", serde(alias = "window-seconds", alias = "window_seconds"))]
    #[cfg_attr(feature = "serde", serde(alias = "window-size", alias = "window_size"))]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub window: Field<Micros>,
    /// Units at once, for algorithms that have a burst. That of the rule is not taken over by an
    /// algorithm without one.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub burst: Field<u64>,
    /// The algorithm that decides.
    #[cfg_attr(
        feature = "serde",
        serde(alias = "use-algo", alias = "use_algo", alias = "strategy")
    )]
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub algorithm: Field<Algorithm>,
}

impl CandidateSpec {
    /// Builds the candidate of a rule that is specified by `rule` and has this rate, if it is valid.
    fn build(
        &self,
        rule: &RateSpec,
        rate: Option<Rate>,
        problems: &mut Problems,
    ) -> Option<Candidate> {
        if *self == Self::default() {
            problems.add("limit", "give limit, window, burst or algorithm");
            return None;
        }
        let algorithm =
            problems.read("algorithm", self.algorithm, AlgorithmNames(Algorithm::RATES));
        let is_units = |units: &u64| (1..=Limit::MAX_COUNTED).contains(units);
        let units = problems.check("limit", &self.limit, UNITS, is_units);
        let is_window = |window: &Micros| Limit::new(1, *window).is_ok();
        let window = problems.check("window", &self.window, LimitError::Window, is_window);
        let burst = rate::burst(self.burst, problems);
        let rate = rate?;
        let algorithm = algorithm.ok()?.unwrap_or(rate.algorithm);
        if algorithm.has_slots() {
            problems.add("algorithm", "must not be concurrency, which no request can try");
            return None;
        }
        let burst_of_rule = match rule.burst {
            Field::Set(burst) if algorithm.has_burst() => Some(burst),
            _ => None,
        };
        let units = units.ok()?.copied().unwrap_or(rate.units);
        let window = window.ok()?.copied().map_or(rate.window, Window::from);
        if window.calendar().is_some() && algorithm != Algorithm::FixedWindow {
            problems.add("algorithm", "must be fixed-window with calendar");
            return None;
        }
        let burst = burst.ok()?.or(burst_of_rule);
        match (Rate { algorithm, units, window }).grant(burst, problems)? {
            Grant::Limited(limit) => Some(Candidate { algorithm, limit }),
            Grant::Banned | Grant::Unlimited => None,
        }
    }
}

/// Builds the candidates of a rule. `rate` and `grant` are those of the rule, if they are valid.
pub(super) fn build(
    specs: &[CandidateSpec],
    rule: &RateSpec,
    (rate, grant): (Option<Rate>, Option<Grant>),
    is_post_paid: bool,
    problems: &mut Problems,
) -> Option<Vec<Candidate>> {
    if specs.len() > Candidate::MAX {
        problems.add("candidates", format!("must have at most {} entries", Candidate::MAX));
        return None;
    }
    if grant == Some(Grant::Banned) && !specs.is_empty() {
        problems.add("candidates", "requires a limit of the rule above 0");
        return None;
    }
    let mut candidates = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        let mut own = Problems::default();
        let candidate = spec.build(rule, rate, &mut own);
        if is_post_paid && candidate.is_some_and(|one| one.algorithm == Algorithm::SlidingWindowLog)
        {
            own.add("algorithm", rate::NO_DEBT);
        }
        candidates.extend(candidate);
        problems.add_below(&format!("candidates[{index}]"), own);
    }
    Some(candidates)
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;
    use crate::rules::spec::RuleSpec;

    fn read(yaml: &str) -> RuleSpec {
        serde_saphyr::from_str(yaml).expect("a specification")
    }

    #[test]
    fn unset_fields_are_those_of_the_rule() {
        let rule = "name: a\nalgorithm: gcra\nlimit: 100\nwindow: 1m\nburst: 150\ncandidates:\n\
                    - {limit: 50}\n- {window: 1h, burst: 10}\n- {algorithm: fixed}\n";
        let rule = read(rule).build().expect("a valid rule");
        let limit =
            |units, seconds| Limit::new(units, Micros::from_secs(seconds)).expect("a limit");
        let burst = |limit: Limit, units| limit.with_burst(units).expect("a burst");
        assert_eq!(
            rule.candidates,
            [
                (Algorithm::Gcra, burst(limit(50, 60), 150)),
                (Algorithm::Gcra, burst(limit(100, 3_600), 10)),
                (Algorithm::FixedWindow, limit(100, 60)),
            ]
            .map(|(algorithm, limit)| Candidate { algorithm, limit })
        );
    }

    #[test]
    fn problems_have_the_paths_of_fields() {
        let given = "{name: a, limit: 5, window: 1m, candidates: [{}, {limit: 0}, {limit: many}, \
                     {window: 0s, burst: 0, algorithm: guess}, {burst: 3, algorithm: fixed}]}";
        let problems = read(given).build().expect_err("problems");
        let fields: Vec<&str> = problems.iter().map(|problem| &*problem.field).collect();
        let expected = [
            "0].limit",
            "1].limit",
            "2].limit",
            "3].algorithm",
            "3].window",
            "3].burst",
            "4].burst",
        ];
        assert_eq!(fields, expected.map(|field| format!("candidates[{field}")));
        for given in [
            format!("{{name: a, limit: 5, window: 1m, candidates: [{}]}}", "{limit: 1},".repeat(9)),
            "{name: a, limit: 0, window: 1m, candidates: [{limit: 1}]}".to_owned(),
        ] {
            let problems = read(&given).build().expect_err("a problem");
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert_eq!(problems[0].field, "candidates");
        }
        assert!(serde_saphyr::from_str::<RuleSpec>("{candidates: [{unlimited: true}]}").is_err());
    }
}
