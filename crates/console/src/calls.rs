//! Calls of the service in this process, by generated clients, on behalf of a visitor.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body as AxumBody, to_bytes};
use axum::http;
use prost_types::Timestamp;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::ratelimit::admin::v1::{
    GetProjectRequest, ListRevisionsRequest, Project, Revision, TopKeysRequest, TopKeysResponse,
};
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_proto::ratelimit::v1::{GetConfigRequest, GetConfigResponse};
use rlaas_proto::{CHANGE_PAUSE, CHANGE_REPEAT_TIME, is_too_many_changes};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};

use super::Console;
use super::fields::UNNAMED;
use super::page_error::{PageError, sentence};
use super::text::time_text;
use super::visit::Visitor;

/// The services, as one visitor may call them: a transport of generated clients.
pub type Services = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;

/// Id of the project of a call whose request has no field for it. Extension of that request.
#[derive(Clone, Debug, Default)]
pub struct CallProject(pub String);

/// Longest wait for something to show.
pub(super) const READ_TIME: Duration = Duration::from_secs(5);
/// Longest wait for top keys: for the store and for other instances.
pub(super) const TOP_KEYS_TIME: Duration = Duration::from_secs(2);
/// Longest wait for a change.
pub(super) const CHANGE_TIME: Duration = Duration::from_secs(20);
/// The project of a call that is for all projects of its caller.
pub(super) const EVERY_PROJECT: &str = "-";
/// Most items of a page of a list.
const PAGE_SIZE: i32 = 1_000;

impl Visitor {
    /// Returns the client for keys, modes, the audit and statistics.
    pub(super) fn admin(&self) -> AdminServiceClient<Services> {
        AdminServiceClient::new(repeating(self.services.clone()))
            .max_decoding_message_size(usize::MAX)
    }

    /// Returns the client for projects and their rules.
    pub(super) fn projects(&self) -> ProjectServiceClient<Services> {
        ProjectServiceClient::new(repeating(self.services.clone()))
            .max_decoding_message_size(usize::MAX)
    }

    /// Counts keys.
    pub(super) async fn top_keys(
        &self,
        request: TopKeysRequest,
    ) -> Result<TopKeysResponse, PageError> {
        Ok(self.admin().top_keys(within(TOP_KEYS_TIME, request)).await?.into_inner())
    }
}

impl Console {
    /// Makes calls that the service answers from memory, on the background thread: no decision waits for
    /// long lists. Calls of the store, and those that use that thread themselves, must not be among them.
    pub(super) async fn in_background<T: Send + 'static>(
        &self,
        calls: impl Future<Output = Result<T, PageError>> + Send + 'static,
    ) -> Result<T, PageError> {
        let runtime = self.background.clone();
        let made = self.blocking(move || runtime.block_on(calls)).await;
        made.ok_or_else(|| Status::unavailable("the server stops"))?
    }
}

/// Returns services that make a change again for 10 s while as many are made as may be at a time.
fn repeating(services: Services) -> Services {
    Services::new(service_fn(move |request| repeated(services.clone(), request)))
}

