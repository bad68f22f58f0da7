//! The Lua scripts for decisions, at most [`ScriptId::COUNT`]. Each call of a script defines its functions
//! anew, so there are three kinds: for plain requests, for plain requests with overridable hits, and for all
//! requests; each for one algorithm, or for several. Plain requests: see [`ScriptId::needed`].

use std::collections::HashMap;
use std::sync::OnceLock;

use deadpool_redis::redis;

use super::{HIT_FIELDS, REFUND_FIELDS, is_plain};
use crate::algorithm::{Algorithm, Window};
use crate::operation::{StoreHit, StoreRequest};

const PRELUDE: &str = include_str!("../../../../lua/prelude.lua");
const PLAIN: &str = include_str!("../../../../lua/plain.lua");
const COUPLED: &str = include_str!("../../../../lua/coupled.lua");
const IDEMPOTENCY: &str = include_str!("../../../../lua/idempotency.lua");
const HOLDS: &str = include_str!("../../../../lua/holds.lua");
const CONTROL: &str = include_str!("../../../../lua/control.lua");
const ON_CHANGE: &str = include_str!("../../../../lua/on_change.lua");
const CHECK: &str = include_str!("../../../../lua/check.lua");
const BUDGETS: &str = include_str!("../../../../lua/budgets.lua");

/// Start of the part of a file that plain requests do not need. That of an algorithm alone in a script is defined
/// with `coupled.lua`.
const COUPLED_PART: &str = "\n--@coupled\n";

/// Between the part of a file that each call runs and the part in the function `rest`; in `check.lua`, which
/// ends the script, the other way round.
const REST_PART: &str = "\n--@rest\n";

/// Around lines that only some scripts have: those for overridable hits, those for all requests, and the one for
/// all requests by any algorithm.
const OVERRIDABLE_PART: &str = "--@control";
const FULL_PART: &str = "--@full";
const RARE_PART: &str = "--@rare";
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

/// The Lua twin of windows from the first use, and its name in scripts.
const FIRST_USE: &str = include_str!("../../../../lua/first_use.lua");
pub(super) const FIRST_USE_NAME: &str = "first_use";

/// All scripts, of all stores of the process. Each is put together when it is first needed: it has
/// tens of kilobytes, to be hashed by SHA-1.
static SCRIPTS: [OnceLock<Script>; ScriptId::COUNT] = [const { OnceLock::new() }; ScriptId::COUNT];

/// Requests that a script can decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScriptKind {
    /// Plain requests without overridable hits.
    #[default]
    Lean,
    /// Plain requests.
    Overrides,
    /// All requests.
    Full,
}

/// A script: a kind, and one algorithm or, if there is none, all of them, with windows from the first use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptId {
    kind: ScriptKind,
    algorithm: Option<Algorithm>,
}

/// Text and hash of a script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
}

/// Scripts by their indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptSet(pub(crate) u32);

impl ScriptId {
    /// Number of scripts.
    pub(crate) const COUNT: usize = 3 * (Algorithm::ALL.len() + 1);

    /// Returns the smallest script that can decide a request. Plain requests are all or nothing over takes, or
    /// looks, of limits that keep no earlier limits, nor debt unless their rule holds, and of different keys.
    pub(crate) fn needed(request: StoreRequest<'_>) -> Self {
        let mut algorithms = request.hits.iter().map(|hit| own_script(hit.algorithm, hit.window));
        let first = algorithms.next().flatten();
        let algorithm = first.filter(|first| algorithms.all(|other| other == Some(*first)));
        // They are few: the scripts of one algorithm are shorter without them.
        let is_rare = |hit: &StoreHit<'_>| hit.least().is_some() || hit.share_left().is_some();
        let algorithm = algorithm.filter(|_| !request.hits.iter().any(is_rare));
        let holds = request.hits.iter().any(|hit| hit.max_holds.is_some());
        let kind = if holds || !is_plain(request) {
            ScriptKind::Full
        } else if request.hits.iter().any(|hit| hit.overridable) {
            ScriptKind::Overrides
        } else {
            ScriptKind::Lean
        };
        Self { kind, algorithm }
    }

    /// Returns the bit of the script in a set.
    pub(crate) fn bit(self) -> u32 {
        1 << self.index()
    }

    /// Returns the text and its hash.
    pub(crate) fn script(self) -> &'static Script {
        SCRIPTS[self.index()].get_or_init(|| Script::new(self))
    }

    fn all() -> impl Iterator<Item = Self> {
        let kinds = [ScriptKind::Lean, ScriptKind::Overrides, ScriptKind::Full];
        let algorithms = Algorithm::ALL.iter().copied().map(Some).chain([None]);
        kinds
            .into_iter()
            .flat_map(move |kind| algorithms.clone().map(move |algorithm| Self { kind, algorithm }))
    }

    /// Returns the index of the script, below [`ScriptId::COUNT`].
    pub(crate) fn index(self) -> usize {
        let of_kind = self.algorithm.map_or(Algorithm::ALL.len(), |algorithm| algorithm as usize);
        self.kind as usize * (Algorithm::ALL.len() + 1) + of_kind
    }
}

