//! The Lua scripts. Each call of a script defines all its functions anew, so the shortest
//! sufficient script is used: of one algorithm, of two, or of all; for plain requests, for all
//! requests, or for those with request ids, too; each with or without overridable hits and hits that
//! keep their limits. Plain requests: see [`ScriptRequest::is_plain`].

use std::sync::OnceLock;

use deadpool_redis::redis;

use super::request::{HIT_FIELDS, REFUND_FIELDS, ScriptRequest};
use crate::algorithm::Algorithm;

const PRELUDE: &str = include_str!("../../../../lua/prelude.lua");
const PLAIN: &str = include_str!("../../../../lua/plain.lua");
const COUPLED: &str = include_str!("../../../../lua/coupled.lua");
const IDEMPOTENCY: &str = include_str!("../../../../lua/idempotency.lua");
const HOLDS: &str = include_str!("../../../../lua/holds.lua");
const CONTROL: &str = include_str!("../../../../lua/control.lua");
const ON_CHANGE: &str = include_str!("../../../../lua/on_change.lua");
const CHECK: &str = include_str!("../../../../lua/check.lua");

/// Start of the part of a file that plain requests do not need.
const COUPLED_PART: &str = "\n--@coupled\n";

/// Around lines that only some hits need: overridable ones, those that keep their limits, those whose rules
/// hold, and those in the windows of a calendar.
const OVERRIDABLE_PART: &str = "--@control";
const ON_CHANGE_PART: &str = "--@change";
const HOLD_PART: &str = "--@hold";
const CALENDAR_PART: &str = "--@calendar";
const PART_END: &str = "--@end";

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
        Algorithm::Concurrency => include_str!("../../../../lua/concurrency.lua"),
    }
}

/// All scripts, of all stores of the process. Each is put together when it is first needed: it has
/// tens of kilobytes, to be hashed by SHA-1.
///
/// By [`Serves::index`], then by [`AlgorithmSet`].
static SCRIPTS: [[OnceLock<Script>; AlgorithmSet::COUNT]; Serves::COUNT] =
    [const { [const { OnceLock::new() }; AlgorithmSet::COUNT] }; Serves::COUNT];

/// Algorithms: bit `i` is set for the one with index `i` in [`Algorithm::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AlgorithmSet(u8);

impl AlgorithmSet {
    const COUNT: usize = 1 << Algorithm::ALL.len();

    pub(crate) fn from_algorithms(algorithms: impl Iterator<Item = Algorithm>) -> Self {
        Self(algorithms.fold(0, |set, algorithm| set | 1 << algorithm as u8))
    }

    /// Returns the algorithms of a script for this set: more than two share one script, so that Redis
    /// keeps few of them.
    fn of_script(self) -> Self {
        if self.0.count_ones() > 2 {
            let all = Self::from_algorithms(Algorithm::RATES.iter().copied());
            Self(self.0 | all.0)
        } else {
            self
        }
    }

    fn contains(self, algorithm: Algorithm) -> bool {
        self.0 & (1 << algorithm as u8) != 0
    }
}

/// Text and hash of a script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
}

/// Requests that a script can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part of the scripts, or is left out")]
struct Serves {
    requests: Requests,
    /// With or without overridable hits.
    overridable: bool,
    /// With or without hits that keep their limits.
    keeps_limits: bool,
    /// With or without hits whose rules hold.
    holds: bool,
    /// With or without hits in the windows of a calendar.
    calendar: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requests {
    /// Plain requests.
    Plain,
    /// All requests without request ids.
    All,
    /// All requests, with and without request ids.
    Once,
}

impl Serves {
    /// Number of kinds: three of requests, with and without overridable hits, hits that keep their
    /// limits, hits whose rules hold, and hits in the windows of a calendar.
    const COUNT: usize = 48;

    /// Returns what is needed for these requests.
    fn needed(requests: &[ScriptRequest]) -> Self {
        let kind = if requests.iter().any(|request| request.purpose.is_some()) {
            Requests::Once
        } else if requests.iter().all(|request| request.is_plain) {
            Requests::Plain
        } else {
            Requests::All
        };
        let overridable = requests.iter().any(|request| !request.overridable.is_empty());
        let keeps_limits = requests.iter().any(|request| request.keeps_limits);
        let holds = requests.iter().any(ScriptRequest::holds);
        let calendar = requests.iter().any(|request| request.has_calendar);
        Self { requests: kind, overridable, keeps_limits, holds, calendar }
    }

