//! Reservations: units that are held before the work and settled after it.

use std::time::Duration;

use rlaas_core::algorithm::Cost;
use rlaas_core::clock::Deadline;
use rlaas_core::rules::Request;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{
    CancelRequest, CheckRequest, CommitRequest, ExtendRequest, ReserveRequest, Settlement,
};
use tonic::{Response, Status};

use super::retry::is_retryable;
use super::{CheckError, Client, message, with_timeout, within};
use crate::channel::ApiChannel;
use crate::verdict::{AnsweredBy, Verdict};

/// A reservation that stands. It ends by itself if it is dropped, when its time is over.
#[derive(Clone, Debug)]
pub struct Reservation {
    client: Client,
    request: CheckRequest,
    id: String,
    expires_at: prost_types::Timestamp,
}

impl Client {
    /// Decides one request, within the client's timeout and before `deadline`. Rules that hold hold its
    /// cost for up to `hold_for`, by default for the shortest time of these rules; the others take it.
    /// There is no reservation if the request is denied, if no rule holds, or if no store has decided. Of each client
    /// 128 are in flight at most; another one is refused as by an overloaded server.
    ///
    /// # Errors
    ///
    /// Those of [`Client::check`].
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        hold_for: Option<Duration>,
        deadline: Deadline,
    ) -> Result<(Verdict, Option<Reservation>), CheckError> {
        let request_id = request.request_id().unwrap_or_default().to_owned();
        let request = message(request, request_id);
        #[cfg(feature = "testing")]
        if self.shared.service.is_some() {
            let decided = self.send(request, self.shared.timeout).await.map(Verdict::of_server);
            let verdict = decided.or_else(|status| self.without_response(status));
            return verdict.map(|verdict| (verdict, None));
        }
        let message =
            ReserveRequest { request: Some(request.clone()), ttl: hold_for.map(duration) };
        let Ok(_permit) = self.shared.reserves.try_acquire() else {
            return Ok((self.overloaded(AnsweredBy::Policy), None));
        };
        let left = deadline.or_within(self.shared.timeout).remaining();
        let mut service = self.reservations();
        let reserved = within(left, service.reserve(with_timeout(message, left))).await;
        let reserved = match reserved {
            Ok(response) => response,
            Err(status) => return self.without_response(status).map(|verdict| (verdict, None)),
        };
        let (metadata, mut reserved, extensions) = reserved.into_parts();
        let verdict = reserved.verdict.take().unwrap_or_default();
        let verdict = Verdict::of_server(Response::from_parts(metadata, verdict, extensions));
        let (id, client) = (reserved.reservation_id, self.clone());
        let expires_at = reserved.expires_at.unwrap_or_default();
        let reservation = (!id.is_empty()).then(|| Reservation { client, request, id, expires_at });
        Ok((verdict, reservation))
    }

    fn reservations(&self) -> ReservationServiceClient<ApiChannel> {
        ReservationServiceClient::new(self.channel.clone())
    }
}

impl Reservation {
    /// Returns the id, by which any client of the same project can settle it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the time when it ends by itself, by the clock of the store.
    pub fn expires_at(&self) -> prost_types::Timestamp {
        self.expires_at
    }

    /// Adds units, time from now on, or both. A denial leaves it as it was.
    ///
    /// # Errors
    ///
    /// [`CheckError::Rejected`] if it has ended, [`CheckError::NoAnswer`] whatever the policy is.
    pub async fn extend(
        &mut self,
        cost: Cost,
        hold_for: Option<Duration>,
    ) -> Result<Verdict, CheckError> {
        let request = ExtendRequest {
            reservation_id: self.id.clone(),
            cost: Some(cost.units()),
            ttl: hold_for.map(duration),
            ..ExtendRequest::default()
        };
        let left = self.client.shared.timeout;
        let mut service = self.client.reservations();
        let extended = within(left, service.extend(with_timeout(request, left))).await;
        let extended = extended.map_err(CheckError::from_status)?;
        let (metadata, extended, extensions) = extended.into_parts();
        self.expires_at = extended.expires_at.unwrap_or(self.expires_at);
        let verdict = extended.verdict.unwrap_or_default();
        Ok(Verdict::of_server(Response::from_parts(metadata, verdict, extensions)))
    }

    /// Ends it: charges `actual`, by default what is held, and returns the rest. Asks again once: however
    /// often it is called, it charges once. Work that took longer than the hold is charged all the same.
    ///
    /// # Errors
    ///
    /// As [`Reservation::extend`].
    pub async fn commit(&self, actual: Option<Cost>) -> Result<Vec<Settlement>, CheckError> {
        let request = CommitRequest {
            reservation_id: self.id.clone(),
            actual: actual.map(Cost::units),
            request: Some(self.request.clone()),
            ..CommitRequest::default()
        };
        let settled = self.settle(|mut service, left| {
            let request = with_timeout(request.clone(), left);
            async move { within(left, service.commit(request)).await }
        });
        Ok(settled.await?.into_inner().settlements)
    }

    /// Ends it and returns all that it holds. Asks again once.
    ///
    /// # Errors
    ///
    /// As [`Reservation::extend`].
    pub async fn cancel(&self) -> Result<Vec<Settlement>, CheckError> {
        let request = CancelRequest { reservation_id: self.id.clone() };
        let settled = self.settle(|mut service, left| {
            let request = with_timeout(request.clone(), left);
            async move { within(left, service.cancel(request)).await }
        });
        Ok(settled.await?.into_inner().settlements)
    }

    /// Calls, and once more without an answer. A server that sheds load is not asked again.
    async fn settle<F, T>(
        &self,
        call: impl Fn(ReservationServiceClient<ApiChannel>, Duration) -> F,
    ) -> Result<T, CheckError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let call = || call(self.client.reservations(), self.client.shared.timeout);
        let settled = match call().await {
            Err(status) if is_retryable(status.code()) => call().await,
            settled => settled,
        };
        settled.map_err(CheckError::from_status)
    }
}

/// Converts a time; one of more than 2^63 s is cut.
fn duration(time: Duration) -> prost_types::Duration {
    time.try_into().unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}