/// Returns the algorithm whose own scripts can decide a hit; `None` if only those for all can: windows from the
/// first use are rare, and would lengthen the scripts of the fixed window.
pub(crate) fn own_script(algorithm: Algorithm, window: Window) -> Option<Algorithm> {
    (!window.is_from_first_use()).then_some(algorithm)
}

impl ScriptSet {
    /// Returns the scripts that requests can need by rules with these algorithms, each with whether the rule
    /// is overridable. See [`own_script`].
    pub(crate) fn for_rules(rules: impl Iterator<Item = (Option<Algorithm>, bool)>) -> Self {
        let (mut set, mut algorithms, mut kinds) = (0, 0_u32, 0_u32);
        for (algorithm, overridable) in rules {
            let plain = if overridable { ScriptKind::Overrides } else { ScriptKind::Lean };
            for kind in [plain, ScriptKind::Full] {
                set |= ScriptId { kind, algorithm }.bit();
                kinds |= 1 << kind as u32;
            }
            algorithms |= algorithm.map_or(u32::MAX, |algorithm| 1 << algorithm as u32);
        }
        let of_several = ScriptId::all()
            .filter(|id| id.algorithm.is_none() && kinds & (1 << id.kind as u32) != 0)
            .fold(0, |set, id| set | id.bit());
        Self(if algorithms.count_ones() > 1 { set | of_several } else { set })
    }

    /// Returns the scripts, lean ones first.
    pub(crate) fn iter(self) -> impl Iterator<Item = ScriptId> {
        ScriptId::all().filter(move |id| self.0 & id.bit() != 0)
    }
}

impl Script {
    fn new(id: ScriptId) -> Self {
        let window = Algorithm::FixedWindow;
        let of_file = |file| with_fields(&part(file, id));
        let (mut text, prelude) = split(&of_file(PRELUDE));
        if id.algorithm.is_none_or(|algorithm| algorithm == window) {
            text.push_str(&split(&of_file(twin(window))).0);
        }
        // Variables of a function around another are captured faster than those of the same function.
        let mut rest = format!("{prelude}\nreturn (function()\n");
        let steps = |algorithm| match split(&of_file(twin(algorithm))) {
            (_, steps) if algorithm == window => steps,
            (all, _) => all,
        };
        let mut coupled = COUPLED.to_owned();
        if let Some(algorithm) = id.algorithm {
            let steps = steps(algorithm);
            let (plain, of_coupled) = steps.split_once(COUPLED_PART).unwrap_or((&steps, ""));
            rest.push_str(plain);
            if id.kind == ScriptKind::Full {
                rest.push_str(&function("local function define_steps()", of_coupled));
                coupled.insert_str(0, "define_steps()\n");
            }
        } else {
            rest.push_str("local definitions = {}\n");
            let all = Algorithm::ALL.iter().map(|own| (own.lua_name(), steps(*own)));
            for (name, steps) in all.chain([(FIRST_USE_NAME, of_file(FIRST_USE))]) {
                rest.push_str(&function(&format!("function definitions.{name}()"), &steps));
            }
            rest.push_str(DEFINE_ALGORITHM);
        }
        rest.push_str(&part(PLAIN, id));
        let parts: &[(&str, &str)] = match id.kind {
            ScriptKind::Lean => &[],
            ScriptKind::Overrides => &[("control", CONTROL)],
            ScriptKind::Full => &[
                ("control", CONTROL),
                ("on_change", ON_CHANGE),
                ("holds", HOLDS),
                ("idempotency", IDEMPOTENCY),
                ("coupled", &coupled),
            ],
        };
        let has_rare_parts = id.kind == ScriptKind::Full && id.algorithm.is_none();
        let rare = has_rare_parts.then_some(("budgets", BUDGETS));
        let parts = parts
            .iter()
            .chain(&rare)
            .map(|(name, file)| format!("if part == '{name}' then\n{}\nend\n", part(file, id)));
        rest.push_str(&function("local function define(part)", &parts.collect::<String>()));
        let (check, calls) = split(&of_file(CHECK));
        rest.push_str(&check);
        rest.push_str("\nend)()\n");
        text.push_str(&function("local function rest()", &rest));
        text.push_str(&calls);
        Self::from_text(with_constants(&text))
    }

