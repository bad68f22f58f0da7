//! Deciding for a layer by the service.

use rlaas_core::clock::Deadline;
use rlaas_core::decide::{Decide, NoVerdict};
use rlaas_core::rules::Request;
use rlaas_core::summary::Summary;
use rlaas_proto::ratelimit::v1::check_response::Reason;
use thiserror::Error;

use crate::client::Client;
use crate::verdict::{AnsweredBy, Verdict};

/// Decides by the service.
#[derive(Clone, Debug)]
pub struct Remote(Client);

/// The server did not answer, and the client has a policy for that.
#[derive(Debug, Error)]
#[error("the server did not answer")]
struct Unanswered;

/// Returns what has a `RateLimitLayer` of rlaas-limiter decide by the service. Where the server does
/// not answer, the policy of the layer decides, whatever that of the client is.
pub fn remote(client: Client) -> Remote {
    Remote(client)
}

impl Decide for Remote {
    type Verdict = Verdict;

    async fn decide(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
    ) -> Result<Verdict, NoVerdict> {
        let verdict = self.0.check_by(request, deadline).await;
        let verdict = verdict.map_err(|error| NoVerdict::NoAnswer(Box::new(error)))?;
        match verdict.response().reason() {
            _ if verdict.answered_by() == AnsweredBy::Policy => {
                Err(NoVerdict::NoAnswer(Box::new(Unanswered)))
            }
            Reason::NoRule if !Summary::is_allowed(&verdict) => Err(NoVerdict::NoRule),
            _ => Ok(verdict),
        }
    }
}
