//! Sends the requests of a load with the generated client.

use rlaas_proto::ratelimit::v1::check_result;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest};
use tonic::Code;

use super::LoadSettings;
use super::ids::Ids;
use super::stats::Counts;
use crate::channel::ApiChannel;

pub(super) type ServiceClient = RateLimitServiceClient<ApiChannel>;

/// The requests of a load. A call allocates copies of its ids, which the generated client must own,
/// and no other memory outside of tonic.
#[derive(Debug)]
pub(super) struct Requests {
    ids: Ids,
    settings: LoadSettings,
}

impl Requests {
    pub(super) fn new(settings: &LoadSettings) -> Self {
        let ids = Ids::new(settings.ids, settings.distribution, settings.seed);
        Self { ids, settings: settings.clone() }
    }

    /// Sends the call with this number, and returns counts of its results.
    pub(super) async fn send(&self, client: &mut ServiceClient, call: u64) -> Counts {
        match self.settings.batch {
            None => self.check(client, call).await,
            Some(size) => self.check_batch(client, call, size).await,
        }
    }

    async fn check(&self, client: &mut ServiceClient, call: u64) -> Counts {
        match client.check(self.request(call)).await {
            Ok(response) => {
                let mut counts = Counts::answered();
                counts.add_decision(response.get_ref().allowed);
                counts
            }
            Err(status) => Counts::failed(&status, 1),
        }
    }

    async fn check_batch(&self, client: &mut ServiceClient, call: u64, size: u16) -> Counts {
        let first = call * u64::from(size);
        let requests = (first..first + u64::from(size)).map(|number| self.request(number));
        let batch = CheckBatchRequest { requests: requests.collect() };
        match client.check_batch(batch).await {
            Ok(response) => {
                let mut counts = Counts::answered();
                for result in &response.get_ref().results {
                    match &result.result {
                        Some(check_result::Result::Response(response)) => {
                            counts.add_decision(response.allowed);
                        }
                        Some(check_result::Result::Error(status)) => {
                            counts.add_errors(Code::from(status.code), 1, &status.message);
                        }
                        None => counts.add_errors(Code::Unknown, 1, "empty result"),
                    }
                }
                counts
            }
            Err(status) => Counts::failed(&status, u64::from(size)),
        }
    }

    fn request(&self, number: u64) -> CheckRequest {
        CheckRequest {
            user_id: self.ids.for_request(number),
            resource: self.settings.resource.clone(),
            cost: self.settings.cost,
            ..CheckRequest::default()
        }
    }
}
