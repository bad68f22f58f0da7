//! Sends the requests of a load with the generated client.

use rlaas_proto::ratelimit::v1::CheckRequest;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;

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

    /// Sends the call with this number, and returns counts of its result.
    pub(super) async fn send(&self, client: &mut ServiceClient, call: u64) -> Counts {
        match client.check(self.request(call)).await {
            Ok(response) => Counts::answered(response.get_ref().allowed),
            Err(status) => Counts::failed(&status),
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
