//! The requests of steps: checks and Envoy's descriptors, each with what the case has for all of its
//! steps.

use std::collections::HashMap;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::r#type::v3::RateLimitUnit;
use rlaas_proto::ratelimit::v1::CheckRequest;

use super::fields::FileValue;
use super::scalar;
use crate::api::envoy;
use crate::cli::admin::shown_value;
use crate::rules::{InvalidRequest, Request, RequestFields};

/// A request as the server would receive it.
#[derive(Clone, Debug)]
pub(super) enum StepRequest {
    /// `Check`.
    Check(CheckRequest),
    /// `ShouldRateLimit` of Envoy.
    Descriptors(RateLimitRequest),
}

/// What a case says of the requests of all of its steps.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedRequest {
    check: Option<CheckRequest>,
    descriptors: Option<RateLimitRequest>,
}

impl SharedRequest {
    /// Reads `check` or `descriptors` of a case.
    pub(super) fn read(check: Option<&FileValue<'_>>, descriptors: Option<&FileValue<'_>>) -> Self {
        if let (Some(_), Some(descriptors)) = (check, descriptors) {
            descriptors.refuse("must not be given with check");
        }
        Self {
            check: check.map(|value| read_check(value, CheckRequest::default())),
            descriptors: descriptors.map(|of| read_descriptors(of, RateLimitRequest::default())),
        }
    }

    /// Reads `check` or `descriptors` of a step; its fields replace those of the case. Returns `None`
    /// if neither has a request.
    pub(super) fn read_step(
        &self,
        check: Option<&FileValue<'_>>,
        descriptors: Option<&FileValue<'_>>,
    ) -> Option<StepRequest> {
        match (check, descriptors) {
            (Some(_), Some(descriptors)) => {
                descriptors.refuse("must not be given with check");
                None
            }
            (Some(check), None) => {
                let shared = self.check.clone().unwrap_or_default();
                Some(StepRequest::Check(read_check(check, shared)))
            }
            (None, Some(descriptors)) => {
                let shared = self.descriptors.clone().unwrap_or_default();
                Some(StepRequest::Descriptors(read_descriptors(descriptors, shared)))
            }
            (None, None) => {
                let check = self.check.clone().map(StepRequest::Check);
                check.or_else(|| self.descriptors.clone().map(StepRequest::Descriptors))
            }
        }
    }
}

impl StepRequest {
    /// Returns why the server would refuse the request, whatever the rules; the text begins with the
    /// field.
    pub(super) fn invalid(&self) -> Option<String> {
        match self {
            Self::Check(request) => parse_check(request).err().map(|error| error.to_string()),
            Self::Descriptors(request) => {
                envoy::parse(request).err().map(|error| error.to_string())
            }
        }
    }

    /// Returns one line for people.
    pub(super) fn describe(&self) -> String {
        let mut parts = Vec::new();
        let pair = |name: &str, value: &str| format!("{name}: {}", shown_value(value));
        let verb = match self {
            Self::Check(request) => {
                parts.push(pair("user_id", &request.user_id));
                if !request.resource.is_empty() {
                    parts.push(pair("resource", &request.resource));
                }
                let mut attributes: Vec<_> = request.attributes.iter().collect();
                attributes.sort();
                parts.extend(attributes.into_iter().map(|(name, value)| pair(name, value)));
                parts.extend(request.cost.map(|cost| format!("cost: {cost}")));
                parts.extend(request.dry_run.then(|| "dry_run: true".to_owned()));
                if !request.request_id.is_empty() {
                    parts.push(pair("request_id", &request.request_id));
                }
                "check"
            }
            Self::Descriptors(request) => {
                parts.push(pair("domain", &request.domain));
                for descriptor in &request.descriptors {
                    let entries = descriptor.entries.iter();
                    let entries: Vec<_> = entries
                        .map(|of| format!("{}={}", shown_value(&of.key), shown_value(&of.value)))
                        .collect();
                    parts.push(format!("[{}]", entries.join(", ")));
                }
                "descriptors"
            }
        };
        format!("{verb} {}", parts.join(", "))
    }
}

/// Checks the fields of a request against their bounds.
pub(super) fn parse_check(request: &CheckRequest) -> Result<Request<'_>, InvalidRequest> {
    let CheckRequest { user_id, resource, attributes, cost, dry_run, request_id } = request;
    let (cost, dry_run) = (*cost, *dry_run);
    Request::new(RequestFields { user_id, resource, attributes, cost, dry_run })?
        .with_request_id(request_id)
}

