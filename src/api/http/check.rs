//! `POST /v1/check`: `Check` in the JSON mapping of protobuf.
//!
//! A denial has status 429 and a problem document. The document also has all members of the
//! response, so a client can read both with one parser.
//!
//! **Source:** <https://protobuf.dev/programming-guides/json/>.

use std::borrow::Cow;
use std::collections::HashMap;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rlaas_auth::Tenant;
use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_proto::values::check_request;
use rlaas_proto::verdict_messages::response;
use serde_json::Number;
use serde_json::value::RawValue;
use tonic::Code;

use super::json_object::JsonObject;
use super::problem::{Field, PROBLEM_JSON, ProblemDocument, Rejection};
use super::{HttpState, body};
use crate::api::json;
use crate::api::undecided;
use crate::api::v1::set_tenant;
use rlaas_limiter::{Verdict, problem};
use serde::Serialize;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

const USER_ID: Field =
    Field { names: &["userId", "user_id"], reason: "user_id", valid: "a string" };
const RESOURCE: Field = Field { names: &["resource"], reason: "resource", valid: "a string" };
const ATTRIBUTES: Field = Field {
    names: &["attributes"],
    reason: "attributes",
    valid: "an object of strings with unique names",
};
const COST: Field =
    Field { names: &["cost"], reason: "cost", valid: "a whole number from 0 to 4294967295" };
const COSTS: Field = Field {
    names: &["costs"],
    reason: "costs",
    valid: "an object of whole numbers from 0 to 4294967295 with unique names",
};
const AT_LEAST: Field = Field {
    names: &["atLeast", "at_least"],
    reason: "at_least",
    valid: "a whole number from 0 to the cost",
};
const DRY_RUN: Field =
    Field { names: &["dryRun", "dry_run"], reason: "dry_run", valid: "true or false" };
const REQUEST_ID: Field =
    Field { names: &["requestId", "request_id"], reason: "request_id", valid: "a string" };

/// The fields with bounds.
const FIELDS: [Field; 7] = [USER_ID, RESOURCE, ATTRIBUTES, COST, COSTS, AT_LEAST, REQUEST_ID];

/// Decides one request.
pub(super) async fn check(State(state): State<HttpState>, request: Request) -> Response {
    respond(&state, request).await
}

/// Decides one request.
pub(super) async fn respond(state: &HttpState, request: Request) -> Response {
    match decide(state, request).await {
        Ok(verdict) => answer(state, &verdict),
        Err(problem) => problem.into_response(),
    }
}

async fn decide(state: &HttpState, request: Request) -> Result<Verdict, ProblemDocument> {
    let rejected = |rejection: Rejection| ProblemDocument::from(state.count(rejection));
    let tenant = Tenant::from_extensions(request.extensions()).cloned();
    let body = body::read(request.into_body()).await.map_err(rejected)?;
    let mut message = read(&body).map_err(rejected)?;
    let project = set_tenant(tenant.as_ref(), &mut message);
    let request = check_request(&message).map_err(|invalid| {
        undecided::count_check(&state.limiter, project, &message, Code::InvalidArgument);
        rejected(Rejection::out_of_bounds(invalid, &FIELDS))
    })?;
    Ok(state.decide(tenant.as_ref(), &request.in_project(project)).await?)
}

fn answer(state: &HttpState, verdict: &Verdict) -> Response {
    let (status, content_type, mut json) = if verdict.is_allowed() {
        (StatusCode::OK, JSON, b"{}".to_vec())
    } else {
        let problem = serde_json::to_vec(&Denial::new(verdict));
        let problem = problem.expect("strings, numbers and lists are JSON");
        (StatusCode::TOO_MANY_REQUESTS, PROBLEM_JSON, problem)
    };
    json::add_members(&mut json, response(verdict));
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    state.with_headers(verdict, response)
}

fn read(body: &[u8]) -> Result<CheckRequest, Rejection> {
    let mut members = JsonObject::from_body(body)?;
    let request = CheckRequest {
        user_id: members.take(&USER_ID)?.unwrap_or_default(),
        resource: members.take(&RESOURCE)?.unwrap_or_default(),
        attributes: match members.take::<JsonObject<'_>>(&ATTRIBUTES)? {
            Some(attributes) => HashMap::from_iter(attributes.entries(&ATTRIBUTES)?),
            None => HashMap::new(),
        },
        cost: match members.take::<&RawValue>(&COST)? {
            Some(number) => Some(whole_number(number).ok_or_else(|| COST.invalid())?),
            None => None,
        },
        dry_run: members.take(&DRY_RUN)?.unwrap_or_default(),
        request_id: members.take(&REQUEST_ID)?.unwrap_or_default(),
        costs: match members.take::<JsonObject<'_>>(&COSTS)? {
            Some(costs) => read_costs(costs)?,
            None => HashMap::new(),
        },
        at_least: match members.take::<&RawValue>(&AT_LEAST)? {
            Some(number) => whole_number(number).ok_or_else(|| AT_LEAST.invalid())?,
            None => 0,
        },
    };
    members.close()?;
    Ok(request)
}

