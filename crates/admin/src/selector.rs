//! Selectors in messages.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::v1::CheckRequest;
use tonic::Status;

use super::Administrator;
use rlaas_core::plan::{KeyPart, SelectedKey, Selector, SelectorTarget};
use rlaas_core::rules::{HashedValue, Key, Request, RequestFields, Violation};
use rlaas_proto::status::invalid_field;

/// A selector with its parts, from which the [`Selector`] borrows.
#[derive(Debug)]
pub(super) struct ParsedSelector<'a> {
    target: ParsedTarget<'a>,
    rule: Option<&'a str>,
}

#[derive(Debug)]
enum ParsedTarget<'a> {
    Request(Request<'a>),
    Parts(Vec<KeyPart>),
    Id(&'a str),
    Descriptor { domain: &'a str, entries: Vec<(&'a str, &'a str)> },
}

impl<'a> ParsedSelector<'a> {
    /// Parses a selector, which must be set.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT`, with the field.
    pub(super) fn new(selector: Option<&'a proto::Selector>) -> Result<Self, Status> {
        let selector = selector.ok_or_else(|| invalid_field("selector", "must be set"))?;
        let proto::Selector { target, rule, project_id } = selector;
        let target = target.as_ref();
        let target = target
            .ok_or_else(|| invalid_field("selector", "must have one of request, key and envoy"))?;
        let target = match target {
            Target::Request(request) => ParsedTarget::Request(request_of(request)?),
            Target::Key(key) => target_of_key(key)?,
            Target::Envoy(_) if !project_id.is_empty() => {
                return Err(invalid_field("selector.project_id", "must be empty with envoy"));
            }
            Target::Envoy(proto::DescriptorRef { domain, entries }) => {
                let entries = entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
                ParsedTarget::Descriptor { domain, entries }
            }
        };
        Ok(Self { target, rule: Some(rule.as_str()).filter(|rule| !rule.is_empty()) })
    }

    /// Returns the selector.
    pub(super) fn selector(&self) -> Selector<'_> {
        let target = match &self.target {
            ParsedTarget::Request(request) => SelectorTarget::Request(request),
            ParsedTarget::Parts(parts) => SelectorTarget::Parts(parts),
            ParsedTarget::Id(id) => SelectorTarget::Id(id),
            ParsedTarget::Descriptor { domain, entries } => {
                SelectorTarget::Descriptor { domain, entries }
            }
        };
        Selector { target, rule: self.rule }
    }

    /// Returns the values that the keys may have.
    pub(super) fn values(&self) -> Vec<&str> {
        match &self.target {
            ParsedTarget::Request(request) => {
                let attributes = request.attributes().iter().map(|(_, value)| value);
                attributes.chain([request.user_id()]).collect()
            }
            ParsedTarget::Descriptor { entries, .. } => {
                entries.iter().map(|(_, value)| *value).collect()
            }
            ParsedTarget::Parts(_) | ParsedTarget::Id(_) => Vec::new(),
        }
    }
}

impl Administrator {
    /// Refuses a value in the form of a hash (`#` and 26 characters) that no key has as the hash of a part: no request
    /// meets a key with such a value. Where no parts are hashed, it is an id like any other.
    pub(super) fn refuse_other_hashes(
        &self,
        field: &str,
        keys: &[SelectedKey],
        given: &[&str],
    ) -> Result<(), Status> {
        if self.key_hasher().is_none() {
            return Ok(());
        }
        let values: Vec<String> =
            keys.iter().flat_map(|key| Key::values_in(key.hit.key.id())).collect();
        let all = values.iter().map(String::as_str).chain(given.iter().copied());
        let mut shown = all.filter_map(HashedValue::from_shown);
        if shown.any(|hash| !values.iter().any(|value| value == hash.as_str())) {
            let problem = "must have values in clear, not `#` and the 26 characters of a hash; \
                           key.parts may have hashes of parts that privacy.hash names";
            return Err(invalid_field(field, problem));
        }
        Ok(())
    }
}

/// Parses a request. Its cost makes no difference.
fn request_of(request: &CheckRequest) -> Result<Request<'_>, Status> {
    let fields = RequestFields {
        user_id: &request.user_id,
        resource: &request.resource,
        attributes: &request.attributes,
        cost: None,
        dry_run: false,
    };
    Request::new(fields).map_err(|invalid| {
        let Violation { path, must } = invalid.violation();
        invalid_field(&format!("selector.request.{path}"), &must)
    })
}

fn target_of_key(key: &proto::KeyRef) -> Result<ParsedTarget<'_>, Status> {
    let proto::KeyRef { parts, id, storage_key } = key;
    if !storage_key.is_empty() {
        return Err(invalid_field("selector.key.storage_key", "must be empty in requests"));
    }
    match (parts.is_empty(), id.is_empty()) {
        (false, true) => {
            let part = |part: &proto::KeyPart| KeyPart {
                name: part.name.clone(),
                value: part.value.clone(),
            };
            Ok(ParsedTarget::Parts(parts.iter().map(part).collect()))
        }
        (true, false) => Ok(ParsedTarget::Id(id)),
        _ => Err(invalid_field("selector.key", "must have either parts or id")),
    }
}
