//! A client of rlaas, a rate limiting service: decides whether a request may pass.
//!
//! A [`Client`] has one connection, which its clones share. Each call has a timeout. The caller
//! chooses the policy for requests without an answer ([`OnNoAnswer`]). A refusal is cached until
//! its `retry_after`, for one second at most, so that a caller that repeats it causes no calls.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/server.rs"));
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = serve().await;
//! use rlaas_client::{Client, OnNoAnswer};
//! use rlaas_client::rlaas_core::rules::{RequestFields, Request};
//!
//! let client = Client::builder(address).on_no_answer(OnNoAnswer::Allow).connect().await?;
//! let attributes = [("plan".to_owned(), "free".to_owned())].into();
//! let fields = RequestFields {
//!     user_id: "alice",
//!     resource: "/",
//!     attributes: &attributes,
//!     cost: None,
//!     dry_run: false,
//! };
//! let verdict = client.check(&Request::new(fields)?).await?;
//! assert!(verdict.is_allowed());
//! assert_eq!(verdict.decision().remaining, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Background work
//!
//! A client starts no thread. A task on the tokio runtime in which the client was built drives the
//! connection. The task ends with that runtime, or when the last clone is dropped. Other runtimes
//! may call the client while that one runs.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `tower` | decisions by the service for the tower layer of rlaas-limiter |
//! | `testing` | clients for tests of programs, without a server |
//!
//! # Minimum Rust version
//!
//! 1.88, as `rust-version` says; a higher one is a new minor version.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod channel;
mod client;
mod summary;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;

pub use self::channel::ApiChannel;
pub use self::client::{CheckError, Client, ClientBuilder, ConnectError, Reservation};
pub use self::verdict::{AnsweredBy, Verdict};
/// Requests, decisions and clocks.
pub use rlaas_core;
pub use rlaas_core::decide::OnNoAnswer;
/// Messages of the service.
pub use rlaas_proto;
