//! As much of Markdown as the documentation needs: fenced blocks, headings, links and code spans.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no documentation of this project.
const SKIPPED_FOLDERS: [&str; 6] = ["target", "node_modules", ".git", ".venv", "book", "corpus"];

/// A Markdown file of the repository.
#[derive(Debug)]
pub(super) struct Document {
    /// Its path below the root of the repository.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// A fenced block.
#[derive(Debug)]
pub(super) struct Block {
    /// Number of the line of its fence.
    pub(super) line: usize,
    pub(super) language: String,
    options: HashMap<String, String>,
    pub(super) text: String,
}

impl Block {
    /// Returns the value of an option of the fence, such as `notrun`.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }
}

/// The root of the repository.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every Markdown file of the repository.
pub(super) fn documents() -> Vec<Document> {
    documents_below("")
}

/// Returns README and the pages of the book.
pub(super) fn readme_and_book() -> Vec<Document> {
    let mut pages = vec![Document::read(PathBuf::from("README.md"))];
    pages.extend(documents_below("docs"));
    assert!(pages.len() > 20, "the book has only {} pages", pages.len());
    pages
}

fn documents_below(folder: &str) -> Vec<Document> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder of the project") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name in UTF-8");
            let path = folder.join(&name);
            if entry.file_type().expect("a type").is_dir() {
                if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(Document::read(path));
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

impl Document {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(root().join(&path)).expect("a file in UTF-8");
        Self { path, text }
    }

    /// Returns the fenced blocks in their order.
    pub(super) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (index, line) in self.text.lines().enumerate() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(info), None) => {
                    let (language, options) = parse_info(info);
                    let (line, text) = (index + 1, String::new());
                    open = Some(Block { line, language, options, text });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block without an end", self.path.display());
        blocks
    }

    /// Returns the lines outside of fenced blocks, with their numbers.
    pub(super) fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut is_block = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_block ^= is_fence;
            (!is_block && !is_fence).then_some((index + 1, line))
        })
    }

    /// Returns the anchors of the headings, by the rules that GitHub and mdBook share.
    pub(super) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        let headings = self.prose().filter_map(|(_, line)| {
            let title = line.trim_start_matches('#');
            (title.len() < line.len()).then(|| title.strip_prefix(' '))?
        });
        for heading in headings {
            let anchor = anchor(heading);
            let repeated = (1..).map(|number| format!("{anchor}-{number}"));
            let mut candidates = std::iter::once(anchor.clone()).chain(repeated);
            anchors.extend(candidates.find(|candidate| !anchors.contains(candidate)));
        }
        anchors
    }
}

/// Returns the anchor of a heading: lower case; letters, digits, `-` and `_` stay, a space becomes
/// `-`, anything else goes.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|char| match char {
        ' ' => Some('-'),
        '-' | '_' => Some(char),
        _ => char.is_alphanumeric().then_some(char),
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Returns the code spans of a line.
pub(super) fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the line without its code spans.
pub(super) fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Splits the info string of a fence into its language and options: `console,needs=grpcurl`. The value
/// of `notrun` is the rest of the string, commas included.
fn parse_info(info: &str) -> (String, HashMap<String, String>) {
    let (language, mut rest) = info.split_once(',').unwrap_or((info, ""));
    let mut options = HashMap::new();
    while !rest.is_empty() {
        let (option, others) = match rest.split_once(',') {
            Some(both) if !rest.starts_with("notrun=") => both,
            _ => (rest, ""),
        };
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        options.insert(name.to_owned(), value.to_owned());
        rest = others;
    }
    (language.trim().to_owned(), options)
}

#[test]
fn fences_have_a_language_and_options() {
    let (language, options) = parse_info("console,needs=grpcurl,notrun=first, second=third");
    assert_eq!(language, "console");
    assert_eq!(options["needs"], "grpcurl");
    assert_eq!(options["notrun"], "first, second=third");
    assert_eq!(parse_info("yaml"), ("yaml".to_owned(), HashMap::new()));
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# The `deny cache`: a & b\n## Same\n```\n# no heading\n```\n## Same\n#no heading\n";
    let document = Document { path: PathBuf::new(), text: text.to_owned() };
    assert_eq!(document.anchors(), ["the-deny-cache-a--b", "same", "same-1"]);
}