    fn index(self) -> usize {
        16 * self.requests as usize
            + 8 * usize::from(self.calendar)
            + 4 * usize::from(self.holds)
            + 2 * usize::from(self.overridable)
            + usize::from(self.keeps_limits)
    }
}

/// Returns the shortest script that can decide `requests`.
pub(crate) fn script_for(requests: &[ScriptRequest]) -> &'static Script {
    let used = requests.iter().fold(0, |set, request| set | request.algorithms.0);
    let (algorithms, serves) = (AlgorithmSet(used).of_script(), Serves::needed(requests));
    let script = &SCRIPTS[serves.index()][usize::from(algorithms.0)];
    script.get_or_init(|| Script::new(algorithms, serves))
}

impl Script {
    fn new(algorithms: AlgorithmSet, serves: Serves) -> Self {
        let mut text = part(PRELUDE, serves);
        // Variables of a function around another are captured faster than those of the same function.
        text.push_str("\nreturn (function()\n");
        for algorithm in Algorithm::ALL.iter().filter(|one| algorithms.contains(**one)) {
            // In its own scope, because twins use the same function names.
            text.push_str("\ndo\n");
            text.push_str(&part(twin(*algorithm), serves));
            text.push_str("\nend\n");
        }
        if serves.overridable {
            text.push_str(&part(CONTROL, serves));
        }
        if serves.keeps_limits {
            text.push_str(&part(ON_CHANGE, serves));
        }
        text.push_str(&part(PLAIN, serves));
        if serves.holds {
            text.push_str(&part(HOLDS, serves));
        }
        if serves.requests != Requests::Plain {
            text.push_str(&part(COUPLED, serves));
        }
        if serves.requests == Requests::Once {
            text.push_str(&part(IDEMPOTENCY, serves));
        }
        text.push_str(&with_fields(&part(CHECK, serves)));
        text.push_str("\nend)()\n");
        Self::from_text(text)
    }

    /// Returns the script with this text.
    pub(crate) fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// Returns the part of a file that the requests need.
fn part(file: &str, serves: Serves) -> String {
    let file = match serves.requests {
        Requests::Plain => file.split(COUPLED_PART).next().unwrap_or_default(),
        Requests::All | Requests::Once => file,
    };
    if serves.overridable && serves.keeps_limits && serves.holds && serves.calendar {
        return file.to_owned();
    }
    let mut text = String::with_capacity(file.len());
    let mut is_left_out = false;
    for line in file.lines() {
        match line.trim_start() {
            OVERRIDABLE_PART => is_left_out = !serves.overridable,
            ON_CHANGE_PART => is_left_out = !serves.keeps_limits,
            HOLD_PART => is_left_out = !serves.holds,
            CALENDAR_PART => is_left_out = !serves.calendar,
            PART_END => is_left_out = false,
            _ if is_left_out => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
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

    const FOR_PLAIN: Serves = Serves {
        requests: Requests::Plain,
        overridable: false,
        keeps_limits: false,
        holds: false,
        calendar: false,
    };

    fn only(algorithm: Algorithm) -> AlgorithmSet {
        AlgorithmSet::from_algorithms([algorithm].into_iter())
    }

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
        let script = Script::new(only(Algorithm::Gcra), FOR_PLAIN).text;
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
    fn every_kind_of_script_has_its_place() {
        let kinds = [Requests::Plain, Requests::All, Requests::Once].into_iter();
        let kinds = kinds.flat_map(|requests| {
            (0..16).map(move |bits| {
                let flags = [8, 4, 2, 1].map(|bit| bits & bit != 0);
                let [calendar, holds, overridable, keeps_limits] = flags;
                Serves { requests, overridable, keeps_limits, holds, calendar }.index()
            })
        });
        assert!(kinds.eq(0..Serves::COUNT));
    }

    #[test]
    fn a_plain_script_has_only_the_functions_that_plain_requests_need() {
        for algorithm in Algorithm::RATES {
            let all = Serves {
                requests: Requests::All,
                overridable: true,
                keeps_limits: true,
                holds: true,
                calendar: true,
            };
            let [plain, all] =
                [FOR_PLAIN, all].map(|serves| Script::new(only(*algorithm), serves).text);
            for field in ["hit.control", "hit.policy", "hit.holds", "hit.ends_at"] {
                assert!(!plain.contains(field) && all.contains(field));
            }
            for step in ["load", "decide", "commit", "save"] {
                assert!(plain.contains(&format!("local function {step}(")), "{step}");
            }
            for step in ["refund", "charge", "reset", "credit", "convert"] {
                let step = format!("local function {step}(");
                assert!(!plain.contains(&step) && all.contains(&step), "{step}");
            }
        }
    }
}
