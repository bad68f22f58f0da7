//! The notation of the case files for requests and responses: short, but complete.
//!
//! ```text
//! shop: user=alice                       one descriptor with one entry
//! shop *2: user=alice; a=1,b=2 *3        two; hits_addend of the request, and of a descriptor
//! shop: user=alice -1                    is_negative_hits
//! shop: user=alice =5/minute             a limit override; =5/3minute has a unit_multiplier
//! OK [OK 5/MINUTE left 4 reset 60]       overall code, then each status; 5/3MINUTE has a unit_multiplier
//! OVER_LIMIT [OK | OVER_LIMIT 0/DAY left 0 reset 86400 name=ban] + ratelimit-limit: 5
//! OK [OK] ~ {"domain":"shop"}            its dynamic_metadata, as JSON
//! INVALID_ARGUMENT domain must be …    an error
//! ```

use std::fmt::Write;

use prost_types::Struct;
use prost_types::value::Kind;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use rlaas_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rlaas_proto::envoy::r#type::v3::RateLimitUnit;
use serde_json::Value;
use tonic::Status;

/// Parses a request.
pub(crate) fn request(text: &str) -> RateLimitRequest {
    let (head, descriptors) = text.split_once(':').expect("a domain and a colon");
    let (domain, hits) = head.split_once(" *").unwrap_or((head, "0"));
    let descriptors = descriptors.split(';').map(str::trim).filter(|text| !text.is_empty());
    RateLimitRequest {
        domain: domain.trim().to_owned(),
        descriptors: descriptors.map(descriptor).collect(),
        hits_addend: hits.parse().expect("hits"),
    }
}

fn descriptor(text: &str) -> RateLimitDescriptor {
    let mut words = text.split(' ');
    let entries = words.next().expect("entries").split(',').filter(|entry| *entry != "-");
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').expect("a key and a value");
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    let mut descriptor =
        RateLimitDescriptor { entries: entries.map(entry).collect(), ..Default::default() };
    for word in words {
        let (sign, number) = word.split_at(1);
        match sign {
            "*" => descriptor.hits_addend = Some(number.parse().expect("hits")),
            "-" => {
                descriptor.hits_addend = Some(number.parse().expect("hits"));
                descriptor.is_negative_hits = true;
            }
            "=" => descriptor.limit = Some(limit(number)),
            _ => panic!("{word} in {text}"),
        }
    }
    descriptor
}

fn limit(text: &str) -> RateLimitOverride {
    let (units, window) = text.split_once('/').expect("units and a unit");
    let unit = window.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let by_name = RateLimitUnit::from_str_name(&unit.to_uppercase()).map(i32::from);
    let number = window.strip_suffix(unit).filter(|_| by_name.is_some());
    let number = number.filter(|number| !number.is_empty());
    RateLimitOverride {
        requests_per_unit: units.parse().expect("units"),
        unit: by_name.unwrap_or_else(|| window.parse().expect("a unit or its number")),
        unit_multiplier: number.map(|number| number.parse().expect("a number of units")),
    }
}

/// Formats a response or an error.
pub(crate) fn answer(answer: &Result<RateLimitResponse, Status>) -> String {
    match answer {
        Ok(response) => written(response),
        Err(status) => {
            let code = format!("{:?}", status.code());
            let words = code.chars().enumerate().map(|(position, letter)| {
                let gap = if position > 0 && letter.is_uppercase() { "_" } else { "" };
                format!("{gap}{}", letter.to_ascii_uppercase())
            });
            format!("{} {}", words.collect::<String>(), status.message())
        }
    }
}

fn written(response: &RateLimitResponse) -> String {
    let statuses: Vec<String> = response.statuses.iter().map(written_status).collect();
    let mut text = format!("{} [{}]", code(response.overall_code), statuses.join(" | "));
    for header in &response.response_headers_to_add {
        write!(text, " + {}: {}", header.key, header.value).expect("text");
    }
    assert!(response.request_headers_to_add.is_empty());
    assert!(response.raw_body.is_empty());
    if let Some(metadata) = &response.dynamic_metadata {
        write!(text, " ~ {}", json(metadata)).expect("text");
    }
    text
}

fn json(of: &Struct) -> Value {
    of.fields.iter().map(|(name, value)| (name.clone(), json_value(value))).collect()
}

fn json_value(value: &prost_types::Value) -> Value {
    match value.kind.as_ref().expect("a value of some kind") {
        Kind::NullValue(_) => Value::Null,
        Kind::BoolValue(boolean) => (*boolean).into(),
        Kind::NumberValue(number) => (*number).into(),
        Kind::StringValue(text) => text.as_str().into(),
        Kind::ListValue(list) => list.values.iter().map(json_value).collect(),
        Kind::StructValue(of) => json(of),
    }
}

fn written_status(status: &DescriptorStatus) -> String {
    let mut text = code(status.code).to_owned();
    if let Some(limit) = &status.current_limit {
        let unit = limit.unit().as_str_name();
        let number = limit.unit_multiplier.map(|number| number.to_string()).unwrap_or_default();
        write!(text, " {}/{number}{unit}", limit.requests_per_unit).expect("text");
    }
    if status.current_limit.is_some() || status.limit_remaining != 0 {
        write!(text, " left {}", status.limit_remaining).expect("text");
    }
    if let Some(reset) = &status.duration_until_reset {
        assert_eq!(reset.nanos, 0, "whole seconds");
        write!(text, " reset {}", reset.seconds).expect("text");
    }
    match status.current_limit.as_ref().map(|limit| limit.name.as_str()) {
        None | Some("") => text,
        Some(name) => format!("{text} name={name}"),
    }
}

fn code(code: i32) -> &'static str {
    match code {
        1 => "OK",
        2 => "OVER_LIMIT",
        _ => panic!("code {code}"),
    }
}
