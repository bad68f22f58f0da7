//! Names of definitions: no name that was replaced, and no type name twice in a crate.
//!
//! The names that were replaced are in `old_names.txt`, each with the name to use instead.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::sources::files_below;

/// Type names that may be defined several times in a crate: the state of each algorithm, and the
/// implementation of each gRPC service.
const REPEATED: [&str; 2] = ["State", "Service"];

/// Words that may stand before the keyword of a definition, in addition to `pub` and `const`.
const MODIFIERS: [&str; 5] = ["default", "async", "unsafe", "extern", "\"C\""];

/// A kind of definition, as `old_names.txt` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Type,
    Function,
    Module,
    Constant,
}

impl Kind {
    fn from_word(word: &str) -> Self {
        match word {
            "type" => Self::Type,
            "fn" => Self::Function,
            "mod" => Self::Module,
            "const" => Self::Constant,
            other => panic!("unknown kind {other}"),
        }
    }
}

/// A line of `old_names.txt`.
struct OldName {
    kind: Kind,
    old: &'static str,
    new: &'static str,
}

impl OldName {
    fn all() -> Vec<Self> {
        let lines = include_str!("old_names.txt").lines();
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let columns = lines.map(|line| line.split(' ').collect::<Vec<_>>());
        let read = |columns: Vec<&'static str>| {
            let [kind, old, new] = columns[..] else { panic!("not three columns: {columns:?}") };
            Self { kind: Kind::from_word(kind), old, new }
        };
        columns.map(read).collect()
    }

    fn matches(&self, kind: Kind, name: &str) -> bool {
        let is_prefix = self.kind == Kind::Constant && self.old.ends_with('_');
        kind == self.kind && (name == self.old || is_prefix && name.starts_with(self.old))
    }
}

/// Returns the kind and the name of the definition that begins on this line.
fn definition(line: &str) -> Option<(Kind, &str)> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1,
            None => after,
        };
    }
    let mut words = rest.split_whitespace();
    let mut is_constant = false;
    let kind = loop {
        match words.next()? {
            "struct" | "enum" | "trait" | "union" => break Kind::Type,
            // An indented one is an associated type.
            "type" if !line.starts_with(' ') => break Kind::Type,
            "fn" => break Kind::Function,
            "mod" => break Kind::Module,
            "static" => break Kind::Constant,
            "const" => is_constant = true,
            word if MODIFIERS.contains(&word) => {}
            word if is_constant => return Some((Kind::Constant, identifier(word)?)),
            _ => return None,
        }
    };
    Some((kind, identifier(words.next()?)?))
}

/// Returns the identifier at the beginning of a text.
fn identifier(text: &str) -> Option<&str> {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    Some(&text[..end.unwrap_or(text.len())]).filter(|name| !name.is_empty())
}

/// Returns `true` if a name begins with the number of a row, such as `f13_` or `gs_01_`.
fn begins_with_a_number(name: &str) -> bool {
    let (letters, rest) = name.split_at(name.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(0));
    let digits = rest.strip_prefix('_').unwrap_or(rest);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    (1..=2).contains(&letters.len()) && end == 2 && digits[end..].starts_with('_')
}

/// Returns what is wrong with the definitions of a source file, by line.
fn old_names(text: &str) -> Vec<(usize, String)> {
    let old_names = OldName::all();
    let problem = |line: &str| {
        let (kind, name) = definition(line)?;
        if kind == Kind::Function && begins_with_a_number(name) {
            return Some(format!("{name} begins with a number"));
        }
        let old = old_names.iter().find(|old| old.matches(kind, name))?;
        Some(format!("{name} is an old name, the new one is {}", old.new))
    };
    let lines = text.lines().enumerate();
    lines.filter_map(|(index, line)| Some((index + 1, problem(line)?))).collect()
}

