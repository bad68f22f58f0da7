//! `dynamic_metadata` of a response: the request, and the metadata of the rules that allow it.
//!
//! **Source:** envoyproxy/ratelimit, `RESPONSE_DYNAMIC_METADATA`, with the same names and formats. One
//! difference: there a rule with `detailed_metric` or `value_to_metric` loses its metadata.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use super::passes;
use crate::rules::Grant;
use crate::rules::descriptors::{Metadata, MetadataValue};
use rlaas_limiter::DescriptorVerdict;

/// Returns the `dynamic_metadata` of the response to `request`.
pub(super) fn dynamic_metadata(request: &RateLimitRequest, verdict: &DescriptorVerdict) -> Struct {
    let descriptors =
        request.descriptors.iter().map(|answered| Kind::StructValue(descriptor(answered)));
    let mut fields = vec![("domain", text(&request.domain)), ("descriptors", list(descriptors))];
    if request.hits_addend != 0 {
        fields.push(("hitsAddend", Kind::NumberValue(request.hits_addend.into())));
    }
    let mut passed = Metadata::default();
    let limited = verdict.answers.iter().flatten();
    let limited = limited.filter(|answer| answer.decided.grant != Grant::Unlimited);
    for answer in limited.filter(|answer| passes(&answer.decided)) {
        answer.metadata.iter().for_each(|metadata| passed.merge(metadata));
    }
    if !passed.0.is_empty() {
        fields.push(("metadata", Kind::StructValue(struct_of_metadata(&passed))));
    }
    struct_of_fields(fields)
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Struct {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|entry| text(&format!("{}={}", entry.key, entry.value)));
    let mut fields = vec![("entries", list(entries))];
    if let Some(limit) = descriptor.limit {
        let unit = limit.unit().as_str_name();
        let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        fields.push(("limit", Kind::StringValue(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "numbers in a Struct are f64")]
        fields.push(("hitsAddend", Kind::NumberValue(hits as f64)));
    }
    struct_of_fields(fields)
}

fn struct_of_fields(fields: Vec<(&str, Kind)>) -> Struct {
    let named = |(name, kind): (&str, Kind)| (name.to_owned(), proto_value(kind));
    Struct { fields: fields.into_iter().map(named).collect() }
}

fn struct_of_metadata(metadata: &Metadata) -> Struct {
    let named = |(name, value): (&String, &MetadataValue)| (name.clone(), metadata_value(value));
    Struct { fields: metadata.0.iter().map(named).collect() }
}

fn metadata_value(value: &MetadataValue) -> Value {
    proto_value(match value {
        MetadataValue::Null => Kind::NullValue(0),
        MetadataValue::Boolean(boolean) => Kind::BoolValue(*boolean),
        MetadataValue::Number(number) => Kind::NumberValue(*number),
        MetadataValue::Text(text) => Kind::StringValue(text.clone()),
        MetadataValue::List(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(metadata_value).collect() })
        }
        MetadataValue::Map(map) => Kind::StructValue(struct_of_metadata(map)),
    })
}

fn list(values: impl Iterator<Item = Kind>) -> Kind {
    Kind::ListValue(ListValue { values: values.map(proto_value).collect() })
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

fn proto_value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}
