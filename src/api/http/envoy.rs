//! The HTTP endpoints of envoyproxy/ratelimit, for existing probes and tools: `POST /json` and
//! `GET /rlconfig`; `GET /healthcheck` is with the probes.
//!
//! Paths, bodies and statuses are the same, with one exception: a request without a decision has
//! status 500 here and 400 there, although the caller made no mistake.
//!
//! **Source:** envoyproxy/ratelimit, "HTTP Port" and "Debug Port";
//! <https://protobuf.dev/programming-guides/json/>.

use std::fmt::Write;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::r#type::v3::RateLimitUnit;
use serde_json::value::RawValue;
use tonic::{Code, Status};

use super::check::whole_number;
use super::json_object::JsonObject;
use super::problem::{Field, Rejection};
use super::{HttpState, body};
use crate::api::envoy::{json, unit};
use crate::api::traces::TracedDecision;
use crate::clock::Deadline;
use crate::rules::descriptors::{DescriptorRequest, DescriptorRule};
use crate::rules::{Grant, Mode};

const UNITS: &str = "a whole number from 0 to 4294967295";
const DOMAIN: Field = Field { names: &["domain"], reason: "domain", valid: "a string" };
const DESCRIPTORS: Field =
    Field { names: &["descriptors"], reason: "descriptors", valid: "a list of objects" };
const HITS_ADDEND: Field =
    Field { names: &["hitsAddend", "hits_addend"], reason: "hits_addend", valid: UNITS };
const IS_NEGATIVE_HITS: Field = Field {
    names: &["isNegativeHits", "is_negative_hits"],
    reason: "hits_addend",
    valid: "true or false",
};
const ENTRIES: Field =
    Field { names: &["entries"], reason: "descriptors", valid: "a list of objects" };
const KEY: Field = Field { names: &["key"], reason: "descriptors", valid: "a string" };
const VALUE: Field = Field { names: &["value"], reason: "descriptors", valid: "a string" };
const LIMIT: Field = Field { names: &["limit"], reason: "limit", valid: "an object" };
const REQUESTS_PER_UNIT: Field =
    Field { names: &["requestsPerUnit", "requests_per_unit"], reason: "limit", valid: UNITS };
const UNIT_MULTIPLIER: Field =
    Field { names: &["unitMultiplier", "unit_multiplier"], reason: "limit", valid: UNITS };
const UNIT: Field =
    Field { names: &["unit"], reason: "limit", valid: "SECOND, MINUTE, HOUR, DAY, MONTH or YEAR" };

/// `GET /rlconfig`: one line for each rule in force, in the order of the files.
pub(super) async fn rlconfig(State(state): State<HttpState>) -> Result<String, StatusCode> {
    let snapshot = state.limiter.snapshot();
    let written = state.background.spawn_blocking(move || {
        let mut lines = String::new();
        for rule in snapshot.rules.descriptors().iter() {
            push_line(&mut lines, rule);
        }
        lines
    });
    // The task was cancelled because the process is shutting down.
    written.await.map_err(|_cancelled| StatusCode::SERVICE_UNAVAILABLE)
}

fn push_line(lines: &mut String, rule: &DescriptorRule) {
    let units = match rule.grant {
        Grant::Limited(limit) => limit.units(),
        Grant::Banned | Grant::Unlimited => 0,
    };
    let unit = unit(rule.window).as_str_name();
    let is_quota = matches!(rule.mode, Mode::Quota | Mode::ShadowQuota);
    let _infallible = writeln!(
        lines,
        "{}: unit={unit} requests_per_unit={units}, shadow_mode: {}, quota_mode: {is_quota}",
        rule.name,
        rule.mode.is_shadow()
    );
}

/// `POST /json`: `ShouldRateLimit` in the JSON mapping of protobuf.
pub(super) async fn should_rate_limit(State(state): State<HttpState>, body: Body) -> Response {
    let request = match read(body).await {
        Ok(request) => request,
        Err(rejection) => {
            let Rejection { status, detail, .. } = state.count(rejection);
            return (status, detail).into_response();
        }
    };
    let verdict = match state.envoy.decide(&request, Deadline::NEVER).await {
        Ok(verdict) => verdict,
        Err(status) => return failed(&status),
    };
    let answer = Json(json::response_json(&state.envoy.respond(&request, &verdict)));
    let status = if verdict.is_allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let mut response = (status, answer).into_response();
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    if state.is_traced {
        response.extensions_mut().insert(TracedDecision::from_descriptors(&verdict));
    }
    response
}

