//! A single value, or in its place a list or a map.
//!
//! serde's untagged enums would do this too, but their errors have neither place nor reason.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A single value as a text, or something of more parts.
#[derive(Clone, Debug)]
pub(super) enum OneOr<T> {
    /// A text, a number, or a flag.
    One(String),
    /// A list or a map.
    Other(T),
}

impl OneOr<Vec<String>> {
    /// Returns the items of the list, or the single value.
    pub(super) fn into_items(self) -> Vec<String> {
        match self {
            Self::One(item) => vec![item],
            Self::Other(items) => items,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrVisitor(PhantomData))
    }
}

struct OneOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrVisitor<T> {
    type Value = OneOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a single value, a list or a map")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OneOr<T>, E> {
        Ok(OneOr::One(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<OneOr<T>, E> {
        Ok(OneOr::One(flag.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<OneOr<T>, E> {
        Ok(OneOr::One(number.to_string()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<OneOr<T>, E> {
        Ok(OneOr::One(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<OneOr<T>, E> {
        Ok(OneOr::One(number.to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OneOr<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(OneOr::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<OneOr<T>, A::Error> {
        let read = T::deserialize(SeqAccessDeserializer::new(&mut items))?;
        match items.next_element::<IgnoredAny>()? {
            Some(_) => Err(A::Error::custom("has too many items")),
            None => Ok(OneOr::Other(read)),
        }
    }
}
