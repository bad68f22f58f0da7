//! Messages and services of the protocols of rlaas, in modules named after their packages: its own
//! protocol, [`ratelimit::v1`], its administration, [`ratelimit::admin::v1`], and Envoy's
//! [`envoy::service::ratelimit::v3`] and Kuadrant's [`kuadrant::service::ratelimit::v1`].
//!
//! The build script of this crate compiles the protos; no `protoc` is needed.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | (none) | messages |
//! | `client` | generated clients, for any channel of tonic or tower |
//! | `json` | messages in the JSON mapping of protobuf, by their descriptors |
//! | `rules` | rules, values and verdicts of `rlaas-core` as messages, and rules of messages as in files |
//! | `server` | traits to implement the services |
//! | `zones` | the use of keys in words, with times in the zone of their rule |
//!
//! # Example
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

#![cfg_attr(docsrs, feature(doc_cfg))]

mod api_keys;
mod bans;
mod calendar;
pub mod csv;
#[cfg(feature = "json")]
pub mod json;
#[cfg(feature = "zones")]
mod key_words;
#[cfg(feature = "rules")]
pub mod rule_messages;
mod stats;
pub mod status;
#[cfg(feature = "rules")]
pub mod values;
#[cfg(feature = "rules")]
pub mod verdict_messages;
mod words;

pub use self::api_keys::{API_KEY_ID_LEN, API_KEY_PREFIX, TypedApiKey};
pub use self::generated::{envoy, kuadrant, ratelimit};
pub use self::words::{limit_words, wait_words};

use std::time::Duration;

use tonic_types::StatusExt;

/// All protos and their imports as an encoded `google.protobuf.FileDescriptorSet`, for server
/// reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The domain of `google.rpc.ErrorInfo` in errors of the service.
pub const ERROR_DOMAIN: &str = "rlaas";

/// Reason of a decision that failed with the store, by the policy of a rule that matches.
pub const STORE_UNAVAILABLE: &str = "STORE_UNAVAILABLE";
/// Reason of a decision that an overloaded server refused.
pub const OVERLOADED: &str = "OVERLOADED";
/// Reason of a call whose keys, project or rules the server does not know yet.
pub const NOT_READY: &str = "NOT_READY";

/// Returns `true` for the refusal of a change beside which as many are made as may be. Nothing was changed,
/// and the change may soon be made. Tools for people repeat it for [`CHANGE_REPEAT_TIME`], each
/// time after [`CHANGE_PAUSE`].
pub fn is_too_many_changes(status: &tonic::Status) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == "TOO_MANY_CHANGES")
}

/// Reason of an override with `raise_only` that would lower a limit.
pub const LOWERS_LIMIT: &str = "LOWERS_LIMIT";

/// Returns `true` for the refusal of an override that would lower a limit.
pub fn is_lowering(status: &tonic::Status) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == LOWERS_LIMIT)
}

/// See [`is_too_many_changes`].
pub const CHANGE_REPEAT_TIME: Duration = Duration::from_secs(10);
/// See [`is_too_many_changes`].
pub const CHANGE_PAUSE: Duration = Duration::from_millis(100);

/// Metadata of a response, over HTTP a header: a warning for the administrator.
pub const WARNING: &str = "rlaas-warning";

#[expect(missing_docs, clippy::pedantic, reason = "documented in the protos")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}
