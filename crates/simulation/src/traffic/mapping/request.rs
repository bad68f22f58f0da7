//! From the fields of a line to a request within the bounds of requests.

use std::fmt::Write;

use rlaas_core::rules::descriptors::{DescriptorRequest, InvalidDescriptor};
use rlaas_core::rules::{InvalidRequest, Request};
use thiserror::Error;

use super::expression::Expression;
use super::fields::Fields;
use super::{MapName, MappingError};
use crate::request::{RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest};

/// What becomes the request.
#[derive(Clone, Debug)]
pub(crate) struct RequestMapping {
    identity: Identity,
    cost: Option<Expression>,
}

/// What becomes the parts of a request that rules look at.
#[derive(Clone, Debug)]
enum Identity {
    /// User, resource and attributes.
    Fields {
        /// User or client; absent if nothing is mapped to it.
        user_id: Option<Expression>,
        /// Resource.
        resource: Option<Expression>,
        /// Names and values of attributes.
        attributes: Box<[(Box<str>, Expression)]>,
    },
    /// Domain and descriptors.
    Descriptors {
        /// Domain.
        domain: Expression,
        /// Keys and values of each descriptor.
        descriptors: Box<[Entries]>,
    },
}

/// Keys and values of one descriptor.
type Entries = Box<[(Box<str>, Expression)]>;

/// Why a line can't be a request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// A part is out of bounds.
    #[error(transparent)]
    Fields(#[from] InvalidRequest),
    /// A part is out of bounds.
    #[error(transparent)]
    Descriptors(#[from] InvalidDescriptor),
    /// The cost is no whole number.
    #[error("cost must be a whole number from 0 to {}", u32::MAX)]
    Cost,
    /// The cost is mapped, but the line has none.
    #[error("cost must not be absent; first(FIELD, 1) has a default")]
    NoCost,
}

impl RequestMapping {
    /// Sorts expressions by the parts of requests that they are mapped to.
    ///
    /// # Errors
    ///
    /// [`MappingError`] if the parts do not make one kind of request.
    pub(super) fn new(mappings: Vec<(MapName, Expression)>) -> Result<Self, MappingError> {
        let (mut user_id, mut resource, mut cost, mut domain) = (None, None, None, None);
        let mut attributes = Vec::new();
        let mut descriptors: Vec<Vec<_>> = Vec::new();
        for (name, expression) in mappings {
            match name {
                MapName::UserId => user_id = Some(expression),
                MapName::Resource => resource = Some(expression),
                MapName::Cost => cost = Some(expression),
                MapName::Domain => domain = Some(expression),
                MapName::Attribute(name) => attributes.push((name.into(), expression)),
                MapName::Entry(number, key) => {
                    if descriptors.len() <= number {
                        descriptors.resize_with(number + 1, Vec::new);
                    }
                    descriptors[number].push((key.into(), expression));
                }
                MapName::Time | MapName::Duration | MapName::Status => {}
            }
        }
        let has_fields = user_id.is_some() || resource.is_some() || !attributes.is_empty();
        if has_fields && (domain.is_some() || !descriptors.is_empty()) {
            return Err(MappingError::BothKinds);
        }
        if let Some(missing) = descriptors.iter().position(Vec::is_empty) {
            return Err(MappingError::MissingDescriptor(missing));
        }
        if attributes.len() > Request::MAX_ATTRIBUTES {
            let problem = InvalidRequest::Attributes.to_string();
            return Err(MappingError::Bounds { name: "attributes".to_owned(), problem });
        }
        let identity = match (domain, descriptors.is_empty()) {
            (None, true) => Identity::Fields { user_id, resource, attributes: attributes.into() },
            (Some(domain), false) => {
                let descriptors = descriptors.into_iter().map(Into::into).collect();
                Identity::Descriptors { domain, descriptors }
            }
            _ => return Err(MappingError::HalfOfDescriptors),
        };
        Ok(Self { identity, cost })
    }

    /// Returns `true` if there is a mapping without which no line is a request.
    pub(crate) fn has_identity(&self) -> bool {
        !matches!(self.identity, Identity::Fields { user_id: None, .. })
    }

    /// Returns the request of a line; `None` if it has no user id, domain or descriptor. What has to
    /// be built is built in `scratch`.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if a part of the request is out of bounds.
    pub(crate) fn request(
        &self,
        fields: &impl Fields,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<RecordedRequest>, RequestError> {
        let cost = self.cost(fields, scratch)?;
        let mut value = |of: &Expression| of.value(fields, scratch).map(text);
        match &self.identity {
            Identity::Fields { user_id, resource, attributes } => {
                let Some(user_id) = user_id.as_ref().and_then(&mut value) else { return Ok(None) };
                let resource = resource.as_ref().and_then(&mut value).unwrap_or_default();
                let attributes = attributes
                    .iter()
                    .filter_map(|(name, of)| Some((name.clone(), value(of)?)))
                    .collect();
                let project = Box::default();
                let request = RecordedFields { project, user_id, resource, attributes, cost };
                check_fields(&request)?;
                Ok(Some(RecordedRequest::Fields(request)))
            }
            Identity::Descriptors { domain, descriptors } => {
                let Some(domain) = value(domain) else { return Ok(None) };
                let hits = i64::from(cost);
                let descriptor = |of: &Entries| {
                    let entry =
                        |(key, of): &(Box<str>, Expression)| Some((key.clone(), value(of)?));
                    // As Envoy does: without one of its entries there is no descriptor.
                    let entries = of.iter().map(entry).collect::<Option<_>>()?;
                    Some(RecordedDescriptor { entries, hits, limit: None })
                };
                let descriptors: Box<[_]> = descriptors.iter().filter_map(descriptor).collect();
                if descriptors.is_empty() {
                    return Ok(None);
                }
                let request = RecordedDescriptors { domain, descriptors };
                check_descriptors(&request)?;
                Ok(Some(RecordedRequest::Descriptors(request)))
            }
        }
    }

    fn cost(&self, fields: &impl Fields, scratch: &mut Vec<u8>) -> Result<u32, RequestError> {
        let Some(cost) = &self.cost else { return Ok(1) };
        let cost = cost.value(fields, scratch).ok_or(RequestError::NoCost)?;
        let is_number = cost.iter().all(u8::is_ascii_digit);
        let cost = str::from_utf8(cost).ok().filter(|_| is_number);
        cost.and_then(|cost| cost.parse().ok()).ok_or(RequestError::Cost)
    }
}

/// Returns bytes as text: what is not UTF-8 is percent-encoded.
fn text(bytes: &[u8]) -> Box<str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            write!(text, "%{byte:02X}").expect("a string takes all that is written");
        }
    }
    text.into()
}

