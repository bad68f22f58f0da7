//! Deciding requests, by a limiter in this process or by a service, for adapters that serve both.

use std::error::Error;

use thiserror::Error;

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
/// struct Everybody;
///
/// impl Decide for Everybody {
///     type Verdict = Verdict;
///
///     async fn decide(&self, _: &Request<'_>, _: Deadline) -> Result<Verdict, NoVerdict> {
///         Ok(Verdict::unmatched())
///     }
/// }
/// ```
pub trait Decide {
    /// The outcome for a request.
    type Verdict: Summary + Send;

    /// Decides one request for a caller who waits until `deadline`.
    ///
    /// # Errors
    ///
    /// [`NoVerdict`] if the request is refused without a decision, or there is no answer.
    fn decide(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Self::Verdict, NoVerdict>> + Send;
}

/// Why there is no verdict.
#[derive(Debug, Error)]
pub enum NoVerdict {
    /// No enforced rule matches, and such requests are refused.
    #[error("no rule matches")]
    NoRule,
    /// There is no answer, or none in time: [`OnNoAnswer`] decides.
    #[error("no answer: {0}")]
    NoAnswer(#[source] Box<dyn Error + Send + Sync>),
}

/// What becomes of a request on which there is no answer in time, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNoAnswer {
    /// It passes.
    Allow,
    /// It is refused.
    Deny,
}
