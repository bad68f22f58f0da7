//! Reads bodies, within bounds.

use std::error::Error;
use std::iter::successors;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use tonic::{Code, Status};

use super::rejection::Rejection;

/// Largest body that is read, in bytes: a request at all its bounds fits, even if each of its bytes
/// is written as `\u0000`.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// Bytes that most bodies fit into: who announces more is given more as it comes.
const INITIAL_CAPACITY: usize = 1024;
/// What is larger is still received up to here, and dropped: a client that is cut off while it
/// sends does not see the answer.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;

/// The whole body. How long it may take is for its connection to say.
pub(super) async fn read(body: Body) -> Result<Vec<u8>, Rejection> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut bytes, mut size) = (Vec::with_capacity(announced.min(INITIAL_CAPACITY)), 0);
    let mut parts = body.into_data_stream();
    while announced.max(size) <= MAX_DISCARDED_BYTES {
        let Some(part) = parts.next().await else { break };
        let part = part.map_err(|error| body_error(&error))?;
        size += part.len();
        if size <= MAX_BODY_BYTES {
            bytes.extend_from_slice(&part);
        }
    }
    if announced.max(size) > MAX_BODY_BYTES {
        let problem = format!("body must be at most {MAX_BODY_BYTES} bytes");
        return Err(Rejection::body(StatusCode::PAYLOAD_TOO_LARGE, problem));
    }
    Ok(bytes)
}

/// Reads the body of a request that is answered without it, and drops it. HTTP/2 would reset the
/// stream of an answered request whose body is still on its way, and clients (curl 7.88 among them)
/// drop the answer then.
///
/// A body that is larger than any that is read, or comes only if it is wanted (`Expect`), is left.
pub(super) async fn discard(request: Request) {
    let expects = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut parts, mut size) = (body.into_data_stream(), 0);
    while !expects && announced.max(size) <= MAX_BODY_BYTES {
        // At its end and where it is cut off the answer is the same.
        let Some(Ok(part)) = parts.next().await else { break };
        size += part.len();
    }
}

/// Why there is no more of it.
fn body_error(error: &axum::Error) -> Rejection {
    let mut causes = successors(error.source(), |cause| (*cause).source());
    match causes.find_map(|cause| cause.downcast_ref::<Status>()).map(Status::code) {
        Some(Code::DeadlineExceeded) => {
            Rejection::body(StatusCode::REQUEST_TIMEOUT, "body: took too long to arrive")
        }
        _ => Rejection::body(StatusCode::BAD_REQUEST, "body: cut off"),
    }
}
