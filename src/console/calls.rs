//! Calls of the service in this process, by generated clients, on behalf of a visitor.

use std::time::Duration;

use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use tonic::{Request, Status};

use super::ConsoleContext;
use super::fields::UNNAMED;
use super::page_error::PageError;
use super::visitor::ConsoleVisitor;
use crate::api::InProcess;

/// Longest wait for something to show.
pub(super) const READ_TIME: Duration = Duration::from_secs(5);
/// Longest wait for a change.
pub(super) const CHANGE_TIME: Duration = Duration::from_secs(20);
/// Most items of a page of a list.
const PAGE_SIZE: i32 = 1_000;

impl ConsoleVisitor {
    /// Returns the client for keys, modes, the audit and statistics.
    pub(super) fn admin(&self) -> AdminServiceClient<InProcess> {
        AdminServiceClient::new(self.services.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Returns the client for projects and their rules.
    pub(super) fn projects(&self) -> ProjectServiceClient<InProcess> {
        ProjectServiceClient::new(self.services.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Returns the client for the rules in force of a project.
    pub(super) fn rules_of(&self, project: &str) -> RateLimitServiceClient<InProcess> {
        let services = self.services.clone().in_project(project);
        RateLimitServiceClient::new(services).max_decoding_message_size(usize::MAX)
    }
}

impl ConsoleContext {
    /// Makes calls that the service answers from memory, on the background thread: no decision waits for
    /// long lists. Calls of the store, and those that use that thread themselves, must not be among them.
    pub(super) async fn in_background<T: Send + 'static>(
        &self,
        calls: impl Future<Output = Result<T, PageError>> + Send + 'static,
    ) -> Result<T, PageError> {
        let runtime = self.background.clone();
        let made = self.background.spawn_blocking(move || runtime.block_on(calls)).await;
        made.map_err(|_| Status::unavailable("the server stops"))?
    }
}

/// Returns the request with a message, which must be answered within a time.
pub(super) fn within<T>(time: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(time);
    request
}

/// Returns all items of a list. `page` calls for a page of this size, after this token.
pub(super) async fn every<T, F>(mut page: impl FnMut(i32, String) -> F) -> Result<Vec<T>, Status>
where
    F: Future<Output = Result<(Vec<T>, String), Status>>,
{
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let (items, next) = page(PAGE_SIZE, token).await?;
        all.extend(items);
        if next.is_empty() {
            return Ok(all);
        }
        token = next;
    }
}

/// Returns the id of a project as messages have it: that of the unnamed one is empty.
pub(super) fn id_of(field: &str) -> &str {
    if field == UNNAMED { "" } else { field }
}

/// Returns the id of a project as fields of forms and queries have it.
pub(super) fn field_of(id: &str) -> &str {
    if id.is_empty() { UNNAMED } else { id }
}
