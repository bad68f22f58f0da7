//! The deadline of a gRPC call, from its header `grpc-timeout`.

use axum::http::HeaderName;
use rlaas_limiter::grpc_timeout;
use tonic::metadata::MetadataMap;

use crate::clock::Deadline;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the time by which the caller needs the response.
pub(super) fn deadline(metadata: &MetadataMap) -> Deadline {
    let header = metadata.as_ref().get(GRPC_TIMEOUT).and_then(|value| value.to_str().ok());
    header.map_or(Deadline::NEVER, grpc_timeout::deadline)
}
