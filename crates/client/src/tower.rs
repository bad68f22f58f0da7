//! Decisions by the service for the tower layer of rlaas-limiter.

use rlaas_core::algorithm::Cost;
use rlaas_core::clock::Deadline;
use rlaas_core::decide::{Decide, NoVerdict, Reserve};
use rlaas_core::rules::Request;
use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use thiserror::Error;
use tonic::Code;

use crate::client::{CheckError, Client, Reservation};
use crate::verdict::{NO_ANSWER, Verdict};

/// Decides requests by the service. Created by [`remote`].
#[derive(Clone, Debug)]
pub struct Remote {
    client: Client,
    rule: Option<String>,
}

impl Remote {
    /// Names the rule that is to limit these requests. A request that the store allows without this rule is refused with
    /// status 503, whatever the policy of the layer is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use rlaas_client::{Client, tower::remote};
    /// let client = Client::builder("rlaas.internal:50051").connect_lazy()?;
    /// let search = remote(client).rule("search");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rule(self, name: impl Into<String>) -> Self {
        Self { rule: Some(name.into()), ..self }
    }

    /// Returns the verdict of a server.
    fn answered(&self, verdict: Verdict) -> Result<Verdict, NoVerdict> {
        let decides =
            |rule: &str| verdict.response().decisions.iter().any(|each| each.rule == rule);
        match verdict.undecided {
            Some(NO_ANSWER) => Err(NoVerdict::NoAnswer(Box::new(Undecided(NO_ANSWER)))),
            Some(reason) if !verdict.is_allowed() => {
                Err(NoVerdict::Undecided(Box::new(Undecided(reason))))
            }
            None if !verdict.is_allowed() && verdict.response().reason() == Reason::NoRule => {
                Err(NoVerdict::NoRule)
            }
            None if verdict.is_allowed()
                && verdict.response().source() == Source::Store
                && !self.rule.as_deref().is_none_or(decides) =>
            {
                Err(NoVerdict::Undecided(Box::new(Undecided("the rule of the route is missing"))))
            }
            _ => Ok(verdict),
        }
    }
}

/// There is no decision. Source of the error if the client has a verdict for that.
#[derive(Debug, Error)]
#[error("{0}")]
struct Undecided(&'static str);

/// Returns a decider for the `RateLimitLayer` of rlaas-limiter that calls the service. If the
/// server does not answer, the policy of the layer applies, and not that of the client. If it answers that it has
/// no decision, or if this program is overloaded, the request is refused with status 503;
/// [`ClientBuilder::on_overload`] may let it pass. The client has a timeout, from when it sends a call: set none in
/// the layer, which would include the time in the client's queue.
///
/// [`ClientBuilder::on_overload`]: crate::ClientBuilder::on_overload
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rlaas_client::Client;
/// use rlaas_client::tower::remote;
/// use rlaas_limiter::tower::{KeyExtractor, OnNoAnswer, RateLimitLayer};
///
/// let client = Client::builder("http://rlaas.internal:50051").connect_lazy()?;
/// let layer = RateLimitLayer::builder(remote(client), KeyExtractor::header("x-api-key"))
///     .on_no_answer(OnNoAnswer::Allow)
///     .build()?;
/// # Ok(())
/// # }
/// ```
pub fn remote(client: Client) -> Remote {
    Remote { client, rule: None }
}

impl Decide for Remote {
    type Verdict = Verdict;

    async fn decide(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Verdict, NoVerdict> {
        let verdict = self.client.check_with_deadline(request, deadline).await;
        self.answered(verdict.map_err(no_verdict)?)
    }
}

impl Reserve for Remote {
    type Held = Reservation;

    async fn reserve(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<(Verdict, Option<Reservation>), NoVerdict> {
        let reserved = self.client.reserve(request, None, deadline).await;
        let (verdict, held) = reserved.map_err(no_verdict)?;
        Ok((self.answered(verdict)?, held))
    }

    async fn settle(&self, held: Reservation, actual: Cost) -> Result<(), NoVerdict> {
        let settled = held.commit(Some(actual)).await;
        settled.map(|_| ()).map_err(no_verdict)
    }
}

/// A request that the server will never decide is refused; a caller without permission is one without an
/// answer.
fn no_verdict(error: CheckError) -> NoVerdict {
    match error.status().code() {
        Code::InvalidArgument | Code::FailedPrecondition => NoVerdict::Invalid(Box::new(error)),
        _ => NoVerdict::NoAnswer(Box::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use rlaas_core::decide::OnNoAnswer;

    use super::*;

    #[tokio::test]
    async fn policy_of_the_client_is_ignored() {
        let request = Request::user("alice").build().expect("a valid request");
        for policy in [None, Some(OnNoAnswer::Allow), Some(OnNoAnswer::Deny)] {
            let mut builder = Client::builder("unix:/nowhere");
            if let Some(policy) = policy {
                builder = builder.on_no_answer(policy);
            }
            let remote = remote(builder.connect_lazy().expect("a client"));
            let verdict = remote.decide(&request, Deadline::NEVER).await;
            assert!(matches!(verdict, Err(NoVerdict::NoAnswer(_))), "{policy:?}: {verdict:?}");
        }
    }
}