fn read_check(value: &FileValue<'_>, shared: CheckRequest) -> CheckRequest {
    let Some(mut fields) = value.fields() else { return shared };
    let mut text = |name| fields.take(name).and_then(|value| value.text());
    let user_id = text("user_id").unwrap_or(shared.user_id);
    let resource = text("resource").unwrap_or(shared.resource);
    let request_id = text("request_id").unwrap_or(shared.request_id);
    let attributes = fields.take("attributes").map(|value| read_attributes(&value));
    let attributes = attributes.unwrap_or(shared.attributes);
    let cost = fields.take("cost").and_then(|value| value.read(whole)).or(shared.cost);
    let dry_run = fields.take("dry_run").and_then(|value| value.read(scalar::flag));
    let dry_run = dry_run.unwrap_or(shared.dry_run);
    fields.close();
    CheckRequest { user_id, resource, attributes, cost, dry_run, request_id }
}

fn read_attributes(value: &FileValue<'_>) -> HashMap<String, String> {
    let entries = value.entries().unwrap_or_default().into_iter();
    entries.filter_map(|(name, value)| Some((name.to_owned(), value.text()?))).collect()
}

fn read_descriptors(value: &FileValue<'_>, shared: RateLimitRequest) -> RateLimitRequest {
    let Some(mut fields) = value.fields() else { return shared };
    let domain = fields.take("domain").and_then(|value| value.text()).unwrap_or(shared.domain);
    let hits = fields.take("hits_addend").and_then(|value| value.read(whole_u32));
    let hits_addend = hits.unwrap_or(shared.hits_addend);
    let list = fields.take("descriptors");
    let entries = fields.take("entries");
    let descriptors = match (list, entries) {
        (None, None) => shared.descriptors,
        (None, Some(entries)) => {
            let entries = read_entries(&entries);
            vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }]
        }
        (Some(list), None) => {
            let items = list.items().unwrap_or_default();
            items.iter().map(read_descriptor).collect()
        }
        (Some(_), Some(entries)) => {
            entries.refuse("must not be given with descriptors");
            shared.descriptors
        }
    };
    fields.close();
    RateLimitRequest { domain, descriptors, hits_addend }
}

fn read_descriptor(value: &FileValue<'_>) -> RateLimitDescriptor {
    let Some(mut fields) = value.fields() else { return RateLimitDescriptor::default() };
    let entries = fields.require("entries").map(|value| read_entries(&value));
    let hits_addend = fields.take("hits_addend").and_then(|value| value.read(whole));
    let negative = fields.take("is_negative_hits").and_then(|value| value.read(scalar::flag));
    let limit = fields.take("limit").and_then(|value| read_limit(&value));
    fields.close();
    RateLimitDescriptor {
        entries: entries.unwrap_or_default(),
        limit,
        hits_addend,
        is_negative_hits: negative.unwrap_or_default(),
    }
}

/// Reads `{KEY: VALUE, …}`, `[[KEY, VALUE], …]` or Envoy's `[{key: KEY, value: VALUE}, …]`.
fn read_entries(value: &FileValue<'_>) -> Vec<Entry> {
    if value.is_map() {
        let entries = value.entries().unwrap_or_default().into_iter();
        let entry = |(key, value): (&str, FileValue<'_>)| {
            Some(Entry { key: key.to_owned(), value: value.text()? })
        };
        return entries.filter_map(entry).collect();
    }
    let items = value.items().unwrap_or_default();
    items.iter().filter_map(read_entry).collect()
}

fn read_entry(value: &FileValue<'_>) -> Option<Entry> {
    if value.is_map() {
        let mut fields = value.fields()?;
        let key = fields.require("key").and_then(|value| value.text());
        let text = fields.take("value").and_then(|value| value.text()).unwrap_or_default();
        fields.close();
        return Some(Entry { key: key?, value: text });
    }
    let items = value.items()?;
    let [key, value] = &*items else {
        value.refuse("must be [KEY, VALUE]");
        return None;
    };
    Some(Entry { key: key.text()?, value: value.text()? })
}

/// Reads a limit that the request brings along.
fn read_limit(value: &FileValue<'_>) -> Option<RateLimitOverride> {
    let mut fields = value.fields()?;
    let units = fields.require("requests_per_unit").and_then(|value| value.read(whole_u32));
    let unit = fields.require("unit").and_then(|value| value.read(unit));
    fields.close();
    Some(RateLimitOverride { requests_per_unit: units?, unit: unit?.into() })
}

fn unit(text: &str) -> Result<RateLimitUnit, &'static str> {
    RateLimitUnit::from_str_name(&text.to_ascii_uppercase())
        .filter(|unit| *unit != RateLimitUnit::Unknown)
        .ok_or("must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR")
}

fn whole(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "must be a whole number from 0")
}

fn whole_u32(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "must be a whole number from 0 to 4294967295")
}
