//! Formats that a regular expression describes.

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};

use super::{FieldValues, FormatError, Unreadable};

/// Memory that a compiled expression may take, and the states that it finds while it searches.
const MAX_EXPRESSION_BYTES: usize = 8 << 20;

/// Compiles an expression over bytes: `.`, `\w` and classes are about single bytes, unless `(?u)`
/// says otherwise.
pub(super) fn compile(expression: &str) -> Result<Regex, FormatError> {
    let regex = RegexBuilder::new(expression)
        .unicode(false)
        .size_limit(MAX_EXPRESSION_BYTES)
        .dfa_size_limit(MAX_EXPRESSION_BYTES)
        .build()?;
    if names(&regex).is_empty() {
        return Err(FormatError::ExpressionWithoutGroups);
    }
    Ok(regex)
}

/// Returns the names of an expression's groups.
pub(super) fn names(regex: &Regex) -> Vec<String> {
    regex.capture_names().flatten().map(str::to_owned).collect()
}

/// Reads lines with an expression.
#[derive(Clone, Debug)]
pub(super) struct ExpressionParser {
    regex: Regex,
    locations: CaptureLocations,
    /// The groups of the wanted fields; `None` for those of the envelope.
    groups: Box<[Option<usize>]>,
}

impl ExpressionParser {
    /// Returns a parser, or the number of the first wanted field that is no group.
    pub(super) fn new(regex: &Regex, wanted: &[Option<&str>]) -> Result<Self, usize> {
        let group = |(index, name): (usize, Option<&str>)| {
            let Some(name) = name else { return Ok(None) };
            let name = name.strip_prefix('$').unwrap_or(name);
            regex.capture_names().position(|other| other == Some(name)).map(Some).ok_or(index)
        };
        let groups = wanted.iter().copied().enumerate().map(group).collect::<Result<_, _>>()?;
        Ok(Self { regex: regex.clone(), locations: regex.capture_locations(), groups })
    }

    pub(super) fn parse(
        &mut self,
        line: &[u8],
        values: &mut FieldValues,
    ) -> Result<(), Unreadable> {
        if self.regex.captures_read(&mut self.locations, line).is_none() {
            return Err(Unreadable::NoMatch);
        }
        for (index, group) in self.groups.iter().enumerate() {
            if let Some((start, end)) = group.and_then(|group| self.locations.get(group)) {
                values.set(index, &line[start..end]);
            }
        }
        Ok(())
    }
}