fn read_costs(costs: JsonObject<'_>) -> Result<HashMap<String, u64>, Rejection> {
    let costs = costs.entries::<&RawValue>(&COSTS)?.into_iter();
    let costs = costs.map(|(rule, units)| Some((rule, whole_number(units)?)));
    costs.collect::<Option<_>>().ok_or_else(|| COSTS.invalid())
}

/// Parses a whole number, or a string that contains one. `1.0` and `1e2` are whole numbers too.
pub(super) fn whole_number(number: &RawValue) -> Option<u64> {
    let text: Cow<'_, str> = match number.get() {
        quoted if quoted.starts_with('"') => serde_json::from_str::<String>(quoted).ok()?.into(),
        bare => bare.into(),
    };
    let number: Number = serde_json::from_str(&text).ok().filter(|_| text.trim() == text)?;
    number.as_u64().or_else(|| {
        let number = number.as_f64()?;
        let fits = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        fits.then_some(number as u64)
    })
}

/// The members of a problem document, to which those of the response are added.
#[derive(Debug, Serialize)]
struct Denial {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

impl Denial {
    fn new(verdict: &Verdict) -> Self {
        Self {
            r#type: problem::TYPE,
            title: problem::TITLE,
            status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
            detail: problem::detail(verdict),
            violated_policies: problem::violated_policies(verdict).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(body: &str) -> String {
        read(body.as_bytes()).expect_err(body).detail
    }

    #[test]
    fn both_spellings_and_every_form_of_a_number_are_accepted() {
        let expected = CheckRequest {
            user_id: "alice".to_owned(),
            resource: "/r".to_owned(),
            attributes: HashMap::from([("plan".to_owned(), "free".to_owned())]),
            cost: Some(100),
            dry_run: true,
            request_id: "7".to_owned(),
            costs: HashMap::from([("tokens".to_owned(), 100)]),
            at_least: 0,
        };
        for cost in ["100", "\"100\"", "1e2", "\"1e2\"", "100.0"] {
            for (user_id, dry_run, request_id) in
                [("userId", "dryRun", "requestId"), ("user_id", "dry_run", "request_id")]
            {
                let body = format!(
                    r#" {{"{user_id}": "\u0061lice", "resource": "/r", "{dry_run}": true,
                         "{request_id}": "7", "attributes": {{"plan": "free"}}, "cost": {cost},
                         "costs": {{"tokens": {cost}}}}} "#
                );
                assert_eq!(read(body.as_bytes()).expect(&body), expected);
            }
        }
        let nulls = r#"{"userId": null, "resource": null, "attributes": null, "cost": null,
                        "dryRun": null, "requestId": null, "costs": null}"#;
        assert_eq!(read(nulls.as_bytes()).expect(nulls), CheckRequest::default());
        assert_eq!(read(b"{}").expect("nothing"), CheckRequest::default());
    }

    #[test]
    fn errors_name_the_field_and_never_its_value() {
        for (body, expected) in [
            ("", "body: not JSON at line 1, column 0"),
            ("{\"userId\": \"s3cret", "body: not JSON at line 1, column 18"),
            ("{\"userId\": \"a\"} x", "body: not JSON at line 1, column 17"),
            ("[\"s3cret\"]", "body must be a JSON object"),
            ("\"s3cret\"", "body must be a JSON object"),
            ("{\"userId\": 7}", "userId must be a string"),
            ("{\"user_id\": [\"s3cret\"]}", "userId must be a string"),
            ("{\"userId\": \"\\ud800\"}", "userId must be a string"),
            ("{\"userId\": \"a\", \"user_id\": \"a\"}", "userId: given twice"),
            ("{\"cost\": 1, \"cost\": 1}", "cost: given twice"),
            ("{\"users\": \"s3cret\"}", "users: unknown field"),
            ("{\"a\\u0000b\": 1}", "a\\0b: unknown field"),
            ("{\"resource\": false}", "resource must be a string"),
            ("{\"requestId\": 7}", "requestId must be a string"),
            ("{\"dryRun\": \"true\"}", "dryRun must be true or false"),
            ("{\"attributes\": []}", "attributes must be an object of strings with unique names"),
            (
                "{\"attributes\": {\"a\": 1}}",
                "attributes must be an object of strings with unique names",
            ),
            (
                "{\"attributes\": {\"a\": null}}",
                "attributes must be an object of strings with unique names",
            ),
            ("{\"attributes\": {\"a\": \"1\", \"a\": \"2\"}}", "attributes: given twice"),
        ] {
            assert_eq!(detail(body), expected, "{body}");
        }
        for cost in ["-1", "1.5", "1e10", "\"\"", "\"x\"", "\" 1\"", "\"NaN\"", "true", "[]", "{}"]
        {
            let detail = self::detail(&format!("{{\"cost\": {cost}}}"));
            assert_eq!(detail, "cost must be a whole number from 0 to 4294967295", "{cost}");
            let detail = self::detail(&format!("{{\"costs\": {{\"a\": {cost}}}}}"));
            let expected = "an object of whole numbers from 0 to 4294967295 with unique names";
            assert_eq!(detail, format!("costs must be {expected}"), "{cost}");
        }
    }
}
