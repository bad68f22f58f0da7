//! Reads one line of JSON, and keeps the wanted values.

use memchr::{memchr, memchr2};

use super::path::PathTree;
use crate::traffic::format::FieldValues;
use crate::traffic::format::unescape::append_unescaped;

/// Objects and arrays within each other that are read.
const MAX_DEPTH: usize = 64;

/// Why a line is no JSON, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {at}")]
pub struct JsonProblem {
    /// What is wrong.
    pub kind: JsonProblemKind,
    /// Byte of the line, from 0.
    pub at: usize,
}

/// Why a line is no JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonProblemKind {
    /// The line is an array or something else.
    #[error("no JSON object")]
    NoObject,
    /// A character can't stand where it does.
    #[error("JSON with an unexpected character")]
    Character,
    /// The line ends before its object.
    #[error("JSON that breaks off")]
    BreaksOff,
    /// Text follows the object.
    #[error("text behind the JSON object")]
    TextBehind,
    /// There are too many objects and arrays within each other.
    #[error("JSON of more than {MAX_DEPTH} levels")]
    Depth,
}

/// Reads one line.
pub(super) struct Scanner<'a> {
    line: &'a [u8],
    at: usize,
    tree: &'a PathTree,
    values: &'a mut FieldValues,
    /// A key without its escapes.
    key: Vec<u8>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(line: &'a [u8], tree: &'a PathTree, values: &'a mut FieldValues) -> Self {
        Self { line, at: 0, tree, values, key: Vec::new() }
    }

    /// Reads the object that the line is. Of equal keys the last one counts, with all that is within
    /// it.
    pub(super) fn object_line(mut self) -> Result<(), JsonProblem> {
        self.skip_space();
        if self.line.get(self.at) != Some(&b'{') {
            return Err(self.problem(JsonProblemKind::NoObject));
        }
        self.object(Some(PathTree::ROOT), 1)?;
        self.skip_space();
        if self.at < self.line.len() {
            return Err(self.problem(JsonProblemKind::TextBehind));
        }
        Ok(())
    }

    /// Reads any value. With a place in the tree its wanted fields are set.
    fn value(&mut self, node: Option<usize>, depth: usize) -> Result<(), JsonProblem> {
        let start = self.at;
        let first = self.peek()?;
        if depth > MAX_DEPTH {
            return Err(self.problem(JsonProblemKind::Depth));
        }
        match first {
            b'"' => {
                let text = self.string()?;
                return self.set(node, text, Form::Escaped);
            }
            b'{' => self.object(node, depth)?,
            b'[' => self.array(node, depth)?,
            b't' => self.word(b"true")?,
            b'f' => self.word(b"false")?,
            b'n' => return self.word(b"null"),
            _ => self.number()?,
        }
        self.set(node, &self.line[start..self.at], Form::Plain)
    }

    fn object(&mut self, node: Option<usize>, depth: usize) -> Result<(), JsonProblem> {
        self.at += 1;
        self.skip_space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek()? != b'"' {
                return Err(self.problem(JsonProblemKind::Character));
            }
            let key = self.string()?;
            let child = node.and_then(|node| self.child(node, key));
            self.skip_space();
            if self.peek()? != b':' {
                return Err(self.problem(JsonProblemKind::Character));
            }
            self.at += 1;
            self.skip_space();
            self.element(child, depth)?;
            if !self.goes_on(b'}')? {
                return Ok(());
            }
        }
    }

    fn array(&mut self, node: Option<usize>, depth: usize) -> Result<(), JsonProblem> {
        self.at += 1;
        self.skip_space();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(());
        }
        for index in 0.. {
            let child = node.and_then(|node| self.tree.index(node, index));
            self.element(child, depth)?;
            if !self.goes_on(b']')? {
                break;
            }
        }
        Ok(())
    }

    /// Reads a value within an object or an array. What an equal key set before is forgotten.
    fn element(&mut self, child: Option<usize>, depth: usize) -> Result<(), JsonProblem> {
        for field in child.map(|child| self.tree.below(child)).unwrap_or_default() {
            self.values.remove(*field);
        }
        self.value(child, depth + 1)
    }

    /// Returns `true` behind a comma, and `false` behind the end of the object or array.
    fn goes_on(&mut self, end: u8) -> Result<bool, JsonProblem> {
        self.skip_space();
        let found = self.peek()?;
        if found != b',' && found != end {
            return Err(self.problem(JsonProblemKind::Character));
        }
        self.at += 1;
        self.skip_space();
        Ok(found == b',')
    }

    /// Returns the place in the tree of a key as it is written.
    fn child(&mut self, node: usize, key: &[u8]) -> Option<usize> {
        if memchr(b'\\', key).is_none() {
            return self.tree.key(node, key);
        }
        self.key.clear();
        append_unescaped(key, &mut self.key);
        self.tree.key(node, &self.key)
    }

    /// Reads a string. Returns it as it is written, without its quotation marks.
    fn string(&mut self) -> Result<&'a [u8], JsonProblem> {
        let start = self.at + 1;
        self.at = start;
        loop {
            let rest = self.line.get(self.at..).unwrap_or_default();
            let Some(found) = memchr2(b'"', b'\\', rest) else {
                self.at = self.line.len();
                return Err(self.problem(JsonProblemKind::BreaksOff));
            };
            self.at += found;
            if self.line[self.at] == b'"' {
                self.at += 1;
                return Ok(&self.line[start..self.at - 1]);
            }
            self.at += 2;
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonProblem> {
        if !self.line[self.at..].starts_with(word) {
            return Err(self.problem(JsonProblemKind::Character));
        }
        self.at += word.len();
        Ok(())
    }

    /// Reads a number: `-`, digits, a point and digits, an exponent.
    fn number(&mut self) -> Result<(), JsonProblem> {
        self.skip_one(b"-");
        let zero = self.skip_one(b"0");
        if !zero {
            self.digits()?;
        }
        if self.skip_one(b".") {
            self.digits()?;
        }
        if self.skip_one(b"eE") {
            self.skip_one(b"+-");
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonProblem> {
        let rest = self.line.get(self.at..).unwrap_or_default();
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            let breaks_off = rest.is_empty();
            let (off, character) = (JsonProblemKind::BreaksOff, JsonProblemKind::Character);
            return Err(self.problem(if breaks_off { off } else { character }));
        }
        self.at += count;
        Ok(())
    }

    fn skip_one(&mut self, of: &[u8]) -> bool {
        let is_there = self.line.get(self.at).is_some_and(|byte| of.contains(byte));
        self.at += usize::from(is_there);
        is_there
    }

    fn skip_space(&mut self) {
        while self.skip_one(b" \t\r\n") {}
    }

    fn peek(&self) -> Result<u8, JsonProblem> {
        self.line.get(self.at).copied().ok_or(self.problem(JsonProblemKind::BreaksOff))
    }

    #[expect(clippy::unnecessary_wraps, reason = "the last step of functions that can fail")]
    fn set(&mut self, node: Option<usize>, value: &[u8], form: Form) -> Result<(), JsonProblem> {
        for field in node.map(|node| self.tree.wanted(node)).unwrap_or_default() {
            match form {
                Form::Plain => self.values.set(*field, value),
                Form::Escaped => self.values.set_with(*field, |to| append_unescaped(value, to)),
            }
        }
        Ok(())
    }

    fn problem(&self, kind: JsonProblemKind) -> JsonProblem {
        JsonProblem { kind, at: self.at.min(self.line.len()) }
    }
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Escaped,
}