    /// Returns the script with this text.
    pub(crate) fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// Defines an algorithm when a request first needs it.
const DEFINE_ALGORITHM: &str = "
setmetatable(algorithms, { __index = function(_, name)
  definitions[name]()
  return rawget(algorithms, name)
end })
";

/// Returns the parts of a file before and after its mark; all of one without a mark.
fn split(file: &str) -> (String, String) {
    let (before, after) = file.split_once(REST_PART).unwrap_or((file, ""));
    (before.to_owned(), after.to_owned())
}

fn function(head: &str, body: &str) -> String {
    format!("\n{head}\n{body}\nend\n")
}

/// Returns the part of a file that a script has.
fn part(file: &str, ScriptId { kind, algorithm }: ScriptId) -> String {
    let is_full = kind == ScriptKind::Full;
    if is_full && (algorithm.is_none() || !file.contains(RARE_PART)) {
        return file.to_owned();
    }
    let plain = file.split(COUPLED_PART).next().unwrap_or_default();
    let file = if is_full { file } else { plain };
    let mut text = String::with_capacity(file.len());
    let (mut is_left_out, mut is_rare) = (false, false);
    for line in file.lines() {
        match line.trim_start() {
            RARE_PART => (is_left_out, is_rare) = (true, true),
            PART_END if is_rare => (is_left_out, is_rare) = (false, false),
            // Comments of scripts that have all of these parts.
            OVERRIDABLE_PART | FULL_PART | PART_END if is_full => text.extend([line, "\n"]),
            OVERRIDABLE_PART => is_left_out = kind == ScriptKind::Lean,
            FULL_PART => is_left_out = true,
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

/// Replaces the constants of a script, which lines such as `local A, B = 1, 2` declare, by their numbers: each local
/// that functions capture takes 500 instructions of a call.
fn with_constants(script: &str) -> String {
    let is_delimiter = |character: char| !character.is_ascii_alphanumeric() && character != '_';
    let mut constants: HashMap<&str, &str> = HashMap::new();
    let mut text = String::with_capacity(script.len());
    for line in script.lines() {
        if let Some((names, numbers)) = constants_of(line) {
            constants.extend(names.split(", ").zip(numbers.split(", ")));
            continue;
        }
        for part in line.split_inclusive(is_delimiter) {
            let word = part.trim_end_matches(is_delimiter);
            text.extend([*constants.get(word).unwrap_or(&word), &part[word.len()..]]);
        }
        text.push('\n');
    }
    text
}

/// Returns the names and the numbers of the constants that a line declares.
fn constants_of(line: &str) -> Option<(&str, &str)> {
    let (names, numbers) = line.strip_prefix("local ")?.split_once(" = ")?;
    let is_name = |character: char| character.is_ascii_uppercase() || "_, ".contains(character);
    let is_number = |character: char| character.is_ascii_digit() || ", ".contains(character);
    (names.chars().all(is_name) && numbers.chars().all(is_number)).then_some((names, numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: ScriptKind, algorithm: Algorithm) -> String {
        Script::new(ScriptId { kind, algorithm: Some(algorithm) }).text
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
        let script = text(ScriptKind::Lean, Algorithm::Gcra);
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
    fn constants_are_numbers() {
        let script = "local A, B_C = 1, 20\nlocal x = (A+B_C) .. 'a'\nlocal A = 3\nreturn A, x.AB";
        assert_eq!(with_constants(script), "local x = (1+20) .. 'a'\nreturn 3, x.AB\n");
        for id in ScriptSet((1 << ScriptId::COUNT) - 1).iter() {
            let script = Script::new(id);
            assert_eq!(script.text.lines().find_map(constants_of), None, "{id:?}");
        }
    }

    #[test]
    fn every_script_has_its_place() {
        let all = ScriptSet((1 << ScriptId::COUNT) - 1);
        assert!(all.iter().map(ScriptId::index).eq(0..ScriptId::COUNT));
    }

    #[test]
    fn rare_parts_are_in_one_script() {
        for id in ScriptId::all() {
            let has_them = id == ScriptId { kind: ScriptKind::Full, algorithm: None };
            let text = Script::new(id).text;
            for part in ["budgets", "only_looks", "at_least", RARE_PART] {
                assert_eq!(text.contains(part), has_them, "{part} in {id:?}");
            }
        }
    }

    #[test]
    fn rules_need_the_scripts_of_their_algorithms() {
        let needed = |rules: &[(Option<Algorithm>, bool)]| {
            let set = ScriptSet::for_rules(rules.iter().copied());
            set.iter().map(|id| (id.kind, id.algorithm)).collect::<Vec<_>>()
        };
        let (lean, overrides, full) = (ScriptKind::Lean, ScriptKind::Overrides, ScriptKind::Full);
        let (window, log) = (Algorithm::FixedWindow, Algorithm::SlidingWindowLog);
        assert_eq!(needed(&[]), []);
        let (window, log) = (Some(window), Some(log));
        let one = [(window, false), (window, false)];
        assert_eq!(needed(&one), [(lean, window), (full, window)]);
        // Of windows from the first use, which the scripts of the fixed window don't have.
        assert_eq!(needed(&[(None, false)]), [(lean, None), (full, None)]);
        assert!(!text(full, Algorithm::FixedWindow).contains(FIRST_USE_NAME));
        let both = [(lean, window), (lean, None), (overrides, log), (overrides, None)];
        let of_full = [(full, window), (full, log), (full, None)];
        assert_eq!(needed(&[(window, false), (log, true)]), [&both[..], &of_full].concat());
    }

    #[test]
    fn a_plain_script_has_only_the_functions_that_plain_requests_need() {
        for algorithm in Algorithm::RATES {
            let plain = text(ScriptKind::Lean, *algorithm);
            let all = text(ScriptKind::Full, *algorithm);
            for field in ["hit.control", "hit.policy", "hit.holds", "hit.ends_key"] {
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
