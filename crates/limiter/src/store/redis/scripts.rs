//! The Lua scripts. A call makes all functions of its script, so the shortest that serves is sent: for
//! plain hits of one algorithm, for anything of one algorithm, or for everything.

use deadpool_redis::redis;

use super::question::Question;
use crate::algorithm::Algorithm;

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");
const COUPLED: &str = include_str!("../../../lua/coupled.lua");
const CHECK: &str = include_str!("../../../lua/check.lua");

/// The Lua twin of an algorithm.
const fn twin(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => include_str!("../../../lua/fixed_window.lua"),
        Algorithm::SlidingWindowLog => include_str!("../../../lua/sliding_window_log.lua"),
        Algorithm::SlidingWindowCounter => include_str!("../../../lua/sliding_window_counter.lua"),
        Algorithm::TokenBucket => include_str!("../../../lua/token_bucket.lua"),
        Algorithm::LeakyBucket => include_str!("../../../lua/leaky_bucket.lua"),
        Algorithm::Gcra => include_str!("../../../lua/gcra.lua"),
    }
}

/// Every script that this store sends.
#[derive(Debug)]
pub(super) struct Scripts {
    /// For requests of one hit that takes or looks, in the order of [`Algorithm::ALL`].
    plain: Vec<Script>,
    /// For all requests of one algorithm, in the same order.
    single: Vec<Script>,
    joined: Script,
}

/// A text and the hash under which Redis remembers it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            plain: Algorithm::ALL.iter().map(|one| Script::of(&[*one], "")).collect(),
            single: Algorithm::ALL.iter().map(|one| Script::of(&[*one], COUPLED)).collect(),
            joined: Script::of(Algorithm::ALL, COUPLED),
        }
    }

    /// The shortest script that can answer `questions`.
    pub(super) fn script_for(&self, questions: &[Question]) -> &Script {
        let algorithm = questions.first().and_then(Question::algorithm);
        match algorithm {
            Some(one) if questions.iter().all(|other| other.algorithm() == Some(one)) => {
                let is_plain = questions.iter().all(Question::is_plain);
                &(if is_plain { &self.plain } else { &self.single })[one as usize]
            }
            _ => &self.joined,
        }
    }
}

impl Script {
    fn of(algorithms: &[Algorithm], coupled: &str) -> Self {
        let mut text = String::from(PRELUDE);
        for algorithm in algorithms {
            // A scope of its own: the twins share the names of their functions.
            text.push_str("\ndo\n");
            text.push_str(twin(*algorithm));
            text.push_str("\nend\n");
        }
        text.push_str(coupled);
        text.push_str(CHECK);
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}