fn check_fields(request: &RecordedFields) -> Result<(), InvalidRequest> {
    if !(1..=Request::MAX_USER_ID).contains(&request.user_id.len()) {
        return Err(InvalidRequest::UserId);
    }
    if request.resource.len() > Request::MAX_RESOURCE {
        return Err(InvalidRequest::Resource);
    }
    let is_long = |(_, value): &(_, Box<str>)| value.len() > Request::MAX_ATTRIBUTE_VALUE;
    if request.attributes.iter().any(is_long) {
        return Err(InvalidRequest::AttributeValue);
    }
    Ok(())
}

fn check_descriptors(request: &RecordedDescriptors) -> Result<(), InvalidDescriptor> {
    if !(1..=DescriptorRequest::MAX_DOMAIN).contains(&request.domain.len()) {
        return Err(InvalidDescriptor::Domain);
    }
    let bytes = |one: &RecordedDescriptor| -> usize {
        one.entries.iter().map(|(key, value)| key.len() + value.len()).sum()
    };
    let is_long = |one: &RecordedDescriptor| bytes(one) > DescriptorRequest::MAX_BYTES;
    match request.descriptors.iter().position(is_long) {
        Some(index) => Err(InvalidDescriptor::Entries { index }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::FakeFields;
    use super::super::{FieldNames, Mapping};
    use super::*;

    fn mapping(mappings: &[&str], names: &mut FieldNames) -> Result<RequestMapping, MappingError> {
        Mapping::parse(mappings.iter().copied(), names).map(|mapping| mapping.request)
    }

    fn request(
        mappings: &[&str],
        line: &[(&str, &str)],
    ) -> Result<Option<RecordedRequest>, RequestError> {
        let mut names = FieldNames::default();
        let mapping = mapping(mappings, &mut names).unwrap_or_else(|error| panic!("{error}"));
        mapping.request(&FakeFields::new(&names, line), &mut Vec::new())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Box<[(Box<str>, Box<str>)]> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn fields_become_a_request() {
        let mappings = [
            "user_id=$http_x_user",
            "resource=path($uri)",
            "attributes.plan=plan",
            "attributes.region=region",
            "cost=bytes",
        ];
        let line = [("http_x_user", "ann"), ("uri", "/a?b"), ("region", "eu"), ("bytes", "17")];
        let expected = RecordedFields {
            project: "".into(),
            user_id: "ann".into(),
            resource: "/a".into(),
            attributes: pairs(&[("region", "eu")]),
            cost: 17,
        };
        assert_eq!(request(&mappings, &line), Ok(Some(RecordedRequest::Fields(expected))));
    }

    #[test]
    fn entries_become_descriptors_in_order() {
        let mappings = [
            "domain='edge'",
            "entries.path=uri",
            "entries[1].user=user",
            "entries.user=user",
            "cost=2",
        ];
        let descriptor = |entries| RecordedDescriptor { entries, hits: 2, limit: None };
        let both = [
            descriptor(pairs(&[("path", "/"), ("user", "ann")])),
            descriptor(pairs(&[("user", "ann")])),
        ];
        let of = |descriptors: &[RecordedDescriptor]| {
            let (domain, descriptors) = ("edge".into(), descriptors.into());
            Ok(Some(RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors })))
        };
        assert_eq!(request(&mappings, &[("uri", "/"), ("user", "ann")]), of(&both));
        assert_eq!(request(&mappings, &[("user", "ann")]), of(&both[1..]), "without a path");
        assert_eq!(request(&mappings, &[("uri", "/")]), Ok(None), "without a user");
    }

    #[test]
    fn a_line_without_user_is_no_request() {
        assert_eq!(request(&["user_id='user:' user"], &[]), Ok(None));
        assert_eq!(request(&["resource=uri"], &[("uri", "/")]), Ok(None));
    }

    #[test]
    fn bytes_that_are_no_text_are_percent_encoded() {
        assert_eq!(&*text(b"a\xff\xc3\xa4\xc3"), "a%FF\u{e4}%C3");
        assert_eq!(&*text(b"a\0b"), "a\0b");
    }

    #[test]
    fn values_out_of_bounds_are_errors() {
        let long = "x".repeat(1025);
        let line = [("user", "ann"), ("long", long.as_str()), ("half", "0.5"), ("minus", "-1")];
        let invalid = |error| Err(RequestError::Fields(error));
        for (mappings, expected) in [
            (&["user_id=long"][..], invalid(InvalidRequest::UserId)),
            (&["user_id=user", "resource=long"], invalid(InvalidRequest::Resource)),
            (&["user_id=user", "attributes.x=long"], invalid(InvalidRequest::AttributeValue)),
            (&["user_id=user", "cost=half"], Err(RequestError::Cost)),
            (&["user_id=user", "cost=minus"], Err(RequestError::Cost)),
            (&["user_id=user", "cost=4294967296"], Err(RequestError::Cost)),
            (&["user_id=user", "cost=user"], Err(RequestError::Cost)),
            (&["user_id=user", "cost=absent"], Err(RequestError::NoCost)),
            (
                &["domain=long", "entries.x=user"],
                Err(RequestError::Descriptors(InvalidDescriptor::Domain)),
            ),
        ] {
            assert_eq!(request(mappings, &line), expected, "{mappings:?}");
        }
    }

    #[test]
    fn mappings_that_contradict_each_other_are_errors() {
        let error = |mappings: &[&str]| {
            let error = mapping(mappings, &mut FieldNames::default()).map(|_| ());
            let error = error.expect_err("an error");
            let source = std::error::Error::source(&error).map(ToString::to_string);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        };
        for (mappings, expected) in [
            (&["user_id=a", "user_id=b"][..], "--map user_id: must be given once"),
            (&["user=a"], "--map must be of user_id, resource, "),
            (&["attributes=a"], "--map must be of user_id, resource, "),
            (&["entries[x].a=a"], "--map must be of user_id, resource, "),
            (&["user_id"], "--map must be NAME=EXPRESSION: \"user_id\""),
            (&["attributes.=a"], "--map attributes.: the name must be 1 to 64 bytes"),
            (&["entries.=a"], "--map entries.: the key must not be empty"),
            (&["entries[64].a=a"], "--map entries[64].a: the number must be at most 63"),
            (&["user_id=a", "domain=b"], "--map must be of user_id, resource and attributes, or"),
            (&["domain=b"], "--map must be of domain and of entries, or of neither"),
            (&["domain=b", "entries[1].a=a"], "--map entries[0].KEY: descriptors must be"),
            (&["user_id=path(a"], "--map user_id: \"path(a\", character 7: must be )"),
        ] {
            let error = error(mappings);
            assert!(error.starts_with(expected), "{mappings:?}: {error}");
        }
    }
}
