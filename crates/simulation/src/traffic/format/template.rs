//! Lines of fields with fixed text between them.

use memchr::{memchr, memchr2, memmem};

/// Bytes that a line may be searched for each byte that it has: fixed text that also lies within
/// values makes several readings possible, and they are tried one after the other.
const MAX_SEARCHES: usize = 32;

/// Whether values are escaped, so that a quotation mark within one follows a backslash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quotes {
    Escaped,
    Plain,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueShape {
    /// Anything.
    Any,
    /// No spaces.
    Word,
    /// Digits and points, or `-`, or nothing.
    Number,
    /// A time as the Common Log Format has it.
    CommonLogTime,
}

/// Fields and the fixed text before, between and behind them.
#[derive(Clone, Debug)]
pub(super) struct Template {
    before: Box<[u8]>,
    fields: Box<[TemplateField]>,
}

#[derive(Clone, Debug)]
struct TemplateField {
    shape: ValueShape,
    after: FixedText,
}

/// Text that ends a field. Empty only at the end of the line.
#[derive(Clone, Debug)]
enum FixedText {
    End,
    /// Begins with a quotation mark that values have only behind a backslash.
    Quote(Box<[u8]>),
    Byte(u8),
    Bytes(Box<memmem::Finder<'static>>),
}

/// Why a line is not as its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// The text before the first field is missing.
    Before,
    /// The field of this number begins at this byte, and is not as it must be or does not end.
    Field { field: usize, at: usize },
    /// Behind the last field there is more text, from this byte on.
    Behind { at: usize },
    /// There are too many ways to read the line.
    Ambiguous,
}

/// The search for the fields of one line.
struct Search<'a> {
    line: &'a [u8],
    /// Bytes that may still be searched.
    left: usize,
    /// The first place at which the fewest fields were left: how many, and its byte.
    reached: (usize, usize),
}

impl Template {
    /// Makes a template of the text before the first field, and of each field's shape and the text
    /// behind it. Only the last text may be empty.
    pub(super) fn new(before: &[u8], fields: &[(ValueShape, &[u8])], quotes: Quotes) -> Self {
        let fields = fields.iter().map(|(shape, after)| TemplateField {
            shape: *shape,
            after: FixedText::new(after, quotes),
        });
        Self { before: before.into(), fields: fields.collect() }
    }

    /// Finds the fields of a line: sets where each of them begins and ends.
    ///
    /// A field ends where the text behind it is first found, unless the rest of the line then isn't
    /// as it must be.
    pub(super) fn find(
        &self,
        line: &[u8],
        places: &mut Vec<(usize, usize)>,
    ) -> Result<(), Mismatch> {
        places.clear();
        places.resize(self.fields.len(), (0, 0));
        if !line.starts_with(&self.before) {
            return Err(Mismatch::Before);
        }
        let at = self.before.len();
        let left = line.len().saturating_mul(MAX_SEARCHES) + 1_000;
        let mut search = Search { line, left, reached: (self.fields.len(), at) };
        if search.find(&self.fields, places, at) {
            return Ok(());
        }
        if search.left == 0 {
            return Err(Mismatch::Ambiguous);
        }
        let (left, at) = search.reached;
        Err(match self.fields.len() - left {
            field if left > 0 => Mismatch::Field { field, at },
            _ => Mismatch::Behind { at },
        })
    }
}

impl Search<'_> {
    /// Finds these fields, the first of which begins at a byte.
    fn find(&mut self, fields: &[TemplateField], places: &mut [(usize, usize)], at: usize) -> bool {
        let Some((field, rest)) = fields.split_first() else { return at == self.line.len() };
        let (place, places) = places.split_first_mut().expect("a place for each field");
        let mut from = at;
        while let Some((end, next)) = field.after.find(self.line, from) {
            if !self.spend(end - from + 1) {
                return false;
            }
            if field.shape.fits(&self.line[at..end]) {
                *place = (at, end);
                if self.find(rest, places, next) {
                    return true;
                }
                if rest.is_empty() {
                    self.reach(places.len(), next);
                }
            }
            if field.shape.is_outgrown_by(&self.line[at..end]) {
                break;
            }
            from = end + 1;
        }
        self.spend(self.line.len().saturating_sub(from) + 1);
        self.reach(fields.len(), at);
        false
    }

    fn spend(&mut self, bytes: usize) -> bool {
        self.left = self.left.saturating_sub(bytes);
        self.left > 0
    }

    /// Keeps a place if fewer fields were left there than at all places before.
    fn reach(&mut self, left: usize, at: usize) {
        if left < self.reached.0 {
            self.reached = (left, at);
        }
    }
}

impl FixedText {
    fn new(text: &[u8], quotes: Quotes) -> Self {
        match text {
            [] => Self::End,
            [b'"', ..] if quotes == Quotes::Escaped => Self::Quote(text.into()),
            [byte] => Self::Byte(*byte),
            _ => Self::Bytes(Box::new(memmem::Finder::new(text).into_owned())),
        }
    }

    /// Returns where this text begins and ends in a line, from a byte on.
    fn find(&self, line: &[u8], from: usize) -> Option<(usize, usize)> {
        let rest = line.get(from..)?;
        match self {
            Self::End => Some((line.len(), line.len())),
            Self::Byte(byte) => memchr(*byte, rest).map(|found| (from + found, from + found + 1)),
            Self::Bytes(finder) => {
                let start = from + finder.find(rest)?;
                Some((start, start + finder.needle().len()))
            }
            Self::Quote(text) => {
                let mut at = from;
                loop {
                    let found = at + memchr2(b'"', b'\\', line.get(at..)?)?;
                    if line[found] == b'\\' {
                        at = found + 2;
                    } else if line[found..].starts_with(text) {
                        return Some((found, found + text.len()));
                    } else {
                        at = found + 1;
                    }
                }
            }
        }
    }
}

impl ValueShape {
    fn fits(self, value: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Word => memchr(b' ', value).is_none(),
            Self::Number => value == b"-" || value.iter().all(|b| b.is_ascii_digit() || *b == b'.'),
            Self::CommonLogTime => matches!(
                value,
                [_, _, b'/', _, _, _, b'/', _, _, _, _, b':', _, _, b':', _, _, b':', _, _, ..]
                    if value.len() <= 40 && value[0].is_ascii_digit()
            ),
        }
    }

    /// Returns `true` if no longer value can fit.
    fn is_outgrown_by(self, value: &[u8]) -> bool {
        match self {
            Self::Any => false,
            Self::Word | Self::Number => !self.fits(value),
            Self::CommonLogTime => value.len() > 40,
        }
    }
}
