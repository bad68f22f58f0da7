//! User ids of requests, and their distribution.
//!
//! The id of a request depends only on the seed and the number of the request, not on threads and
//! timing. Two runs with the same seed have the same sequence of ids.

use std::fmt;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

/// The distribution of ids over requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All ids have the same number of requests.
    Uniform,
    /// The id of rank k has requests in proportion to 1 / k^exponent. The exponent is above 0 and
    /// at most 10.
    Zipf(f64),
}

/// Parses `uniform`, `zipf` (exponent 1) or `zipf:EXPONENT`.
impl FromStr for Distribution {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let exponent = match text.split_once(':') {
            None if text == "uniform" => return Ok(Self::Uniform),
            None if text == "zipf" => Some(1.0),
            Some(("zipf", exponent)) => exponent.parse().ok(),
            _ => None,
        };
        let exponent = exponent.filter(|exponent: &f64| *exponent > 0.0 && *exponent <= 10.0);
        let invalid = "must be uniform, zipf or zipf:EXPONENT with an exponent above 0, up to 10";
        exponent.map(Self::Zipf).ok_or(invalid)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => write!(f, "uniform"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

/// The ids of requests.
#[derive(Debug)]
pub(super) struct Ids {
    count: u32,
    /// `None`: uniform.
    zipf: Option<Zipf<f64>>,
    seed: u64,
}

impl Ids {
    /// Returns `count` ids, at least one.
    pub(super) fn new(count: u32, distribution: Distribution, seed: u64) -> Self {
        let zipf = match distribution {
            Distribution::Uniform => None,
            Distribution::Zipf(exponent) => Some(
                Zipf::new(f64::from(count), exponent).expect("one id or more, exponent above 0"),
            ),
        };
        Self { count, zipf, seed }
    }

    /// Returns the id of the request with this number.
    pub(super) fn for_request(&self, request: u64) -> String {
        // Seeds and numbers below 2^32 have a generator each.
        let mut random = SmallRng::seed_from_u64(self.seed.rotate_left(32) ^ request);
        match &self.zipf {
            None => format!("user-{}", random.random_range(0..self.count)),
            Some(zipf) => format!("user-{}", zipf.sample(&mut random) - 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn counts(ids: &Ids, requests: u64) -> HashMap<String, u32> {
        let mut counts = HashMap::new();
        (0..requests).for_each(|request| *counts.entry(ids.for_request(request)).or_default() += 1);
        counts
    }

    #[test]
    fn uniform_has_as_many_requests_for_each_id() {
        let ids = Ids::new(10, Distribution::Uniform, 7);
        let counts = counts(&ids, 100_000);
        assert_eq!(counts.len(), 10);
        assert!(counts.values().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipf_has_requests_in_proportion_to_weights() {
        let ids = Ids::new(4, Distribution::Zipf(1.0), 7);
        let counts = counts(&ids, 100_000);
        // 1 + 1/2 + 1/3 + 1/4 = 25/12.
        for (id, expected) in [("user-0", 48_000), ("user-1", 24_000), ("user-2", 16_000)] {
            assert!(counts[id].abs_diff(expected) < 1_000, "{counts:?}");
        }
    }

    #[test]
    fn sequence_depends_on_the_seed() {
        let sequence = |seed| {
            let ids = Ids::new(1_000, Distribution::Uniform, seed);
            (0..50).map(|request| ids.for_request(request)).collect::<Vec<_>>()
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        assert_ne!(sequence(0)[1..], sequence(1)[..49]);
    }

    #[test]
    fn single_id_has_all_requests() {
        for distribution in [Distribution::Uniform, Distribution::Zipf(10.0)] {
            assert_eq!(counts(&Ids::new(1, distribution, 0), 100)["user-0"], 100);
        }
    }

    #[test]
    fn distribution_is_parsed_from_its_displayed_form() {
        for text in ["uniform", "zipf:1", "zipf:0.99", "zipf:10"] {
            assert_eq!(text.parse::<Distribution>().expect(text).to_string(), text);
        }
        assert_eq!("zipf".parse(), Ok(Distribution::Zipf(1.0)));
        for text in ["", "Zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "zipf:11", "uniform:1"] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
