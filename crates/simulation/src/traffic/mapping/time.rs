//! Mappings of times and durations: an expression and how its value is written.

use rlaas_core::clock::Micros;

use super::expression::Expression;
use super::fields::Fields;
use super::parser::{FieldNames, MappingParser};
use super::token::{SyntaxError, Token};
use crate::traffic::stamp::{StampFormat, Unit};

/// What becomes the time of a request: `$time_local`, `epoch_ms(ts)`, `strptime(t, "%F %T %z")`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeMapping {
    /// The stamp.
    pub(crate) value: Expression,
    /// How it is written.
    pub(crate) format: StampFormat,
}

/// What becomes the duration of a request: `s($request_time)`, `ms(time-taken)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DurationMapping {
    value: Expression,
    unit: Unit,
}

impl TimeMapping {
    /// Reads the mapping. The fields that it uses are added to `names`.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if the text is none.
    pub(crate) fn parse(text: &str, names: &mut FieldNames) -> Result<Self, SyntaxError> {
        const CALLS: [&str; 7] =
            ["strptime", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns", "rfc3339", "common"];
        let mut parser = MappingParser::new(text, names)?;
        let Some(call) = parser.takes_call(&CALLS) else {
            let value = parser.expression()?;
            parser.end("must be the end")?;
            return Ok(Self { value, format: StampFormat::Date });
        };
        let value = parser.expression()?;
        let format = match call {
            "strptime" => {
                parser.expect(",")?;
                let Some(Token::Text(pattern)) = parser.peek().cloned() else {
                    return Err(parser.error("must be a quoted pattern, such as \"%F %T %z\""));
                };
                parser.advance();
                StampFormat::Pattern(pattern.into())
            }
            "epoch_s" => StampFormat::Epoch(Unit::Seconds),
            "epoch_ms" => StampFormat::Epoch(Unit::Millis),
            "epoch_us" => StampFormat::Epoch(Unit::Micros),
            "epoch_ns" => StampFormat::Epoch(Unit::Nanos),
            "common" => StampFormat::CommonLog,
            _ => StampFormat::Rfc3339,
        };
        parser.expect(")")?;
        parser.end("must be the end")?;
        Ok(Self { value, format })
    }
}

impl DurationMapping {
    /// Reads the mapping. The fields that it uses are added to `names`.
    ///
    /// # Errors
    ///
    /// [`SyntaxError`] if the text is none.
    pub(crate) fn parse(text: &str, names: &mut FieldNames) -> Result<Self, SyntaxError> {
        let mut parser = MappingParser::new(text, names)?;
        let call = parser.takes_call(&["s", "ms", "us", "ns"]);
        let unit = match call {
            Some("s") => Unit::Seconds,
            Some("ms") => Unit::Millis,
            Some("us") => Unit::Micros,
            Some(_) => Unit::Nanos,
            None => return Err(parser.error("must be s(FIELD), ms(FIELD), us(FIELD) or ns(FIELD)")),
        };
        let value = parser.expression()?;
        parser.expect(")")?;
        parser.end("must be the end")?;
        Ok(Self { value, unit })
    }

    /// Returns the duration of a line, `None` if it is absent.
    ///
    /// # Errors
    ///
    /// The value, if it is no number.
    pub(crate) fn duration<'a>(
        &'a self,
        fields: &'a impl Fields,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<Micros>, &'a [u8]> {
        let Some(value) = self.value.value(fields, scratch) else { return Ok(None) };
        self.unit.micros(value).map(|micros| Some(Micros::from_micros(micros))).ok_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::FakeFields;
    use super::*;

    #[test]
    fn times_say_how_they_are_written() {
        let mut names = FieldNames::default();
        let mut format = |text: &str| TimeMapping::parse(text, &mut names).map(|it| it.format);
        for (text, expected) in [
            ("$time_local", StampFormat::Date),
            ("date ' ' time", StampFormat::Date),
            ("common(t)", StampFormat::CommonLog),
            ("rfc3339($time_iso8601)", StampFormat::Rfc3339),
            ("epoch_ms(ts)", StampFormat::Epoch(Unit::Millis)),
            ("epoch_ns(first(a, b))", StampFormat::Epoch(Unit::Nanos)),
            ("strptime(date ' ' time, \"%F %T\")", StampFormat::Pattern("%F %T".into())),
        ] {
            assert_eq!(format(text), Ok(expected), "{text}");
        }
        for (text, position) in [
            ("strptime(t)", 11),
            ("strptime(t, x)", 13),
            ("strptime(t, '%F'", 17),
            ("epoch_s(t) 'x'", 12),
            ("epoch(t)", 1),
            ("", 1),
        ] {
            assert_eq!(format(text).expect_err(text).position, position, "{text}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        let mut names = FieldNames::default();
        for (text, value, expected) in [
            ("s($request_time)", "1.5", Ok(Some(1_500_000))),
            ("ms($request_time)", "1.5", Ok(Some(1_500))),
            ("us($request_time)", "15", Ok(Some(15))),
            ("ns($request_time)", "1500", Ok(Some(1))),
            ("s($request_time)", "0.1, 0.2", Err(&b"0.1, 0.2"[..])),
            ("s($absent)", "1", Ok(None)),
        ] {
            let mapping = DurationMapping::parse(text, &mut names).expect(text);
            let fields = FakeFields::new(&names, &[("request_time", value)]);
            let mut scratch = Vec::new();
            let found = mapping.duration(&fields, &mut scratch);
            assert_eq!(found.map(|it| it.map(Micros::as_micros)), expected, "{text}");
        }
        let error = DurationMapping::parse("$request_time", &mut names).expect_err("no unit");
        assert_eq!(error.problem, "must be s(FIELD), ms(FIELD), us(FIELD) or ns(FIELD)");
    }
}
