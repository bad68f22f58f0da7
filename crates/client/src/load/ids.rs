//! User ids of requests, and their distribution.
//!
//! The id of a request depends only on the seed and the number of the request, not on threads and
//! timing. Two runs with the same seed have the same sequence of ids.

use std::fmt;
use std::str::FromStr;

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

/// The ids, created before the load starts.
#[derive(Debug)]
pub(super) struct Ids {
    names: Box<[Box<str>]>,
    /// For Zipf: the cumulative share of requests of the ids up to each rank.
    up_to: Box<[f64]>,
    seed: u64,
}

impl Ids {
    /// Creates `count` ids, at least one.
    pub(super) fn new(count: u32, distribution: Distribution, seed: u64) -> Self {
        let up_to = match distribution {
            Distribution::Uniform => Box::default(),
            Distribution::Zipf(exponent) => shares_up_to(count, exponent),
        };
        let names = (0..count).map(|id| format!("user-{id}").into_boxed_str()).collect();
        Self { names, up_to, seed }
    }

    /// Returns the id of the request with this number.
    pub(super) fn for_request(&self, request: u64) -> &str {
        let random = splitmix(self.seed, request);
        let index = if self.up_to.is_empty() {
            below(random, self.names.len())
        } else {
            let share = fraction(random);
            // The last share may be slightly below 1 because of rounding.
            self.up_to.partition_point(|up_to| *up_to <= share).min(self.names.len() - 1)
        };
        &self.names[index]
    }
}

fn shares_up_to(count: u32, exponent: f64) -> Box<[f64]> {
    let mut sum = 0.0;
    let mut up_to: Box<[f64]> = (1..=count)
        .map(|rank| {
            sum += f64::from(rank).powf(-exponent);
            sum
        })
        .collect();
    up_to.iter_mut().for_each(|share| *share /= sum);
    up_to
}

/// Returns element `index` of the pseudorandom sequence of `seed`.
///
/// **Source:** Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014, with the
/// constants of `SplitMix64`.
fn splitmix(seed: u64, index: u64) -> u64 {
    let gamma = 0x9e37_79b9_7f4a_7c15_u64;
    let z = mix(seed).wrapping_add(index.wrapping_add(1).wrapping_mul(gamma));
    mix(z)
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Scales a random number to less than `bound`.
fn below(random: u64, bound: usize) -> usize {
    let scaled = (u128::from(random) * bound as u128) >> 64;
    usize::try_from(scaled).expect("less than the bound")
}

/// Scales a random number to less than 1.
fn fraction(random: u64) -> f64 {
    let high = u32::try_from(random >> 32).expect("32 bits");
    f64::from(high) / 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn counts(ids: &Ids, requests: u64) -> HashMap<&str, u32> {
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
            (0..50).map(|request| ids.for_request(request).to_owned()).collect::<Vec<_>>()
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
