//! Reads expressions: fields, texts and functions, one after the other.

use std::num::NonZeroUsize;

use super::expression::{Expression, Function};
use super::token::{SyntaxError, Token, tokens};

/// Names of the fields that expressions use. A field's number is its place in this list.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldNames {
    names: Vec<String>,
    /// The field that `forwarded(n)` reads.
    forwarded: Option<&'static str>,
}

impl FieldNames {
    /// Creates an empty list, with the field that `forwarded(n)` reads, if there is one.
    pub(crate) fn new(forwarded: Option<&'static str>) -> Self {
        Self { names: Vec::new(), forwarded }
    }

    /// Returns the number of a field, which is added if it is new.
    pub(crate) fn number(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    /// Returns the names in the order of their numbers.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
}

/// Reads one expression or condition.
#[derive(Debug)]
pub(crate) struct MappingParser<'a> {
    text: &'a str,
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    names: &'a mut FieldNames,
}

/// Most brackets within each other.
const MAX_DEPTH: usize = 50;

impl<'a> MappingParser<'a> {
    /// Splits a text into words. The fields that it uses are added to `names`.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if a part of the text is no word.
    pub(crate) fn new(text: &'a str, names: &'a mut FieldNames) -> Result<Self, SyntaxError> {
        Ok(Self { text, tokens: tokens(text)?, next: 0, depth: 0, names })
    }

    /// Reads fields, texts and functions until something else comes; at least one of them.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if there is none, or if one is incomplete.
    pub(crate) fn expression(&mut self) -> Result<Expression, SyntaxError> {
        let mut parts = vec![self.part()?];
        while let Some(Token::Name(_) | Token::Field(_) | Token::Text(_) | Token::Number(_)) =
            self.peek()
        {
            if self.is_at_word() {
                break;
            }
            parts.push(self.part()?);
        }
        let first = parts.pop().expect("at least one part");
        if parts.is_empty() {
            return Ok(first);
        }
        parts.push(first);
        Ok(Expression::Join(parts.into()))
    }

    fn part(&mut self) -> Result<Expression, SyntaxError> {
        let token = self.peek().cloned();
        let is_call =
            self.tokens.get(self.next + 1).is_some_and(|(_, next)| *next == Token::Sign("("));
        match token {
            Some(Token::Name(name)) if is_call => self.call(&name),
            Some(Token::Name(name) | Token::Field(name)) if !self.is_at_word() => {
                self.next += 1;
                Ok(Expression::Field(self.names.number(&name)))
            }
            Some(Token::Text(text) | Token::Number(text)) => {
                self.next += 1;
                Ok(Expression::Text(text.into_bytes().into()))
            }
            _ => Err(self.error("must be a field, a quoted text or a function")),
        }
    }

    fn call(&mut self, name: &str) -> Result<Expression, SyntaxError> {
        const NAMES: [&str; 5] = ["ip", "path", "lower", "forwarded", "first"];
        if !NAMES.contains(&name) {
            let known = NAMES.join("(), ");
            return Err(self.error(&format!("must be one of the functions {known}()")));
        }
        self.next += 2;
        self.enter()?;
        let called = match name {
            "forwarded" => self.forwarded()?,
            "first" => {
                let mut parts = vec![self.expression()?];
                while self.takes(",") {
                    parts.push(self.expression()?);
                }
                Expression::First(parts.into())
            }
            _ => {
                let function = match name {
                    "ip" => Function::Ip,
                    "path" => Function::Path,
                    _ => Function::Lower,
                };
                Expression::Call(function, Box::new(self.expression()?))
            }
        };
        self.leave()?;
        Ok(called)
    }

    /// Reads `FIELD, n` or `n`.
    fn forwarded(&mut self) -> Result<Expression, SyntaxError> {
        let is_short = matches!(self.peek(), Some(Token::Number(_)));
        let list = if is_short {
            let problem = "must be a field: the format has no X-Forwarded-For by itself";
            let field = self.names.forwarded.ok_or_else(|| self.error(problem))?;
            Expression::Field(self.names.number(field))
        } else {
            let list = self.expression()?;
            self.expect(",")?;
            list
        };
        let place = match self.peek() {
            Some(Token::Number(number)) => number.parse::<NonZeroUsize>().ok(),
            _ => None,
        };
        let problem = "must be the place of an address from the right, from 1";
        let place = place.ok_or_else(|| self.error(problem))?;
        self.next += 1;
        Ok(Expression::Call(Function::Forwarded(place), Box::new(list)))
    }

    /// Goes into a bracket that was read.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if there are too many within each other.
    pub(crate) fn enter(&mut self) -> Result<(), SyntaxError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("must have at most 50 brackets within each other"));
        }
        Ok(())
    }

    /// Goes out of a bracket: reads `)`.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if something else is next.
    pub(crate) fn leave(&mut self) -> Result<(), SyntaxError> {
        self.depth -= 1;
        self.expect(")")
    }

    /// Reads a sign.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if something else is next.
    pub(crate) fn expect(&mut self, sign: &'static str) -> Result<(), SyntaxError> {
        if self.takes(sign) { Ok(()) } else { Err(self.error(&format!("must be {sign}"))) }
    }

    /// Reads a sign if it is next.
    pub(crate) fn takes(&mut self, sign: &'static str) -> bool {
        let is_next = self.peek() == Some(&Token::Sign(sign));
        self.next += usize::from(is_next);
        is_next
    }

    /// Reads a keyword if it is next.
    pub(crate) fn takes_word(&mut self, word: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Name(name)) if name == word);
        self.next += usize::from(is_next);
        is_next
    }

    /// Reads the name of a function and its bracket, if they are next and the name is one of these.
    pub(crate) fn takes_call(&mut self, names: &[&'static str]) -> Option<&'static str> {
        let Some(Token::Name(name)) = self.peek() else { return None };
        let found = names.iter().find(|known| *known == name)?;
        let (_, bracket) = self.tokens.get(self.next + 1)?;
        if *bracket != Token::Sign("(") {
            return None;
        }
        self.next += 2;
        Some(found)
    }

    /// Returns `true` if a keyword of conditions is next, which ends an expression.
    fn is_at_word(&self) -> bool {
        matches!(self.peek(), Some(Token::Name(name)) if ["and", "or", "not", "in"].contains(&name.as_str()))
    }

    /// Returns the next word.
    pub(crate) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(_, token)| token)
    }

    /// Returns the next word and goes on.
    pub(crate) fn advance(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.next += usize::from(token.is_some());
        token
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if something is.
    pub(crate) fn end(&self, expected: &str) -> Result<(), SyntaxError> {
        if self.peek().is_some() { Err(self.error(expected)) } else { Ok(()) }
    }

    /// Creates the error that the next word is not as it must be.
    pub(crate) fn error(&self, problem: &str) -> SyntaxError {
        let end = self.text.chars().count() + 1;
        SyntaxError {
            text: self.text.to_owned(),
            position: self.tokens.get(self.next).map_or(end, |(position, _)| *position),
            problem: problem.to_owned(),
        }
    }
}
