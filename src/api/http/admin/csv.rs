//! Usage as comma-separated values, where a caller prefers them.
//!
//! **Source:** RFC 4180; RFC 9110 section 12.5.1.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use rlaas_proto::ratelimit::admin::v1::ListUsageResponse;
use tonic::Status;

use rlaas_auth::AdminRoute;
use rlaas_proto::csv;

/// The type of the values.
pub(super) const TYPE: &str = "text/csv";
/// Header of a response that has the token of the next page.
pub(super) const NEXT_PAGE: &str = "rlaas-next-page-token";
/// The method that has them.
pub(super) const RPC: &str = "ListUsage";

/// Returns `true` if the caller prefers the values to JSON.
pub(super) fn is_preferred(route: &AdminRoute, headers: &HeaderMap) -> bool {
    let (mut csv, mut json) = (None, None);
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for (position, range) in accepted.flat_map(|value| value.split(',')).enumerate() {
        let mut parts = range.split(';').map(str::trim);
        let preference = match parts.next() {
            Some(name) if name.eq_ignore_ascii_case(TYPE) => &mut csv,
            Some(name) if name.eq_ignore_ascii_case("application/json") => &mut json,
            _ => continue,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        let weight = weight.map_or(Some(1.0), |weight| weight.parse::<f32>().ok());
        // Of equal weights the first counts.
        let weight =
            weight.filter(|weight| *weight > 0.0).map(|weight| (weight, usize::MAX - position));
        *preference = preference.or(weight);
    }
    route.rpc == RPC && csv.is_some() && csv > json
}

/// Makes a page of a request without a size the largest one: a table is read as a whole.
pub(super) fn set_page_size(message: &mut DynamicMessage) {
    if !message.has_field_by_name("page_size") {
        message.set_field_by_name("page_size", Value::I32(1_000));
    }
}

/// Returns a page as values.
///
/// # Errors
///
/// A status if the message is another one.
pub(super) fn response(message: &DynamicMessage) -> Result<Response, Status> {
    debug_assert_eq!(message.descriptor().name(), "ListUsageResponse", "the route has one method");
    let page = message.transcode_to::<ListUsageResponse>();
    let page = page.map_err(|_| Status::internal("internal error"))?;
    let body = csv::header().to_owned() + &csv::lines(&page.usage);
    let mut response = (StatusCode::OK, Body::from(body)).into_response();
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if let Some(token) = Some(page.next_page_token).filter(|token| !token.is_empty()) {
        let token = HeaderValue::try_from(token).map_err(|_| Status::internal("internal error"))?;
        headers.insert(NEXT_PAGE, token);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;

    #[test]
    fn values_are_for_those_who_prefer_them() {
        let route = |path| crate::api::routes::of_http(&Method::GET, path).expect("a route");
        let prefers = |accepted: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accepted));
            assert!(!is_preferred(route("/v1/projects"), &headers), "{accepted}");
            is_preferred(route("/v1/projects/shop/usage"), &headers)
        };
        for accepted in ["text/csv", "Text/CSV; header=present", "text/csv, */*;q=0.1"] {
            assert!(prefers(accepted), "{accepted}");
        }
        for accepted in ["text/csv, application/json", "application/json;q=0.9, text/csv"] {
            assert!(prefers(accepted), "{accepted}");
        }
        for accepted in ["", "*/*", "text/html", "application/json, text/csv", "text/csv;q=0"] {
            assert!(!prefers(accepted), "{accepted}");
        }
        for accepted in ["text/csv;q=0.5, application/json", "text/csv;q=x", "text/csvx"] {
            assert!(!prefers(accepted), "{accepted}");
        }
    }
}
