//! Lines of all formats, good and hostile.

mod containers;
mod hostile;
mod json;
mod nginx;
mod text;
mod w3c;

use super::*;

/// Returns a parser of a format for these fields.
fn parser(format: &str, wanted: &[&str]) -> LineParser {
    let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
    LineParser::new(&format.parse().expect("a format"), &wanted).expect("fields of the format")
}

/// Returns why a format or one of its fields can't be.
fn refusal(format: &str, wanted: &[&str]) -> String {
    let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
    let parser = format.parse().and_then(|format| LineParser::new(&format, &wanted));
    parser.expect_err("a refusal").to_string()
}

/// Returns the values of a line, with `∅` for those that are absent.
fn values(parser: &mut LineParser, line: impl AsRef<[u8]>) -> Result<Vec<String>, Unreadable> {
    let mut values = FieldValues::default();
    Ok(match parser.parse(line.as_ref(), &mut values)? {
        Parsed::Directive => Vec::new(),
        Parsed::Fields => {
            let count = (0..).take_while(|index| *index < parser.wanted()).map(|index| {
                values.get(index).map_or("∅".to_owned(), |value| value.escape_ascii().to_string())
            });
            count.collect()
        }
    })
}

/// Returns why a line can't be read.
fn unreadable(parser: &mut LineParser, line: impl AsRef<[u8]>) -> String {
    values(parser, line).expect_err("a line that can't be read").to_string()
}
