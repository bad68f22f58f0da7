//! Conditions: which lines the limiter would see.

use regex::bytes::Regex;

use super::expression::Expression;
use super::fields::Fields;
use super::parser::{FieldNames, MappingParser};
use super::token::{SyntaxError, Token};

/// A condition on a line: `$uri =~ "^/api/" and not status in (301, 302)`.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// All of these hold.
    All(Box<[Condition]>),
    /// At least one of these holds.
    Any(Box<[Condition]>),
    /// This does not hold.
    Not(Box<Condition>),
    /// The value is not absent.
    Present(Expression),
    /// The value is not absent, and compares so.
    Compare(Expression, Comparison),
}

/// What is asked of a value.
#[derive(Clone, Debug)]
pub(crate) enum Comparison {
    /// Is one of these.
    OneOf(Box<[Operand]>),
    /// A part of it matches.
    Matches(Regex),
    /// Is a number less than this.
    Less(f64),
    /// Is a number greater than this.
    Greater(f64),
}

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// The same bytes.
    Text(Box<[u8]>),
    /// The same number, however it is written.
    Number(f64),
}

impl Condition {
    /// Reads a condition. The fields that it uses are added to `names`.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if the text is none.
    pub(crate) fn parse(text: &str, names: &mut FieldNames) -> Result<Self, SyntaxError> {
        let mut parser = MappingParser::new(text, names)?;
        let condition = any(&mut parser)?;
        parser.end("must be a comparison, and, or")?;
        Ok(condition)
    }

    /// Returns `true` if the condition holds for a line. What has to be built is built in `scratch`.
    pub(crate) fn holds(&self, fields: &impl Fields, scratch: &mut Vec<u8>) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(fields, scratch)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(fields, scratch)),
            Self::Not(part) => !part.holds(fields, scratch),
            Self::Present(of) => of.value(fields, scratch).is_some(),
            Self::Compare(of, comparison) => {
                of.value(fields, scratch).is_some_and(|value| comparison.holds(value))
            }
        }
    }
}

impl Comparison {
    fn holds(&self, value: &[u8]) -> bool {
        match self {
            Self::OneOf(operands) => operands.iter().any(|operand| operand.equals(value)),
            Self::Matches(pattern) => pattern.is_match(value),
            Self::Less(bound) => number(value).is_some_and(|number| number < *bound),
            Self::Greater(bound) => number(value).is_some_and(|number| number > *bound),
        }
    }
}

impl Operand {
    #[expect(clippy::float_cmp, reason = "numbers are equal if they are read as the same")]
    fn equals(&self, value: &[u8]) -> bool {
        match self {
            Self::Text(text) => **text == *value,
            Self::Number(wanted) => number(value).is_some_and(|number| number == *wanted),
        }
    }
}

