//! Messages and services of the protocols that rlaas speaks, in modules named as their packages:
//! its own, `ratelimit.v1`, and Envoy's `envoy.service.ratelimit.v3`.
//!
//! This is the only place where the protos are compiled; no `protoc` is needed. Without features
//! there are messages alone; `client` adds clients, `server` the traits of servers.
//!
//! ```
//! use prost::Message;
//! use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse};
//!
//! let request = CheckRequest {
//!     user_id: "alice".to_owned(),
//!     cost: Some(2),
//!     ..CheckRequest::default()
//! };
//! assert_eq!(request.encode_to_vec(), b"\x0a\x05alice\x20\x02");
//! let response = CheckResponse::decode(&b"\x08\x01\x28\x03"[..])?;
//! assert!(response.allowed && response.remaining == 3);
//! # Ok::<(), prost::DecodeError>(())
//! ```

pub use self::generated::{envoy, ratelimit};

/// All protos and those that they import, for reflection: an encoded
/// `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Domain of `google.rpc.ErrorInfo` in the errors of the service.
pub const ERROR_DOMAIN: &str = "rlaas";

#[expect(missing_docs, clippy::pedantic, reason = "documented in the protos")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}
