//! Reads `metadata` of a descriptor: a map of JSON values.

use figment::value::{Dict, Num, Value};

use crate::config::values::{Invalid, Read};
use crate::rules::descriptors::{Metadata, MetadataValue};

/// Maximum depth of maps and lists.
const MAX_LEVELS: usize = 16;
/// Maximum number of values, including those in nested maps and lists.
const MAX_VALUES: usize = 1_000;

const BOUNDS: Invalid =
    Invalid::new("must be a map of at most 1000 values and 16 levels, without NaN and infinity");

/// Reads the map. It is not shown in the effective configuration.
pub(super) fn read(value: &Value) -> Read<Metadata> {
    let Value::Dict(_, dict) = value else { return Err(BOUNDS) };
    let metadata = MetadataReader { values_left: MAX_VALUES }.map(dict, MAX_LEVELS);
    metadata.map(|metadata| (metadata, String::new())).ok_or(BOUNDS)
}

struct MetadataReader {
    values_left: usize,
}

impl MetadataReader {
    fn map(&mut self, dict: &Dict, levels_left: usize) -> Option<Metadata> {
        let levels_left = levels_left.checked_sub(1)?;
        let entry = |(name, value): (&String, &Value)| {
            Some((name.clone(), self.value(value, levels_left)?))
        };
        dict.iter().map(entry).collect::<Option<_>>().map(Metadata)
    }

    fn list(&mut self, items: &[Value], levels_left: usize) -> Option<Vec<MetadataValue>> {
        let levels_left = levels_left.checked_sub(1)?;
        items.iter().map(|item| self.value(item, levels_left)).collect()
    }

    fn value(&mut self, value: &Value, levels_left: usize) -> Option<MetadataValue> {
        self.values_left = self.values_left.checked_sub(1)?;
        Some(match value {
            Value::Empty(..) => MetadataValue::Null,
            Value::Bool(_, boolean) => MetadataValue::Boolean(*boolean),
            Value::String(_, text) => MetadataValue::Text(text.clone()),
            Value::Char(_, character) => MetadataValue::Text(character.to_string()),
            Value::Num(_, number) => MetadataValue::Number(finite(*number)?),
            Value::Array(_, items) => MetadataValue::List(self.list(items, levels_left)?),
            Value::Dict(_, dict) => MetadataValue::Map(self.map(dict, levels_left)?),
        })
    }
}

/// Converts a number to a JSON number. Large integers lose digits, as in envoyproxy/ratelimit.
#[expect(clippy::cast_precision_loss, reason = "numbers in a Struct are f64")]
fn finite(number: Num) -> Option<f64> {
    let whole = number.to_u128().map(|whole| whole as f64);
    let whole = whole.or_else(|| number.to_i128().map(|whole| whole as f64));
    whole.or_else(|| number.to_f64()).filter(|number| number.is_finite())
}
