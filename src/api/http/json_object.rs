//! Reads JSON objects member by member, so that errors can name the member.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use axum::http::StatusCode;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::problem::{Field, Rejection};

/// The members of an object. Their values are parsed when they are taken.
#[derive(Debug, Default)]
pub(super) struct JsonObject<'a> {
    values: BTreeMap<String, &'a RawValue>,
    duplicate: Option<String>,
}

impl<'a> JsonObject<'a> {
    /// Parses a request body.
    pub(super) fn from_body(body: &'a [u8]) -> Result<Self, Rejection> {
        let members: Self = serde_json::from_slice(body).map_err(|error| {
            let problem = match error.classify() {
                Category::Data => "body must be a JSON object".to_owned(),
                Category::Io | Category::Syntax | Category::Eof => {
                    format!("body: not JSON at line {}, column {}", error.line(), error.column())
                }
            };
            Rejection::body(StatusCode::BAD_REQUEST, problem)
        })?;
        match &members.duplicate {
            Some(name) => Err(Rejection::client_name(name, "given twice")),
            None => Ok(members),
        }
    }

    /// Parses a value inside of a body.
    pub(super) fn from_value(value: &'a RawValue, field: &Field) -> Result<Self, Rejection> {
        let members: Self = serde_json::from_str(value.get()).map_err(|_| field.invalid())?;
        match &members.duplicate {
            Some(name) => Err(Rejection::client_name(name, "given twice")),
            None => Ok(members),
        }
    }

    /// Takes a member out of the object. `null` is the same as absent.
    pub(super) fn take<T>(&mut self, field: &Field) -> Result<Option<T>, Rejection>
    where
        T: Deserialize<'a>,
    {
        let mut given = field.names.iter().filter_map(|name| self.values.remove(*name));
        let (value, other) = (given.next(), given.next());
        if other.is_some() {
            return Err(field.duplicate());
        }
        value.map_or(Ok(None), |value| {
            serde_json::from_str(value.get()).map_err(|_| field.invalid())
        })
    }

    /// Returns a name that is given more than once.
    pub(super) fn duplicate(&self) -> Option<&str> {
        self.duplicate.as_deref()
    }

    /// Returns all names and values.
    pub(super) fn into_members(self) -> impl Iterator<Item = (String, &'a RawValue)> {
        self.values.into_iter()
    }

    /// Rejects members that were not taken.
    pub(super) fn close(self) -> Result<(), Rejection> {
        match self.values.first_key_value() {
            Some((name, _)) => Err(Rejection::client_name(name, "unknown field")),
            None => Ok(()),
        }
    }

    /// Returns all names and values of an object whose names are data.
    pub(super) fn entries<T>(self, field: &Field) -> Result<Vec<(String, T)>, Rejection>
    where
        T: Deserialize<'a>,
    {
        if self.duplicate.is_some() {
            return Err(field.duplicate());
        }
        let entries = self.values.into_iter().map(|(name, value)| {
            let value = serde_json::from_str(value.get()).map_err(|_| field.invalid())?;
            Ok((name, value))
        });
        entries.collect()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(JsonObjectVisitor)
    }
}

struct JsonObjectVisitor;

impl<'de> Visitor<'de> for JsonObjectVisitor {
    type Value = JsonObject<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonObject<'de>, A::Error> {
        let mut members = JsonObject::default();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            match members.values.entry(name) {
                Entry::Vacant(entry) => _ = entry.insert(value),
                Entry::Occupied(entry) => members.duplicate = Some(entry.key().clone()),
            }
        }
        Ok(members)
    }
}