#[expect(clippy::disallowed_methods, reason = "the service does not say when it may")]
async fn repeated(
    services: Services,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    // A message in this process.
    let body = to_bytes(AxumBody::new(body), usize::MAX).await.unwrap_or_default();
    let until = Instant::now() + CHANGE_REPEAT_TIME;
    loop {
        let body = Body::new(AxumBody::from(body.clone()));
        let request = http::Request::from_parts(head.clone(), body);
        let response = services.clone().oneshot(request).await?;
        let refusal = Status::from_header_map(response.headers());
        if !refusal.as_ref().is_some_and(is_too_many_changes) || Instant::now() >= until {
            return Ok(response);
        }
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
}

/// Returns the request with a message, which must be answered within a time.
pub(super) fn within<T>(time: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(time);
    request
}

/// Returns the configuration that is in force in a project.
pub(super) async fn configuration(
    visitor: &Visitor,
    project: &str,
    message: GetConfigRequest,
) -> Result<GetConfigResponse, PageError> {
    let mut request = within(READ_TIME, message);
    request.extensions_mut().insert(CallProject(project.to_owned()));
    let client = RateLimitServiceClient::new(visitor.services.clone());
    let mut client = client.max_decoding_message_size(usize::MAX);
    Ok(client.get_config(request).await?.into_inner())
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

/// Returns what the service warns of, as a further sentence. It is about instances and their store, which
/// visitors of single projects do not see.
pub(super) fn warning(visitor: &Visitor, metadata: &MetadataMap) -> String {
    let text = metadata.get(rlaas_proto::WARNING).and_then(|text| text.to_str().ok());
    let text = text.filter(|_| visitor.sees_instances());
    text.map(|text| format!(" {}", sentence(text))).unwrap_or_default()
}

/// Says from when on every instance obeys a change; nothing if that is not known.
pub(super) fn everywhere(by: Option<&Timestamp>) -> String {
    by.map(|by| format!(" Everywhere by {}.", time_text(by))).unwrap_or_default()
}

/// Says that a form was sent before, if so.
pub(super) const fn replayed(is_replayed: bool) -> &'static str {
    if is_replayed { "This form was sent before, and its change was made once: " } else { "" }
}

/// Returns the id of a project as messages have it: that of the unnamed one is empty.
pub(super) fn id_of(field: &str) -> &str {
    if field == UNNAMED { "" } else { field }
}

/// Returns the id of the project of a page that is about one: an empty field is the id of none.
pub(super) fn id_of_page(field: &str) -> &str {
    if field.is_empty() { EVERY_PROJECT } else { id_of(field) }
}

/// Returns the id of a project as fields of forms and queries have it.
pub(super) fn field_of(id: &str) -> &str {
    if id.is_empty() { UNNAMED } else { id }
}

/// Returns a project.
pub(super) async fn project(visitor: &Visitor, id: &str) -> Result<Project, PageError> {
    let request = within(READ_TIME, GetProjectRequest { project_id: id.to_owned() });
    let found = visitor.projects().get_project(request).await?.into_inner();
    Ok(found.project.unwrap_or_default())
}

/// Returns so many of the last revisions, newest first.
pub(super) async fn last_revisions(
    visitor: &Visitor,
    id: &str,
    page_size: i32,
) -> Result<Vec<Revision>, PageError> {
    let (project_id, page_token) = (id.to_owned(), String::new());
    let request = ListRevisionsRequest { project_id, page_size, page_token };
    let listed = visitor.projects().list_revisions(within(READ_TIME, request)).await?;
    Ok(listed.into_inner().revisions)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rlaas_proto::ERROR_DOMAIN;
    use tonic::Code;
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    /// Makes a change, which services refuse that many times, after this time. Returns how often it was
    /// called, and the last answer.
    async fn change(reason: &'static str, refusals: u32, took_ms: u64) -> (u32, Code) {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let services = Services::new(service_fn(move |request: http::Request<Body>| {
            let number = counted.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                let body = to_bytes(AxumBody::new(request.into_body()), 1_000).await;
                assert_eq!(&*body.expect("a body"), b"message");
                tokio::time::advance(Duration::from_millis(took_ms)).await;
                let mut details = ErrorDetails::default();
                details.set_error_info(reason, ERROR_DOMAIN, HashMap::new());
                let code = Code::ResourceExhausted;
                let refusal = Status::with_error_details(code, "too many", details);
                let answer = if number <= refusals { refusal } else { Status::ok("") };
                Ok(answer.into_http())
            }
        }));
        let request = http::Request::new(Body::new(AxumBody::from("message")));
        let answer = repeating(services).oneshot(request).await.expect("an answer");
        let code = Status::from_header_map(answer.headers()).expect("a status").code();
        (calls.load(Ordering::Relaxed), code)
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_repeated_while_too_many_are_made_and_for_no_other_reason() {
        assert_eq!(change("TOO_MANY_CHANGES", 2, 0).await, (3, Code::Ok));
        assert_eq!(change("BOUND_REACHED", 2, 0).await, (1, Code::ResourceExhausted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_repeated_for_10_s_however_long_each_call_takes() {
        for (took_ms, expected) in [(0, 101), (1_900, 6), (11_000, 1)] {
            let changed = change("TOO_MANY_CHANGES", u32::MAX, took_ms).await;
            assert_eq!(changed, (expected, Code::ResourceExhausted), "{took_ms} ms each");
        }
    }
}