fn failed(status: &Status) -> Response {
    match status.code() {
        Code::InvalidArgument => {
            (StatusCode::BAD_REQUEST, status.message().to_owned()).into_response()
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response(),
    }
}

async fn read(body: Body) -> Result<RateLimitRequest, Rejection> {
    let body = body::read(body).await?;
    let mut members = JsonObject::from_body(&body)?;
    let request = RateLimitRequest {
        domain: members.take(&DOMAIN)?.unwrap_or_default(),
        descriptors: objects(&mut members, &DESCRIPTORS, descriptor)?,
        hits_addend: number(&mut members, &HITS_ADDEND)?.unwrap_or_default(),
    };
    members.close()?;
    Ok(request)
}

fn descriptor(mut members: JsonObject<'_>) -> Result<RateLimitDescriptor, Rejection> {
    let limit = members.take::<&RawValue>(&LIMIT)?;
    let limit = limit.map(|limit| {
        let members = JsonObject::from_value(limit, &LIMIT)?;
        limit_override(members).map_err(|rejection| rejection.below("limit"))
    });
    let descriptor = RateLimitDescriptor {
        entries: objects(&mut members, &ENTRIES, entry)?,
        limit: limit.transpose()?,
        hits_addend: number(&mut members, &HITS_ADDEND)?.map(u64::from),
        is_negative_hits: members.take(&IS_NEGATIVE_HITS)?.unwrap_or_default(),
    };
    members.close()?;
    Ok(descriptor)
}

fn entry(mut members: JsonObject<'_>) -> Result<Entry, Rejection> {
    let entry = Entry {
        key: members.take(&KEY)?.unwrap_or_default(),
        value: members.take(&VALUE)?.unwrap_or_default(),
    };
    members.close()?;
    Ok(entry)
}

fn limit_override(mut members: JsonObject<'_>) -> Result<RateLimitOverride, Rejection> {
    let unit: Option<serde_json::Value> = members.take(&UNIT)?;
    let unit = unit.map(|unit| {
        let by_name = unit.as_str().and_then(RateLimitUnit::from_str_name).map(i32::from);
        let number = || i32::try_from(unit.as_i64()?).ok();
        by_name.or_else(number).ok_or_else(|| UNIT.invalid())
    });
    let limit = RateLimitOverride {
        requests_per_unit: number(&mut members, &REQUESTS_PER_UNIT)?.unwrap_or_default(),
        unit: unit.transpose()?.unwrap_or_default(),
        unit_multiplier: number(&mut members, &UNIT_MULTIPLIER)?,
    };
    members.close()?;
    Ok(limit)
}

/// Reads a list of objects, each with `read`.
fn objects<T>(
    members: &mut JsonObject<'_>,
    field: &Field,
    read: impl Fn(JsonObject<'_>) -> Result<T, Rejection>,
) -> Result<Vec<T>, Rejection> {
    let items: Vec<&RawValue> = members.take(field)?.unwrap_or_default();
    if field.names == DESCRIPTORS.names && items.len() > DescriptorRequest::MAX_DESCRIPTORS {
        return Err(field.invalid());
    }
    let read = |(index, item): (usize, &&RawValue)| {
        let place = format!("{}[{index}]", field.names[0]);
        let members = JsonObject::from_value(item, field).map_err(|rejection| {
            rejection.with_detail(format!("{place} must be an object with unique members"))
        })?;
        read(members).map_err(|rejection| rejection.below(&place))
    };
    items.iter().enumerate().map(read).collect()
}

fn number(members: &mut JsonObject<'_>, field: &Field) -> Result<Option<u32>, Rejection> {
    let given = members.take::<&RawValue>(field)?;
    let number = given.map(|given| {
        let number = whole_number(given).and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| field.invalid())
    });
    number.transpose()
}
