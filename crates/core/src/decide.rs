//! The interface of deciders: a limiter in this process, or a client of the service. For adapters
//! that work with both.

use std::error::Error;

use thiserror::Error;

use crate::algorithm::Cost;
use crate::clock::Deadline;
use crate::rules::Request;
use crate::summary::Summary;

/// Decides requests.
///
/// ```
/// use rlaas_core::clock::Deadline;
/// use rlaas_core::decide::{Decide, NoVerdict};
/// use rlaas_core::rules::Request;
/// use rlaas_core::verdict::Verdict;
///
/// struct AllowAll;
///
/// impl Decide for AllowAll {
///     type Verdict = Verdict;
///
///     async fn decide(&self, _: &Request<'_>, _: Deadline) -> Result<Verdict, NoVerdict> {
///         Ok(Verdict::unmatched())
///     }
/// }
/// ```
pub trait Decide {
    /// The outcome of a request.
    type Verdict: Summary + Send;

    /// Decides one request for a caller who waits until `deadline`.
    ///
    /// # Errors
    ///
    /// [`NoVerdict`] if no rule matches and such requests are refused, or if there is no answer.
    fn decide(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Self::Verdict, NoVerdict>> + Send;
}

/// Reserves units for requests, and settles them when it is known what they have cost.
pub trait Reserve: Decide {
    /// What is to be settled.
    type Held: Send + 'static;

    /// Decides one request, as [`Decide::decide`] does, and holds its cost where rules say so. Nothing is
    /// held if it is denied or if no rule holds.
    ///
    /// # Errors
    ///
    /// As [`Decide::decide`].
    fn reserve(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(Self::Verdict, Option<Self::Held>), NoVerdict>> + Send;

    /// Charges what a request has cost, and returns the rest: all of it if it has cost nothing.
    ///
    /// # Errors
    ///
    /// [`NoVerdict::NoAnswer`]: what is held is returned when its time is over.
    fn settle(
        &self,
        held: Self::Held,
        actual: Cost,
    ) -> impl Future<Output = Result<(), NoVerdict>> + Send;
}

/// The reason why there is no verdict.
#[derive(Debug, Error)]
pub enum NoVerdict {
    /// No enforced rule matches, and the policy refuses such requests.
    #[error("no rule matches")]
    NoRule,
    /// The request can't be decided, however often it is repeated. It is refused.
    #[error("{0}")]
    Invalid(#[source] Box<dyn Error + Send + Sync>),
    /// Whoever decides is overloaded, or has lost its store or is not ready and says so. It is refused, whatever
    /// [`OnNoAnswer`] is, and may be repeated in a second.
    #[error("no decision: {0}")]
    Undecided(#[source] Box<dyn Error + Send + Sync>),
    /// There is no answer, or none in time. [`OnNoAnswer`] decides.
    #[error("no answer: {0}")]
    NoAnswer(#[source] Box<dyn Error + Send + Sync>),
}

/// Policy for requests without an answer, or without one in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNoAnswer {
    /// The request passes.
    Allow,
    /// The request is refused.
    Deny,
}