/// The sources of the project, with their paths from its root.
fn sources() -> Vec<PathBuf> {
    let folders = ["src", "crates", "tests", "benches", "examples", "fuzz"];
    let folders = folders.into_iter().filter(|folder| Path::new(folder).exists());
    folders.flat_map(|folder| files_below(folder, "rs")).collect()
}

/// Returns the part of a source's path that names its crate: `crates/core/src`, `tests/it`,
/// `examples/picture.rs`.
fn crate_of(path: &Path) -> PathBuf {
    let mut parts = path.iter();
    let mut found = PathBuf::new();
    for part in parts.by_ref() {
        found.push(part);
        if part == "src" {
            return found;
        }
        if ["tests", "benches", "examples", "fuzz_targets"].iter().any(|name| part == *name) {
            found.extend(parts.next());
            return found;
        }
    }
    found
}

#[test]
fn definitions_have_no_old_names() {
    let mut problems = Vec::new();
    let mut definitions = 0;
    for path in sources() {
        let text = fs::read_to_string(&path).expect("a source file");
        definitions += text.lines().filter_map(definition).count();
        for (line, problem) in old_names(&text) {
            problems.push(format!("{}:{line}: {problem}", path.display()));
        }
    }
    assert!(problems.is_empty(), "see tests/it/old_names.txt:\n{}", problems.join("\n"));
    assert!(definitions > 3_000, "only {definitions} definitions were read");
}

#[test]
fn type_names_are_defined_once_in_each_crate() {
    let mut places: BTreeMap<(PathBuf, String), Vec<String>> = BTreeMap::new();
    for path in sources() {
        let stands_in =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("no_"));
        let text = fs::read_to_string(&path).expect("a source file");
        for (index, line) in text.lines().enumerate() {
            let Some((Kind::Type, name)) = definition(line) else { continue };
            // A build without a feature has one of the two.
            if stands_in {
                continue;
            }
            let place = format!("{}:{}", path.display(), index + 1);
            places.entry((crate_of(&path), name.to_owned())).or_default().push(place);
        }
    }
    let repeated = places
        .into_iter()
        .filter(|((_, name), places)| places.len() > 1 && !REPEATED.contains(&name.as_str()));
    let repeated: Vec<String> =
        repeated.map(|((_, name), places)| format!("{name}: {}", places.join(", "))).collect();
    assert!(repeated.is_empty(), "defined several times in a crate:\n{}", repeated.join("\n"));
}

#[test]
fn definitions_are_recognized_behind_modifiers() {
    for (line, expected) in [
        ("struct Hall {", Some((Kind::Type, "Hall"))),
        ("    pub(super) enum Hall<'a> {", Some((Kind::Type, "Hall"))),
        ("pub(in crate::server) trait Hall: Send {", Some((Kind::Type, "Hall"))),
        ("type Hall = u8;", Some((Kind::Type, "Hall"))),
        ("    type Error = Status;", None),
        ("    pub(crate) const fn of() -> Self {", Some((Kind::Function, "of"))),
        ("pub async unsafe extern \"C\" fn tell(", Some((Kind::Function, "tell"))),
        ("    const MOST: usize = 1;", Some((Kind::Constant, "MOST"))),
        ("pub static PATIENCE: u8 = 1;", Some((Kind::Constant, "PATIENCE"))),
        ("pub mod seed;", Some((Kind::Module, "seed"))),
        ("/// struct Hall", None),
        ("    let ask = type_of(fn_name);", None),
        ("    structure.push(1);", None),
        ("", None),
    ] {
        assert_eq!(definition(line), expected, "{line}");
    }
}

#[test]
fn planted_old_names_are_found() {
    let text = "pub(crate) struct Hall;\n\nfn f13_of() {}\nimpl X {\n    const MOST_CALLS: u8 = 1;\n\
                \x20   fn give_back() {}\n    fn of_minutes() {}\n}\nasync fn gs_01_numbers() {}\n";
    let found: Vec<usize> = old_names(text).into_iter().map(|(line, _)| line).collect();
    assert_eq!(found, [1, 3, 5, 6, 9]);
}
