//! Reads request bodies up to a maximum size.

use std::error::Error;
use std::iter::successors;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use tonic::{Code, Status};

use super::problem::Rejection;

/// Maximum size of a body, in bytes. The largest valid request fits, even with every byte escaped as
/// `\u0000`.
pub(super) const MAX_BODY_BYTES: usize = 256 * 1024;
/// Initial capacity of the buffer, in bytes. It grows as data arrives, whatever size was announced.
const INITIAL_CAPACITY: usize = 1024;
/// Larger bodies are received up to this size and discarded: a client that is cut off while it sends
/// does not read the response.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;

/// Reads the whole body. The connection limits the time that this may take.
pub(super) async fn read(body: Body) -> Result<Vec<u8>, Rejection> {
    read_at_most(body, MAX_BODY_BYTES).await
}

/// Reads the whole body, of at most `max` bytes.
pub(super) async fn read_at_most(body: Body, max: usize) -> Result<Vec<u8>, Rejection> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut bytes, mut size) = (Vec::with_capacity(announced.min(INITIAL_CAPACITY)), 0);
    let mut parts = body.into_data_stream();
    while announced.max(size) <= MAX_DISCARDED_BYTES {
        let Some(part) = parts.next().await else { break };
        let part = part.map_err(|error| body_error(&error))?;
        size += part.len();
        if size <= max {
            bytes.extend_from_slice(&part);
        }
    }
    if announced.max(size) > max {
        let problem = format!("body must be at most {max} bytes");
        return Err(Rejection::body(StatusCode::PAYLOAD_TOO_LARGE, problem));
    }
    Ok(bytes)
}

/// Receives and discards the body of a request that is answered without it. Otherwise HTTP/2 resets
/// the stream while the body is still arriving, and some clients (curl 7.88) then drop the response.
///
/// A body above the maximum size is not received, nor one that the client holds back (`Expect`).
pub(super) async fn discard(request: Request) {
    let expects = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut parts, mut size) = (body.into_data_stream(), 0);
    while !expects && announced.max(size) <= MAX_BODY_BYTES {
        // The response is the same at the end of the body and after an error.
        let Some(Ok(part)) = parts.next().await else { break };
        size += part.len();
    }
}

/// Returns the response to a body that did not arrive whole.
fn body_error(error: &axum::Error) -> Rejection {
    let mut causes = successors(error.source(), |cause| (*cause).source());
    match causes.find_map(|cause| cause.downcast_ref::<Status>()).map(Status::code) {
        Some(Code::DeadlineExceeded) => {
            Rejection::body(StatusCode::REQUEST_TIMEOUT, "body: took too long to arrive")
        }
        _ => Rejection::body(StatusCode::BAD_REQUEST, "body: cut off"),
    }
}
