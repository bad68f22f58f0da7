//! What HTTP has beside messages: etags and statuses of resources.
//!
//! **Source:** RFC 9110 sections 8.8.3, 13.1.1 and 15.3.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use crate::api::http::rejection::Rejection;
use rlaas_auth::{AdminApi, AdminRoute, Verb};

/// Sets the etag of a request from `If-Match`, if the request has one: `*` is any.
///
/// # Errors
///
/// A [`Rejection`] if the header is not one etag in quotes, or the body has another one.
pub(super) fn set_etag(headers: &HeaderMap, message: &mut DynamicMessage) -> Result<(), Rejection> {
    let Some(field) = message.descriptor().get_field_by_name("etag") else { return Ok(()) };
    let mut given = headers.get_all(header::IF_MATCH).iter();
    let (first, more) = (given.next(), given.next());
    let Some(given) = first else { return Ok(()) };
    let text = given.to_str().ok().filter(|_| more.is_none()).map(str::trim);
    if text == Some("*") {
        return Ok(());
    }
    let etag = text.and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    let etag = etag.filter(|etag| !etag.is_empty() && !etag.contains('"'));
    let etag = etag.ok_or_else(|| rejected("If-Match must be one etag in quotes, or *"))?;
    let etag = Value::String(etag.to_owned());
    if message.has_field(&field) && *message.get_field(&field) != etag {
        return Err(rejected("etag must be unset, or that of If-Match"));
    }
    message.set_field(&field, etag);
    Ok(())
}

/// Makes a request one for a whole resource, which is created if it is missing.
///
/// # Errors
///
/// A [`Rejection`] if the request is for a part.
pub(super) fn set_whole(message: &mut DynamicMessage) -> Result<(), Rejection> {
    if message.has_field_by_name("update_mask") {
        return Err(rejected("updateMask must be unset: use PATCH for some fields"));
    }
    message.set_field_by_name("allow_missing", Value::Bool(true));
    Ok(())
}

/// Returns the status of a response.
pub(super) fn status(route: &AdminRoute, response: &DynamicMessage) -> StatusCode {
    let created = response.get_field_by_name("created").and_then(|created| created.as_bool());
    match route.verb {
        Verb::Delete => StatusCode::NO_CONTENT,
        _ if route.rpc.starts_with("Create") || created == Some(true) => StatusCode::CREATED,
        // A report is counted whatever its verdict says.
        _ if route.api == AdminApi::Reservations && is_denied(response) => {
            StatusCode::TOO_MANY_REQUESTS
        }
        _ => StatusCode::OK,
    }
}

fn is_denied(response: &DynamicMessage) -> bool {
    let verdict = response.get_field_by_name("verdict");
    let allowed =
        verdict.and_then(|verdict| verdict.as_message()?.get_field_by_name("allowed")?.as_bool());
    allowed == Some(false)
}

/// Returns the etag of the resource of a response.
pub(super) fn etag(response: &DynamicMessage) -> Option<HeaderValue> {
    let etag_of = |name: &str| {
        let resource = response.get_field_by_name(name)?;
        let etag = resource.as_message()?.get_field_by_name("etag")?;
        Some(etag.as_str()?.to_owned()).filter(|etag| !etag.is_empty())
    };
    let etag = etag_of("project").or_else(|| etag_of("rule"))?;
    HeaderValue::try_from(format!("\"{etag}\"")).ok()
}

fn rejected(detail: &str) -> Rejection {
    Rejection::body(StatusCode::BAD_REQUEST, detail.to_owned())
}
