//! The deadline of a gRPC call, from its header `grpc-timeout`.

use rlaas_limiter::grpc_timeout;
use tonic::metadata::MetadataMap;

use crate::clock::Deadline;

/// Returns the time by which the caller needs the response.
pub(super) fn deadline(metadata: &MetadataMap) -> Deadline {
    let header = metadata.get("grpc-timeout").and_then(|value| value.to_str().ok());
    header.map_or(Deadline::NEVER, grpc_timeout::deadline)
}
