//! Rate limiting as a tower layer, for axum, tonic and hyper.
//!
//! ```
//! use std::time::Duration;
//!
//! use rlaas_limiter::tower::{KeyExtractor, OnNoAnswer, RateLimitLayer, local};
//! use rlaas_limiter::{Limiter, Rule};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::builder()
//!     .rule(Rule::gcra("per-key").limit(100).per(Duration::from_secs(60)))
//!     .build()?;
//! let layer = RateLimitLayer::builder(local(limiter), KeyExtractor::header("x-api-key"))
//!     .on_no_answer(OnNoAnswer::Allow)
//!     .timeout(Duration::from_millis(50))
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! A rejected request gets status 429, a problem document, and the headers `RateLimit-Policy`,
//! `RateLimit` and `Retry-After`. A layer for gRPC ([`LayerBuilder::grpc`]) rejects with
//! `RESOURCE_EXHAUSTED` and a `RetryInfo`. Responses to admitted requests have the headers, too.
//! [`LayerBuilder::settle_by`] reserves the cost of requests, and settles it by their responses.
//! [`local`] decides with a limiter in this process, `rlaas_client::tower::remote` with a service.

mod builder;
mod key;
mod layer;
mod protocol;
mod settlement;

pub use self::builder::{InvalidLayer, LayerBuilder};
pub use self::key::{KeyExtractor, KeyParts};
pub use self::layer::{RateLimit, RateLimitLayer};
pub use self::protocol::{Grpc, Http, Protocol};
pub use crate::headers::LimitHeaders;
pub use rlaas_core::decide::{Decide, NoVerdict, OnNoAnswer, Reserve};

use crate::algorithm::Cost;
use crate::clock::Deadline;
use crate::limiter::{CheckError, Limiter, OpenReservation, Settling, Verdict};
use crate::rules::{Costs, Request};

/// Decides with a limiter in this process.
#[derive(Clone, Debug)]
pub struct Local(Limiter);

/// Returns a decider for a layer that uses a limiter in this process.
pub fn local(limiter: Limiter) -> Local {
    Local(limiter)
}

impl Decide for Local {
    type Verdict = Verdict;

    async fn decide(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Verdict, NoVerdict> {
        self.0.check(request, deadline).await.map_err(no_verdict)
    }
}

impl Reserve for Local {
    type Held = OpenReservation;

    async fn reserve(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<(Verdict, Option<OpenReservation>), NoVerdict> {
        let reserved = self.0.reserve(request, None, deadline).await.map_err(no_verdict)?;
        Ok((reserved.verdict, reserved.reservation))
    }

    async fn settle(&self, held: OpenReservation, actual: Cost) -> Result<(), NoVerdict> {
        let settling = Settling { actual: Some(actual), actuals: Costs::NONE };
        self.0.settle(&held, settling, Deadline::NEVER).await.map_err(no_verdict)?;
        Ok(())
    }
}

fn no_verdict(error: CheckError) -> NoVerdict {
    match error {
        CheckError::NoRule => NoVerdict::NoRule,
        CheckError::LongKeys
        | CheckError::NeedsReservation(_)
        | CheckError::ManyHolders
        | CheckError::SeveralSlots
        | CheckError::NoAtLeast
        | CheckError::NotReservable => NoVerdict::Invalid(Box::new(error)),
        error => NoVerdict::NoAnswer(Box::new(error)),
    }
}
