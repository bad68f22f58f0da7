//! Streams over HTTP: server-sent events.
//!
//! **Source:** WHATWG HTML, "Server-sent events".

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tonic::Status;

use super::call::InProcessCall;
use crate::json_messages;

/// Returns the response of a call that streams. Each message is the data of one event; the text of a
/// status that ends the stream is the data of an event `error`.
pub(super) fn response(call: InProcessCall) -> Response {
    let events = stream::unfold(Some(call), |call| async move {
        let mut call = call?;
        let (event, next) = match call.next().await {
            Ok(Some(message)) => (event("message", &json_messages::write(&message)), Some(call)),
            Ok(None) => return None,
            Err(status) => (event("error", &error(&status)), None),
        };
        Some((Ok::<_, std::convert::Infallible>(event), next))
    });
    let content_type = HeaderValue::from_static("text/event-stream");
    (StatusCode::OK, [(header::CONTENT_TYPE, content_type)], Body::from_stream(events))
        .into_response()
}

/// Returns an event. JSON without white space has no line breaks.
fn event(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

fn error(status: &Status) -> String {
    serde_json::json!({ "code": i32::from(status.code()), "message": status.message() }).to_string()
}
