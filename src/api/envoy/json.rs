//! `RateLimitResponse` in the JSON mapping of protobuf. Members with default values are omitted.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use prost_types::Struct;
use prost_types::value::Kind;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    DescriptorStatus, RateLimit,
};
use rlaas_proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response};
use serde_json::{Map, Number, Value, json};

/// 2^53: whole numbers below it are exact as `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns a response of `ShouldRateLimit`. `raw_body` and `request_headers_to_add` are left out: this
/// service never sets them.
pub(in crate::api) fn response_json(response: &RateLimitResponse) -> Value {
    let mut members = Map::new();
    let code = response.overall_code().as_str_name();
    members.insert("overallCode".to_owned(), code.into());
    let statuses: Vec<Value> = response.statuses.iter().map(status_json).collect();
    members.insert("statuses".to_owned(), statuses.into());
    let headers = response.response_headers_to_add.iter();
    let headers: Vec<Value> =
        headers.map(|header| json!({ "key": header.key, "value": header.value })).collect();
    if !headers.is_empty() {
        members.insert("responseHeadersToAdd".to_owned(), headers.into());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        members.insert("dynamicMetadata".to_owned(), struct_json(metadata));
    }
    Value::Object(members)
}

fn status_json(status: &DescriptorStatus) -> Value {
    let mut members = Map::new();
    members.insert("code".to_owned(), status.code().as_str_name().into());
    if let Some(limit) = &status.current_limit {
        members.insert("currentLimit".to_owned(), limit_json(limit));
    }
    if status.limit_remaining != 0 {
        members.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        members.insert("durationUntilReset".to_owned(), format!("{}s", reset.seconds).into());
    }
    Value::Object(members)
}

fn limit_json(limit: &RateLimit) -> Value {
    let mut members = Map::new();
    if !limit.name.is_empty() {
        members.insert("name".to_owned(), limit.name.as_str().into());
    }
    if limit.requests_per_unit != 0 {
        members.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
    }
    if limit.unit() != rate_limit_response::rate_limit::Unit::Unknown {
        members.insert("unit".to_owned(), limit.unit().as_str_name().into());
    }
    if let Some(number) = limit.unit_multiplier {
        members.insert("unitMultiplier".to_owned(), number.into());
    }
    Value::Object(members)
}

fn struct_json(fields: &Struct) -> Value {
    fields.fields.iter().map(|(name, value)| (name.clone(), value_json(value))).collect()
}

fn value_json(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(boolean)) => (*boolean).into(),
        Some(Kind::NumberValue(number)) => number_json(*number),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_json).collect(),
        Some(Kind::StructValue(fields)) => struct_json(fields),
    }
}

fn number_json(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and below 2^53")]
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}
