//! Paths to values within JSON: `user.id`, `hosts[0].name`, `"http.status".code`.

/// Bounds of a path.
const MAX_STEPS: usize = 32;

/// Why a text is no path within JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// A key has no characters.
    #[error("must have a key before and behind each point; an empty key is \"\"")]
    EmptyKey,
    /// A quotation mark is missing, or text follows one.
    #[error("must close each quotation mark, before a point, `[` or the end")]
    Quotes,
    /// An index is no number.
    #[error("must have a number between `[` and `]`")]
    Index,
    /// The path is too long.
    #[error("must have at most {MAX_STEPS} keys")]
    Length,
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(Box<[u8]>),
    Index(usize),
}

/// Splits a path into its steps.
fn steps(path: &str) -> Result<Vec<Step>, PathProblem> {
    let mut steps = Vec::new();
    let mut rest = path;
    loop {
        let (key, after) = if let Some(quoted) = rest.strip_prefix('"') {
            quoted_key(quoted)?
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end == 0 {
                return Err(PathProblem::EmptyKey);
            }
            (rest[..end].to_owned(), &rest[end..])
        };
        steps.push(Step::Key(key.into_bytes().into()));
        rest = after;
        while let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']').ok_or(PathProblem::Index)?;
            steps.push(Step::Index(index.parse().map_err(|_| PathProblem::Index)?));
            rest = after;
        }
        if steps.len() > MAX_STEPS {
            return Err(PathProblem::Length);
        }
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(steps),
            None => return Err(PathProblem::Quotes),
        }
    }
}

/// Returns a key in quotation marks, in which a backslash stands before `"` and `\`, and what is
/// behind it.
fn quoted_key(quoted: &str) -> Result<(String, &str), PathProblem> {
    let mut key = String::new();
    let mut characters = quoted.char_indices();
    loop {
        match characters.next().ok_or(PathProblem::Quotes)? {
            (at, '"') => return Ok((key, &quoted[at + 1..])),
            (_, '\\') => key.push(characters.next().ok_or(PathProblem::Quotes)?.1),
            (_, other) => key.push(other),
        }
    }
}

/// The wanted paths as a tree, so that a line is read once.
#[derive(Clone, Debug)]
pub(super) struct PathTree {
    nodes: Vec<PathNode>,
}

/// A place within JSON that has wanted values.
#[derive(Clone, Debug, Default)]
struct PathNode {
    keys: Vec<(Box<[u8]>, usize)>,
    indexes: Vec<(usize, usize)>,
    /// Numbers of the wanted fields that are the value of this place.
    wanted: Vec<usize>,
    /// Numbers of all wanted fields at this place and within it.
    below: Vec<usize>,
}

impl PathTree {
    /// The whole line.
    pub(super) const ROOT: usize = 0;

    pub(super) fn new(wanted: &[Option<&str>]) -> Result<Self, (usize, PathProblem)> {
        let mut tree = Self { nodes: vec![PathNode::default()] };
        for (field, path) in wanted.iter().enumerate() {
            let Some(path) = path else { continue };
            let steps = steps(path).map_err(|why| (field, why))?;
            let last = steps.into_iter().fold(Self::ROOT, |node, step| {
                let node = tree.child(node, step);
                tree.nodes[node].below.push(field);
                node
            });
            tree.nodes[last].wanted.push(field);
        }
        Ok(tree)
    }

    fn child(&mut self, node: usize, step: Step) -> usize {
        let new = self.nodes.len();
        let found = match step {
            Step::Key(key) => self.key(node, &key).unwrap_or_else(|| {
                self.nodes[node].keys.push((key, new));
                new
            }),
            Step::Index(index) => self.index(node, index).unwrap_or_else(|| {
                self.nodes[node].indexes.push((index, new));
                new
            }),
        };
        if found == new {
            self.nodes.push(PathNode::default());
        }
        found
    }

    /// Returns the place of a key within an object.
    pub(super) fn key(&self, node: usize, key: &[u8]) -> Option<usize> {
        self.nodes[node].keys.iter().find(|(other, _)| **other == *key).map(|(_, child)| *child)
    }

    /// Returns the place of an element within an array.
    pub(super) fn index(&self, node: usize, index: usize) -> Option<usize> {
        self.nodes[node].indexes.iter().find(|(other, _)| *other == index).map(|(_, child)| *child)
    }

    /// Returns the numbers of the fields that are the value of this place.
    pub(super) fn wanted(&self, node: usize) -> &[usize] {
        &self.nodes[node].wanted
    }

    /// Returns the numbers of all fields at this place and within it.
    pub(super) fn below(&self, node: usize) -> &[usize] {
        &self.nodes[node].below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Step {
        Step::Key(key.as_bytes().into())
    }

    #[test]
    fn paths_are_split_into_keys_and_indexes() {
        for (path, expected) in [
            ("user", Ok(vec![key("user")])),
            ("a.b.c", Ok(vec![key("a"), key("b"), key("c")])),
            ("a[0][12].b", Ok(vec![key("a"), Step::Index(0), Step::Index(12), key("b")])),
            (r#""a.b".c"#, Ok(vec![key("a.b"), key("c")])),
            (r#"a."\"\\[""#, Ok(vec![key("a"), key("\"\\[")])),
            (r#""""#, Ok(vec![key("")])),
            ("@timestamp", Ok(vec![key("@timestamp")])),
            ("", Err(PathProblem::EmptyKey)),
            ("a..b", Err(PathProblem::EmptyKey)),
            ("a.", Err(PathProblem::EmptyKey)),
            ("a[x]", Err(PathProblem::Index)),
            ("a[0", Err(PathProblem::Index)),
            ("a[0]b", Err(PathProblem::Quotes)),
            (r#""a"#, Err(PathProblem::Quotes)),
            (r#""a"b"#, Err(PathProblem::Quotes)),
        ] {
            assert_eq!(steps(path), expected, "{path}");
        }
        assert_eq!(steps(&"a.".repeat(40)), Err(PathProblem::Length));
    }
}
