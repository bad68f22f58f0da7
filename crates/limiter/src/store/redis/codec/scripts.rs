//! The Lua scripts. Each call of a script defines all its functions anew, so the shortest
//! sufficient script is used: for plain requests of one algorithm, for all requests of one
//! algorithm, or for everything, each of the last two with or without request ids. A plain request
//! is a single hit that takes or peeks, without debt and without a request id.

use deadpool_redis::redis;

use super::request::{HIT_FIELDS, REFUND_FIELDS, ScriptRequest};
use crate::algorithm::Algorithm;

const PRELUDE: &str = include_str!("../../../../lua/prelude.lua");
const COUPLED: &str = include_str!("../../../../lua/coupled.lua");
const IDEMPOTENCY: &str = include_str!("../../../../lua/idempotency.lua");
const CHECK: &str = include_str!("../../../../lua/check.lua");

/// Start of the part of a file that plain hits do not need.
const COUPLED_PART: &str = "\n--@coupled\n";

/// Returns the Lua twin of an algorithm.
const fn twin(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => include_str!("../../../../lua/fixed_window.lua"),
        Algorithm::SlidingWindowLog => include_str!("../../../../lua/sliding_window_log.lua"),
        Algorithm::SlidingWindowCounter => {
            include_str!("../../../../lua/sliding_window_counter.lua")
        }
        Algorithm::TokenBucket => include_str!("../../../../lua/token_bucket.lua"),
        Algorithm::LeakyBucket => include_str!("../../../../lua/leaky_bucket.lua"),
        Algorithm::Gcra => include_str!("../../../../lua/gcra.lua"),
    }
}

/// All scripts of the store.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// For plain requests of one algorithm, in the order of [`Algorithm::ALL`].
    plain: Vec<Script>,
    /// For all requests of one algorithm without request ids, in the same order.
    single: Vec<Script>,
    joined: Script,
    /// As `single`, for requests with request ids.
    single_once: Vec<Script>,
    joined_once: Script,
}

/// Text and hash of a script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
}

/// Requests that a script can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    /// Plain requests: a single hit that takes or peeks, without debt.
    Plain,
    /// All requests without request ids.
    All,
    /// All requests, with and without request ids.
    Once,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        let of_each = |serves| Algorithm::ALL.iter().map(move |one| Script::new(&[*one], serves));
        Self {
            plain: of_each(Serves::Plain).collect(),
            single: of_each(Serves::All).collect(),
            joined: Script::new(Algorithm::ALL, Serves::All),
            single_once: of_each(Serves::Once).collect(),
            joined_once: Script::new(Algorithm::ALL, Serves::Once),
        }
    }

    /// Returns the shortest script that can decide `requests`.
    pub(crate) fn script_for(&self, requests: &[ScriptRequest]) -> &Script {
        let algorithm = requests.first().and_then(|request| request.algorithm);
        let has_ids = requests.iter().any(|request| request.purpose.is_some());
        match algorithm {
            Some(one) if requests.iter().all(|other| other.algorithm == Some(one)) => {
                let is_plain = requests.iter().all(|request| request.plain_cost.is_some());
                let of_each = match (is_plain, has_ids) {
                    (true, _) => &self.plain,
                    (false, false) => &self.single,
                    (false, true) => &self.single_once,
                };
                &of_each[one as usize]
            }
            _ if has_ids => &self.joined_once,
            _ => &self.joined,
        }
    }
}

impl Script {
    fn new(algorithms: &[Algorithm], serves: Serves) -> Self {
        let mut text = String::from(part(PRELUDE, serves));
        for algorithm in algorithms {
            // In its own scope, because twins use the same function names.
            text.push_str("\ndo\n");
            text.push_str(part(twin(*algorithm), serves));
            text.push_str("\nend\n");
        }
        if serves != Serves::Plain {
            text.push_str(COUPLED);
        }
        if serves == Serves::Once {
            text.push_str(IDEMPOTENCY);
        }
        text.push_str(&with_fields(CHECK));
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// Returns the part of a file that the requests need.
fn part(file: &str, serves: Serves) -> &str {
    match serves {
        Serves::Plain => file.split(COUPLED_PART).next().unwrap_or_default(),
        Serves::All | Serves::Once => file,
    }
}

/// Replaces each template line by one line for each field, and `HIT_FIELDS` and `REFUND_FIELDS` by
/// the number of values.
fn with_fields(check: &str) -> String {
    let mut text = String::with_capacity(2 * check.len());
    for line in check.lines() {
        // The algorithm precedes the other fields of a hit.
        let templates = [("--@hit ", HIT_FIELDS, 2), ("--@refund ", REFUND_FIELDS, 1)];
        let of_all = templates.into_iter().find_map(|(mark, fields, first)| {
            let (indent, template) = line.split_once(mark)?;
            Some((indent, template, fields, first))
        });
        let Some((indent, template, fields, first)) = of_all else {
            let line = line.replace("HIT_FIELDS", &(HIT_FIELDS.len() + 1).to_string());
            let line = line.replace("REFUND_FIELDS", &REFUND_FIELDS.len().to_string());
            text.extend([line.as_str(), "\n"]);
            continue;
        };
        for (position, field) in (first..).zip(fields) {
            let line = template.replace("FIELD", field);
            let line = line.replace("POSITION", &usize::to_string(&position));
            text.extend([indent, &line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fields that the header of `lua/check.lua` documents: position and name.
    fn described() -> Vec<(usize, &'static str)> {
        let field = |line: &'static str| {
            let mut words = line.strip_prefix("--      +")?.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?))
        };
        CHECK.lines().filter_map(field).collect()
    }

    #[test]
    fn both_sides_have_the_same_fields_in_the_same_order() {
        let fields = ["algorithm"].iter().chain(HIT_FIELDS).chain(REFUND_FIELDS);
        let fields: Vec<(usize, &str)> =
            fields.enumerate().map(|(index, name)| (index + 1, *name)).collect();
        assert_eq!(described(), fields);
        let script = Script::new(&[Algorithm::Gcra], Serves::Plain).text;
        let (_, constructor) =
            script.split_once("    local hit = {\n").expect("the table of a hit");
        let (constructor, _) = constructor.split_once("\n    }\n").expect("its end");
        for (position, name) in &fields[1..=HIT_FIELDS.len()] {
            // In the constructor of the hit, which allocates all fields at once.
            let line = format!("\n      {name} = values[at + {position}],\n");
            assert!(constructor.contains(&line), "{name} of {constructor}");
        }
        assert!(script.contains(&format!("at = at + {}\n", HIT_FIELDS.len() + 1)));
        for (position, name) in REFUND_FIELDS.iter().enumerate() {
            assert!(script.contains(&format!("hit.{name} = values[at + {}]\n", position + 1)));
        }
    }

    #[test]
    fn a_plain_script_has_only_the_functions_that_plain_hits_need() {
        for algorithm in Algorithm::ALL {
            let [plain, all] =
                [Serves::Plain, Serves::All].map(|serves| Script::new(&[*algorithm], serves).text);
            for step in ["load", "decide", "commit", "save"] {
                assert!(plain.contains(&format!("local function {step}(")), "{step}");
            }
            for step in ["refund", "charge", "reset", "credit"] {
                let step = format!("local function {step}(");
                assert!(!plain.contains(&step) && all.contains(&step), "{step}");
            }
        }
    }
}
