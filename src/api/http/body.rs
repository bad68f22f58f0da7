//! Reads bodies, within bounds.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::rejection::Rejection;

/// Largest body that is read, in bytes: a request at all its bounds fits, even if each of its bytes
/// is written as `\u0000`.
const MOST_BYTES: usize = 256 * 1024;
/// Bytes that most bodies fit into: who announces more is given more as it comes.
const USUAL: usize = 1024;
/// What is larger is still received up to here, and dropped: a client that is cut off while it
/// sends does not see the answer.
const MOST_DROPPED: usize = 16 * 1024 * 1024;
/// The longest that a body may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The whole body.
pub(super) async fn read(body: Body) -> Result<Vec<u8>, Rejection> {
    let received = timeout(PATIENCE, receive(body)).await;
    received.unwrap_or_else(|_elapsed| {
        let problem = format!("valid is one that is there within {} s", PATIENCE.as_secs());
        Err(Rejection::body(StatusCode::REQUEST_TIMEOUT, problem))
    })
}

async fn receive(body: Body) -> Result<Vec<u8>, Rejection> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let (mut bytes, mut size) = (Vec::with_capacity(announced.min(USUAL)), 0);
    let mut parts = body.into_data_stream();
    while announced.max(size) <= MOST_DROPPED {
        let Some(part) = parts.next().await else { break };
        let part = part.map_err(|_| Rejection::body(StatusCode::BAD_REQUEST, "cut off"))?;
        size += part.len();
        if size <= MOST_BYTES {
            bytes.extend_from_slice(&part);
        }
    }
    if announced.max(size) > MOST_BYTES {
        let problem = format!("valid is up to {MOST_BYTES} bytes");
        return Err(Rejection::body(StatusCode::PAYLOAD_TOO_LARGE, problem));
    }
    Ok(bytes)
}
