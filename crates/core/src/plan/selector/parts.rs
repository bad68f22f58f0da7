//! The parts of a key: from its id, and as a request that has them.

use super::{KeyPart, SelectError};
use crate::rules::{Attributes, DecodedValue, HashedValue, Hashing, Part, Request, Rule};

/// Parts of a request, from the parts of a key.
pub(super) struct PartsOfRequest<'a> {
    user_id: Option<&'a str>,
    resource: Option<&'a str>,
    attributes: Vec<(&'a str, &'a str)>,
}

impl<'a> PartsOfRequest<'a> {
    pub(super) fn new(parts: &'a [KeyPart]) -> Result<Self, SelectError> {
        let mut request = Self { user_id: None, resource: None, attributes: Vec::new() };
        for (position, KeyPart { name, value }) in parts.iter().enumerate() {
            if parts[..position].iter().any(|other| other.name == *name) {
                return Err(SelectError::PartName);
            }
            match (name.as_str(), value.as_deref()) {
                ("user_id" | "resource", None) => return Err(SelectError::NoValue),
                ("user_id", value) => request.user_id = value,
                ("resource", value) => request.resource = value,
                (name, value) => {
                    let name = name.strip_prefix("attributes.").ok_or(SelectError::PartName)?;
                    let name = name.strip_suffix(Part::OR_USER_ID).unwrap_or(name);
                    request.attributes.extend(value.map(|value| (name, value)));
                }
            }
        }
        Ok(request)
    }

    pub(super) fn request(&self) -> Result<Request<'_>, SelectError> {
        let attributes = Attributes::Pairs(&self.attributes);
        Request::for_key(self.user_id, self.resource, attributes).map_err(SelectError::Value)
    }
}

/// Returns `true` if these are the parts of the rule's keys, in any order.
pub(super) fn has_parts(rule: &Rule, parts: &[KeyPart]) -> bool {
    let given = |part: &Part| {
        let name = part.to_string();
        // That of the attribute alone names it, too.
        let short = match part {
            Part::AttributeOrUserId(_) => name.strip_suffix(Part::OR_USER_ID),
            _ => None,
        };
        parts.iter().any(|given| match short {
            Some(short) => (given.name == name || given.name == short) && given.value.is_some(),
            None => given.name == name,
        })
    };
    rule.key_by.len() == parts.len() && rule.key_by.iter().all(given)
}

/// Returns the parts in the id of a rule's key; `None` if they are not those of the rule.
pub(super) fn values_of(rule: &Rule, id: &str, hashing: Hashing<'_>) -> Option<Vec<KeyPart>> {
    let values = DecodedValue::all(id)?;
    if values.len() != rule.key_by.len() {
        return None;
    }
    let part = |(part, value): (&Part, DecodedValue)| {
        let value = match value {
            DecodedValue::Text(text) => {
                let is_hashed = hashing.parts().is_some_and(|all| all.hasher_of(part).is_some());
                Some(shown(text, is_hashed && !rule.is_anchor(part)))
            }
            DecodedValue::Absent => None,
            DecodedValue::Pattern(_) | DecodedValue::Window => return None,
        };
        Some(KeyPart { name: part.to_string(), value })
    };
    rule.key_by.iter().zip(values).map(part).collect()
}

pub(super) fn pairs(entries: &[KeyPart]) -> Option<Vec<(&str, &str)>> {
    entries.iter().map(|entry| Some((entry.name.as_str(), entry.value.as_deref()?))).collect()
}

/// Returns the entries in the id of a descriptor's key, without the window of a limit of the
/// request.
pub(super) fn entries_of(id: &str, hashing: Hashing<'_>) -> Option<Vec<KeyPart>> {
    let mut values = DecodedValue::all(id)?;
    if values.last() == Some(&DecodedValue::Window) {
        values.pop();
    }
    let mut values = values.into_iter();
    let mut entries = Vec::new();
    while let Some(key) = values.next() {
        let (DecodedValue::Text(name), Some(value)) = (key, values.next()) else { return None };
        let value = match value {
            DecodedValue::Text(value) => {
                let hashed = hashing.parts();
                shown(value, hashed.is_some_and(|all| all.hasher_of_entry(&name).is_some()))
            }
            DecodedValue::Pattern(value) => value,
            DecodedValue::Absent | DecodedValue::Window => return None,
        };
        entries.push(KeyPart { name, value: Some(value) });
    }
    Some(entries)
}

/// Returns the text for callers of a value in a key.
fn shown(text: String, is_hashed: bool) -> String {
    let hashed = is_hashed.then(|| HashedValue::show_hashed(&text)).flatten();
    hashed.unwrap_or(text)
}
