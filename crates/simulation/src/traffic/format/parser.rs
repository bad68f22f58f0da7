//! Parsers of lines, and why a line can't be read.

use super::envelope::{DockerProblem, Envelope, Unwrapper};
use super::expression::ExpressionParser;
use super::json::{JsonParser, JsonProblem};
use super::text::TextParser;
use super::w3c::W3cParser;
use super::{FieldValues, FormatError, LogFormat, Syntax};

/// Field with the time that a container runtime gave to a line, as RFC 3339.
const ENVELOPE_TIME: &str = "@envelope_time";

/// Field with the stream that a line was written to, `stdout` or `stderr`, as a container runtime
/// has it.
const ENVELOPE_STREAM: &str = "@stream";

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A line with fields, which are set.
    Fields,
    /// A line without fields: empty, a directive such as `#Fields:`, or a part of a line whose last
    /// part follows.
    Directive,
}

/// Why a line can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// The text before the first field of the format is missing.
    #[error("the line does not begin as its format does")]
    TextBefore,
    /// A field does not look as it must, or the text behind it is missing.
    #[error("{name} at byte {at} is not as its format has it, or does not end")]
    Field {
        /// Name of the field.
        name: Box<str>,
        /// Byte of the line, from 0.
        at: usize,
    },
    /// The line has more than its format.
    #[error("text behind the last field, at byte {at}")]
    TextBehind {
        /// Byte of the line, from 0.
        at: usize,
    },
    /// Text between fields is also within them, too often to try all ways.
    #[error("there are too many ways to read the line")]
    Ambiguous,
    /// The line is no JSON.
    #[error("{0}")]
    Json(JsonProblem),
    /// The line is not in Docker's envelope.
    #[error("not a line of Docker's json-file: {0}")]
    Docker(DockerProblem),
    /// The line is not in the envelope of the Container Runtime Interface.
    #[error("not a line of the Container Runtime Interface: must be TIME STREAM P|F TEXT")]
    Cri,
    /// The parts of a line are too long together.
    #[error("the parts of the line have more than {maximum} bytes")]
    RecordTooLong {
        /// Most bytes that are read.
        maximum: usize,
    },
    /// There are lines before the directive that names their columns.
    #[error("there is no #Fields: directive before the line")]
    BeforeFieldsDirective,
    /// The directive has no names, or too many.
    #[error("#Fields: must have 1 to {maximum} names")]
    FieldsDirective {
        /// Most names that are read.
        maximum: usize,
    },
    /// The directive does not have a wanted field.
    #[error("{name} is not among #Fields: {names}")]
    FieldsDirectiveLacks {
        /// The wanted field.
        name: Box<str>,
        /// The fields that there are.
        names: Box<str>,
    },
    /// The line has other columns than its directive says.
    #[error("the line must have {expected} columns as #Fields: says, but has {found}")]
    Columns {
        /// Columns of the directive.
        expected: usize,
        /// Columns of the line; one more than expected stands for any number above.
        found: usize,
    },
    /// The regular expression does not match.
    #[error("the regular expression does not match")]
    NoMatch,
}

/// Reads the lines of one input.
///
/// It has a state, since columns change within a file and long lines come in parts. Each input needs
/// its own: clone one that has read nothing, which is cheap.
#[derive(Clone, Debug)]
pub struct LineParser {
    syntax: SyntaxParser,
    unwrapper: Unwrapper,
    wanted: usize,
    /// The wanted fields of the envelope.
    envelope_times: Box<[usize]>,
    envelope_streams: Box<[usize]>,
}

#[derive(Clone, Debug)]
enum SyntaxParser {
    Text(TextParser),
    Json(JsonParser),
    W3c(W3cParser),
    Expression(Box<ExpressionParser>),
}

impl LineParser {
    /// Creates a parser that keeps these fields.
    ///
    /// In every format `@envelope_time` and `@stream` are fields too. They are absent without an
    /// envelope.
    ///
    /// # Errors
    ///
    /// If the format can't have a wanted field. The error lists those that it has.
    pub fn new(format: &LogFormat, wanted: &[String]) -> Result<Self, FormatError> {
        let places = |name: &str| {
            let matching = wanted.iter().enumerate().filter(|(_, wanted)| *wanted == name);
            matching.map(|(index, _)| index).collect()
        };
        let is_own = |name: &str| ![ENVELOPE_TIME, ENVELOPE_STREAM].contains(&name);
        let names: Vec<_> =
            wanted.iter().map(|name| Some(name.as_str()).filter(|name| is_own(name))).collect();
        let unknown = |index: usize| FormatError::UnknownField {
            field: wanted[index].clone(),
            fields: format.field_names().unwrap_or_default().join(", "),
        };
        let bad_path =
            |(index, why): (usize, _)| FormatError::Path { path: wanted[index].clone(), why };
        let syntax = match &format.syntax {
            Syntax::Text(text) => {
                SyntaxParser::Text(TextParser::new(text.clone(), &names).map_err(unknown)?)
            }
            Syntax::Json => SyntaxParser::Json(JsonParser::new(&names).map_err(bad_path)?),
            Syntax::W3c => SyntaxParser::W3c(W3cParser::new(&names)),
            Syntax::Expression(regex) => {
                let parser = ExpressionParser::new(regex, &names).map_err(unknown)?;
                SyntaxParser::Expression(Box::new(parser))
            }
        };
        Ok(Self {
            syntax,
            unwrapper: Unwrapper::new(format.envelope),
            wanted: wanted.len(),
            envelope_times: places(ENVELOPE_TIME),
            envelope_streams: places(ENVELOPE_STREAM),
        })
    }

    /// Reads a line without its end, and sets the values of the wanted fields.
    ///
    /// # Errors
    ///
    /// If the line is not of the format. The values are then undefined.
    pub fn parse(&mut self, line: &[u8], values: &mut FieldValues) -> Result<Parsed, Unreadable> {
        values.clear(self.wanted);
        if line.is_empty() {
            return Ok(Parsed::Directive);
        }
        if self.unwrapper.envelope(line) == Envelope::None {
            return self.syntax.parse(line, values);
        }
        let Some(unwrapped) = self.unwrapper.unwrap(line)? else { return Ok(Parsed::Directive) };
        if unwrapped.line.is_empty() {
            return Ok(Parsed::Directive);
        }
        let parsed = self.syntax.parse(unwrapped.line, values)?;
        for index in &self.envelope_times {
            values.set(*index, unwrapped.time);
        }
        for index in &self.envelope_streams {
            values.set(*index, unwrapped.stream.as_bytes());
        }
        Ok(parsed)
    }

    /// Returns how many fields are wanted.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns how many lines came in parts and lack the last one. At the end of an input, those
    /// were not read.
    pub fn incomplete(&self) -> usize {
        self.unwrapper.incomplete()
    }
}

impl SyntaxParser {
    fn parse(&mut self, line: &[u8], values: &mut FieldValues) -> Result<Parsed, Unreadable> {
        match self {
            Self::Text(parser) => parser.parse(line, values)?,
            Self::Json(parser) => parser.parse(line, values).map_err(Unreadable::Json)?,
            Self::Expression(parser) => parser.parse(line, values)?,
            Self::W3c(parser) => return parser.parse(line, values),
        }
        Ok(Parsed::Fields)
    }
}
