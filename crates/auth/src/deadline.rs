//! The deadline of a gRPC call, from its header `grpc-timeout`.

use http::{HeaderMap, HeaderName};
use rlaas_core::clock::Deadline;
use rlaas_limiter::grpc_timeout;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the time by which the caller needs the response.
pub fn deadline(metadata: &impl AsRef<HeaderMap>) -> Deadline {
    let header = metadata.as_ref().get(GRPC_TIMEOUT).and_then(|value| value.to_str().ok());
    header.map_or(Deadline::NEVER, grpc_timeout::deadline)
}