fn number(value: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(value).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

fn any(parser: &mut MappingParser<'_>) -> Result<Condition, SyntaxError> {
    let first = all(parser)?;
    let mut parts = vec![first];
    while parser.takes_word("or") {
        parts.push(all(parser)?);
    }
    Ok(if parts.len() > 1 { Condition::Any(parts.into()) } else { parts.remove(0) })
}

fn all(parser: &mut MappingParser<'_>) -> Result<Condition, SyntaxError> {
    let first = not(parser)?;
    let mut parts = vec![first];
    while parser.takes_word("and") {
        parts.push(not(parser)?);
    }
    Ok(if parts.len() > 1 { Condition::All(parts.into()) } else { parts.remove(0) })
}

fn not(parser: &mut MappingParser<'_>) -> Result<Condition, SyntaxError> {
    let mut is_negated = false;
    while parser.takes_word("not") {
        is_negated = !is_negated;
    }
    let condition = if parser.takes("(") {
        parser.enter()?;
        let condition = any(parser)?;
        parser.leave()?;
        condition
    } else {
        comparison(parser)?
    };
    Ok(if is_negated { Condition::Not(Box::new(condition)) } else { condition })
}

fn comparison(parser: &mut MappingParser<'_>) -> Result<Condition, SyntaxError> {
    let of = parser.expression()?;
    if parser.takes_word("not") {
        if !parser.takes_word("in") {
            return Err(parser.error("must be in"));
        }
        return Ok(Condition::Not(Box::new(Condition::Compare(of, one_of(parser)?))));
    }
    if parser.takes_word("in") {
        return Ok(Condition::Compare(of, one_of(parser)?));
    }
    let Some(Token::Sign(sign)) = parser.peek() else { return Ok(Condition::Present(of)) };
    let sign = *sign;
    if matches!(sign, "(" | ")" | ",") {
        return Ok(Condition::Present(of));
    }
    parser.advance();
    let comparison = match sign {
        "==" | "!=" => Comparison::OneOf([operand(parser)?].into()),
        "=~" | "!~" => Comparison::Matches(pattern(parser)?),
        "<" | ">=" => Comparison::Less(bound(parser)?),
        _ => Comparison::Greater(bound(parser)?),
    };
    let compared = Condition::Compare(of.clone(), comparison);
    Ok(match sign {
        // Without a value neither holds.
        "<=" | ">=" => {
            let is_number = Condition::Compare(of, Comparison::Greater(f64::NEG_INFINITY));
            Condition::All([is_number, Condition::Not(Box::new(compared))].into())
        }
        "!=" | "!~" => Condition::Not(Box::new(compared)),
        _ => compared,
    })
}

fn one_of(parser: &mut MappingParser<'_>) -> Result<Comparison, SyntaxError> {
    parser.expect("(")?;
    let mut operands = vec![operand(parser)?];
    while parser.takes(",") {
        operands.push(operand(parser)?);
    }
    parser.expect(")")?;
    Ok(Comparison::OneOf(operands.into()))
}

fn operand(parser: &mut MappingParser<'_>) -> Result<Operand, SyntaxError> {
    let operand = match parser.peek() {
        Some(Token::Text(text)) => Operand::Text(text.clone().into_bytes().into()),
        Some(Token::Number(text)) => Operand::Number(number(text.as_bytes()).unwrap_or_default()),
        _ => return Err(parser.error("must be a quoted text or a number")),
    };
    parser.advance();
    Ok(operand)
}

fn bound(parser: &mut MappingParser<'_>) -> Result<f64, SyntaxError> {
    match parser.peek() {
        Some(Token::Number(text)) => {
            let bound = number(text.as_bytes()).unwrap_or_default();
            parser.advance();
            Ok(bound)
        }
        _ => Err(parser.error("must be a number")),
    }
}

fn pattern(parser: &mut MappingParser<'_>) -> Result<Regex, SyntaxError> {
    let Some(Token::Text(text)) = parser.peek() else {
        return Err(parser.error("must be a quoted regular expression"));
    };
    let pattern = Regex::new(text);
    let problem = |error: &regex::Error| format!("must be a regular expression: {error}");
    let pattern = pattern.map_err(|error| parser.error(&problem(&error)))?;
    parser.advance();
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::super::fields::FakeFields;
    use super::*;

    const LINE: [(&str, &str); 4] =
        [("status", "404"), ("uri", "/api/x?y"), ("user", "ann"), ("cs(User-Agent)", "curl/8")];

    fn holds(text: &str) -> bool {
        let mut names = FieldNames::default();
        let condition =
            Condition::parse(text, &mut names).unwrap_or_else(|error| panic!("{error}"));
        condition.holds(&FakeFields::new(&names, &LINE), &mut Vec::new())
    }

    #[test]
    fn values_are_compared() {
        for (text, expected) in [
            ("user == 'ann'", true),
            ("$user == \"an\"", false),
            ("user != 'bob'", true),
            ("uri =~ '^/api/'", true),
            ("uri !~ \"^/api/\"", false),
            ("path(uri) == '/api/x'", true),
            ("user uri == 'ann/api/x?y'", true),
            ("cs(User-Agent) =~ '^curl'", true),
            ("status == 404", true),
            ("status == '404'", true),
            ("status == 404.0", true),
            ("status != 404", false),
            ("status >= 404 and status <= 404", true),
            ("status > 404 or status < 404", false),
            ("status in (200, '404')", true),
            ("status not in (200, 301)", true),
            ("user > 1", false),
            ("user <= 1", false),
            ("user", true),
            ("not user", false),
            ("not not user", true),
        ] {
            assert_eq!(holds(text), expected, "{text}");
        }
    }

    #[test]
    fn and_binds_closer_than_or() {
        assert!(holds("user or absent and absent"));
        assert!(!holds("(user or absent) and absent"));
        assert!(holds("not (absent or status == 200) and (user)"));
    }

    #[test]
    fn an_absent_field_equals_nothing() {
        for text in ["absent", "absent == ''", "absent =~ '.*'", "absent < 1", "absent >= 1"] {
            assert!(!holds(text), "{text}");
        }
        for text in ["not absent", "absent != 'x'", "absent !~ '.*'", "absent not in ('x')"] {
            assert!(holds(text), "{text}");
        }
    }

    #[test]
    fn errors_say_what_is_missing_and_where() {
        for (text, position, problem) in [
            ("", 1, "must be a field, a quoted text or a function"),
            ("user ==", 8, "must be a quoted text or a number"),
            ("user == ann", 9, "must be a quoted text or a number"),
            ("status < 'x'", 10, "must be a number"),
            ("uri =~ x", 8, "must be a quoted regular expression"),
            ("user in 'x'", 9, "must be ("),
            ("user not 'x'", 10, "must be in"),
            ("(user", 6, "must be )"),
            ("user)", 5, "must be a comparison, and, or"),
            ("user == 'x' status", 13, "must be a comparison, and, or"),
            ("user and", 9, "must be a field, a quoted text or a function"),
        ] {
            let error = Condition::parse(text, &mut FieldNames::default()).expect_err(text);
            assert_eq!((error.position, error.problem.as_str()), (position, problem), "{text}");
        }
        let error =
            Condition::parse("uri =~ '('", &mut FieldNames::default()).expect_err("bracket");
        assert!(error.problem.contains("unclosed group"), "{error}");
        let deep = "(".repeat(1_000);
        assert!(Condition::parse(&deep, &mut FieldNames::default()).is_err());
    }
}
