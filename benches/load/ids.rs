//! User ids of requests, and their distribution.
//!
//! The id of a request depends only on the number of the request, not on threads and timing.

use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

/// The distribution of ids over requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distribution {
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

/// The ids of requests.
#[derive(Debug)]
pub(super) struct Ids {
    count: u32,
    /// `None`: uniform.
    zipf: Option<Zipf<f64>>,
}

impl Ids {
    /// Returns `count` ids, at least one.
    pub(super) fn new(count: u32, distribution: Distribution) -> Self {
        let zipf = match distribution {
            Distribution::Uniform => None,
            Distribution::Zipf(exponent) => Some(
                Zipf::new(f64::from(count), exponent).expect("one id or more, exponent above 0"),
            ),
        };
        Self { count, zipf }
    }

    /// Returns the id of the request with this number.
    pub(super) fn for_request(&self, request: u64) -> String {
        let mut random = SmallRng::seed_from_u64(request);
        match &self.zipf {
            None => format!("user-{}", random.random_range(0..self.count)),
            Some(zipf) => format!("user-{}", zipf.sample(&mut random) - 1.0),
        }
    }
}
