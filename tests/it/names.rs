//! Names of definitions: no name that was replaced, and no type name twice in a crate. Names of
//! variables: none that says nothing, and no parameter that is a tuple.
//!
//! The names that were replaced are in `old_names.txt`, each with the name to use instead.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::sources::files_below;

/// Type names that may be defined several times in a crate: the state of each algorithm, and the
/// implementation of each gRPC service.
const REPEATED: [&str; 2] = ["State", "Service"];

/// Names that say nothing about a variable, a parameter or a field.
const EMPTY_NAMES: [&str; 2] = ["of", "one"];

/// Folders in which variables and parameters are checked.
const CHECKED: [&str; 12] = [
    "crates/admin/src",
    "crates/auth/src",
    "crates/cli/src",
    "crates/client/src",
    "crates/console/src",
    "crates/core/src",
    "crates/limiter/src",
    "crates/projects/src",
    "crates/proto/src",
    "crates/simulation/src",
    "crates/telemetry/src",
    "src",
];

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

/// Returns the code of a source file before its tests: comments and the insides of literals are spaces.
fn product_code(text: &str) -> String {
    let tests =
        ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test"].into_iter().filter_map(|at| text.find(at));
    let text = &text[..tests.min().unwrap_or(text.len())];
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'', 'r']) {
        let len = literal_or_comment(&rest[at..]).unwrap_or(0);
        code.push_str(&rest[..at + usize::from(len == 0)]);
        code.extend(rest[at..at + len].chars().map(|c| if c == '\n' { c } else { ' ' }));
        rest = &rest[at + len.max(1)..];
    }
    code + rest
}

/// Returns the length of the comment or the literal of text at the beginning of some code, if there is one.
fn literal_or_comment(code: &str) -> Option<usize> {
    if code.starts_with("//") {
        return Some(code.find('\n').unwrap_or(code.len()));
    }
    let hashes = code.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
    if let Some(hashes) = hashes.filter(|hashes| code[hashes + 1..].starts_with('"')) {
        let end = format!("\"{}", "#".repeat(hashes));
        let begin = hashes + 2;
        return Some(begin + code[begin..].find(&end)? + end.len());
    }
    if let Some(content) = code.strip_prefix('\'') {
        let escaped = usize::from(content.starts_with('\\'));
        let end = content.char_indices().skip(escaped + 1).find(|(_, c)| *c == '\'')?.0;
        // A lifetime has no quote at its end.
        return (end <= "\\u{10ffff}".len() && (escaped == 1 || end <= 4)).then_some(end + 2);
    }
    let mut bytes = code.bytes().enumerate();
    (bytes.next()?.1 == b'"').then_some(())?;
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Returns the variables, parameters and fields of some code whose name says nothing, by line.
fn empty_names(code: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words {
            let Some(name) = EMPTY_NAMES.into_iter().find(|name| *name == word) else { continue };
            let at = word.as_ptr() as usize - line.as_ptr() as usize;
            let before = line[..at].trim_end();
            let is_method = before.ends_with('.') && !before.ends_with("..");
            if !is_method && !before.ends_with("::") && !before.ends_with("fn") {
                found.push((index + 1, name));
            }
        }
    }
    found
}

/// Returns the functions of some code that have a tuple as a parameter.
fn functions_with_tuples(code: &str) -> Vec<String> {
    let is_tuple = |kind: &str| {
        let kind = kind.trim_start_matches('&').trim_start_matches("mut ");
        bracketed(kind, '(', ')').is_some_and(|parts| top_level(parts).count() > 1)
    };
    let code = code.replace("->", "  ");
    let functions = code.split("fn ").skip(1).filter_map(|rest| {
        let name = identifier(rest)?;
        let rest = &rest[name.len()..];
        let generics = bracketed(rest, '<', '>').map_or(0, |generics| generics.len() + 2);
        let parameters = top_level(bracketed(&rest[generics..], '(', ')')?);
        let mut types = parameters.filter_map(|parameter| parameter.split_once(": "));
        types.any(|(_, kind)| is_tuple(kind)).then(|| name.to_owned())
    });
    functions.collect()
}

/// Returns the text in the brackets with which a text begins.
fn bracketed(text: &str, open: char, close: char) -> Option<&str> {
    let inside = text.strip_prefix(open)?;
    let mut depth = 1;
    let end = inside.char_indices().find(|(_, c)| {
        depth += i32::from(*c == open) - i32::from(*c == close);
        depth == 0
    });
    Some(&inside[..end?.0])
}

/// Returns the parts between the commas of a text that are in no brackets.
fn top_level(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = text.split(move |c: char| {
        depth += match c {
            '(' | '[' | '{' | '<' => 1,
            ')' | ']' | '}' | '>' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty())
}

/// Calls `check` with each source in which variables and parameters are checked, and its code.
fn for_each_checked(mut check: impl FnMut(&Path, &str)) {
    let is_checked = |path: &PathBuf| CHECKED.iter().any(|folder| path.starts_with(folder));
    let is_test = |path: &Path| path.iter().any(|part| part == "tests.rs" || part == "tests");
    let mut count = 0;
    for path in sources().into_iter().filter(is_checked).filter(|path| !is_test(path)) {
        let text = fs::read_to_string(&path).expect("a source file");
        check(&path, &product_code(&text));
        count += 1;
    }
    assert!(count > 300, "only {count} sources were read");
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
fn names_of_variables_say_something() {
    let mut problems = Vec::new();
    for_each_checked(|path, code| {
        let found = empty_names(code).into_iter();
        problems.extend(found.map(|(line, name)| format!("{}:{line}: {name}", path.display())));
    });
    assert!(problems.is_empty(), "to be named by their meaning:\n{}", problems.join("\n"));
}

#[test]
fn no_parameter_is_a_tuple() {
    let mut problems = Vec::new();
    for_each_checked(|path, code| {
        let found = functions_with_tuples(code).into_iter();
        problems.extend(found.map(|name| format!("{}: {name}", path.display())));
    });
    assert!(problems.is_empty(), "use several parameters or a struct:\n{}", problems.join("\n"));
}

#[test]
fn planted_variables_and_tuples_are_found() {
    let text = "// one\nlet of = \"one \\\" of\nof\";\nlet x = r#\"one\"#; f(|one| ..of);\n\
                fn one(c: char) { a.one('\"', 'o'); T::of::<'a>(); }\n\
                fn f(\n    &self,\n    (a, b): (u8, &str),\n) {}\n\
                fn g<T: Fn(u8, u8) -> u8>(a: fn() -> u8, b: &mut (u8, T)) {}\n\
                fn h(a: &(dyn Error + Send), b: [(u8, u8); 2], c: impl Fn((u8, u8))) -> (u8, u8) {}\n\
                #[cfg(test)]\nmod tests { fn t(of: (u8, u8)) {} }\n";
    let code = product_code(text);
    let found = [(2, "of"), (4, "one"), (4, "of")];
    assert_eq!(empty_names(&code), found, "{code}");
    assert_eq!(functions_with_tuples(&code), ["f", "g"], "{code}");
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
