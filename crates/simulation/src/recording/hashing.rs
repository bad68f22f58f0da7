//! Requests with hashed values.

use rlaas_core::rules::{HashedParts, KeyHasher, Part};

use crate::{RecordedDescriptors, RecordedFields, RecordedRequest};

/// Returns the fingerprint of the key of a hash, which tells nothing else about it.
pub fn key_fingerprint(hasher: &KeyHasher) -> String {
    hasher.derive("recording: fingerprint").map(|byte| format!("{byte:02x}")).concat()
}

/// Replaces the values of some parts by their hashes: `#` and 26 characters. An entry of a descriptor
/// is hashed if its key is the name of a part.
#[must_use]
pub fn hash_values(request: RecordedRequest, parts: &HashedParts) -> RecordedRequest {
    match request {
        RecordedRequest::Fields(mut fields) => {
            hash_fields(&mut fields, parts);
            RecordedRequest::Fields(fields)
        }
        RecordedRequest::Descriptors(mut of) => {
            hash_entries(&mut of, parts);
            RecordedRequest::Descriptors(of)
        }
    }
}

fn hash_fields(fields: &mut RecordedFields, parts: &HashedParts) {
    if let Some(hasher) = parts.hasher_of(&Part::UserId) {
        fields.user_id = hasher.shown(&fields.user_id).into();
    }
    if let Some(hasher) = parts.hasher_of(&Part::Resource) {
        fields.resource = hasher.shown(&fields.resource).into();
    }
    for (name, value) in &mut fields.attributes {
        if let Some(hasher) = parts.hasher_of(&Part::Attribute(name.to_string())) {
            *value = hasher.shown(value).into();
        }
    }
}

fn hash_entries(of: &mut RecordedDescriptors, parts: &HashedParts) {
    for (key, value) in of.descriptors.iter_mut().flat_map(|one| &mut one.entries) {
        if let Some(hasher) = parts.hasher_of_entry(key) {
            *value = hasher.shown(value).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordedDescriptor;

    #[test]
    fn values_of_the_parts_are_hashed_and_no_others() {
        let hasher = KeyHasher::new(|value| [value.len().to_le_bytes()[0]; 16]);
        let hash = |value: &str| Box::<str>::from(hasher.shown(value));
        let key = Part::Attribute("api_key".to_owned());
        let parts = HashedParts::new(hasher.clone(), [Part::UserId, key]);
        let pair = |name: &str, value: Box<str>| (Box::<str>::from(name), value);
        let fields = |user_id: Box<str>, key: Box<str>| {
            RecordedRequest::Fields(RecordedFields {
                project: "shop".into(),
                user_id,
                resource: "/pay".into(),
                attributes: [pair("api_key", key), pair("plan", "free".into())].into(),
                cost: 1,
            })
        };
        let found = hash_values(fields("alice".into(), "secret".into()), &parts);
        assert_eq!(found, fields(hash("alice"), hash("secret")));
        let entries = |user: Box<str>| {
            let entries = [pair("user_id", user), pair("path", "/".into())].into();
            let descriptors = [RecordedDescriptor { entries, hits: 1, limit: None }].into();
            RecordedRequest::Descriptors(RecordedDescriptors { domain: "d".into(), descriptors })
        };
        assert_eq!(hash_values(entries("bob".into()), &parts), entries(hash("bob")));
    }
}
