//! A client of rlaas: may this request pass?
//!
//! A [`Client`] has one connection, which its clones share. Every call has a deadline; what happens
//! without an answer is the caller's choice ([`OnNoAnswer`]); a refusal is remembered until its
//! `retry_after`, for a second at most, so that a caller that hammers at a limit costs no calls.
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
//! A client starts no thread. Its connection is driven by a task on the tokio runtime in which the
//! client was built: it ends with that runtime, or when the last clone is dropped. A client may be
//! called from other runtimes for as long as that one runs.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | `load` | the load generator behind `rlaas bench` |
//! | `tower` | deciding by the service for the layer of rlaas-limiter |
//!
//! # Minimum Rust version
//!
//! 1.95, as `rust-version` says; a higher one is a new minor version.

mod channel;
mod client;
#[cfg(feature = "load")]
pub mod load;
mod summary;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;

pub use self::channel::ApiChannel;
pub use self::client::{CheckError, Client, ClientBuilder, ConnectError};
pub use self::verdict::{AnsweredBy, Verdict};
/// Requests, decisions and clocks.
pub use rlaas_core;
pub use rlaas_core::decide::OnNoAnswer;
/// Messages of the service.
pub use rlaas_proto;
