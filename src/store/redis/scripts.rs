//! The Lua scripts: one for each algorithm alone, one with all of them.

use deadpool_redis::redis;

use super::question::Question;
use crate::algorithm::Algorithm;

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");
const CHECK: &str = include_str!("../../../lua/check.lua");

/// Every script that this store sends.
#[derive(Debug)]
pub(super) struct Scripts {
    /// In the order of [`Algorithm::ALL`]. Short scripts are quick: each call makes its functions.
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
            single: Algorithm::ALL.iter().map(|algorithm| Script::of(&[*algorithm])).collect(),
            joined: Script::of(Algorithm::ALL),
        }
    }

    /// The shortest script that can answer `questions`.
    pub(super) fn script_for(&self, questions: &[Question]) -> &Script {
        let algorithm = questions.first().and_then(Question::algorithm);
        match algorithm {
            Some(one) if questions.iter().all(|other| other.algorithm() == Some(one)) => {
                &self.single[one as usize]
            }
            _ => &self.joined,
        }
    }
}

impl Script {
    fn of(algorithms: &[Algorithm]) -> Self {
        let mut text = String::from(PRELUDE);
        for algorithm in algorithms {
            // A scope of its own: the twins share the names of their functions.
            text.push_str("\ndo\n");
            text.push_str(algorithm.lua());
            text.push_str("\nend\n");
        }
        text.push_str(CHECK);
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}
