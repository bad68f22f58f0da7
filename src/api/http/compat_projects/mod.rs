//! `/projects` without `/v1`: the management API of RLaaS on GoRL, in its own shapes, over the
//! projects of this service.
//!
//! | route | response |
//! | --- | --- |
//! | `POST /projects` | 201: the project, with its API key this one time |
//! | `GET /projects` | 200: the projects that the caller has a role in, newest first |
//! | `DELETE /projects/{id}` | 204 |
//! | `GET`, `POST /projects/{id}/rules` | 200: its rules; 201: the new one |
//! | `PUT`, `DELETE /projects/{id}/rules/{rule}` | 200: the rule; 204 |
//!
//! Bodies of errors are texts, as those of that service. A project that the caller lacks the role in
//! is refused like one that does not exist: 403.

mod error;
pub(super) mod openapi;
mod project;
mod rule;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use rlaas_auth::{Caller, Permission, ProjectId, Roles};
use rlaas_projects::{Etag, RuleWriteError};
use serde::Serialize;
use tokio::task::yield_now;

use self::error::{ManagementError, refused};
use self::project::ProjectView;
use self::rule::{RuleFields, RuleView};
use super::query::decode;
use super::{body, other_method, unknown_path};
use crate::clock::Deadline;
use rlaas_admin::{AdminCall, PlannedChange, Projects, no_random_numbers};

const SHOW: Permission = Permission::PROJECT_OPERATE_OR_ADMIN;
const CHANGE: Permission = Permission::PROJECT_ADMIN;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METHODS: [Method; 4] = [Method::GET, Method::POST, Method::PUT, Method::DELETE];

/// What a request asks for. Ids are as they are in its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation<'a> {
    List,
    Create,
    Delete(&'a str),
    ListRules(&'a str),
    CreateRule(&'a str),
    UpdateRule(&'a str, &'a str),
    DeleteRule(&'a str, &'a str),
}

impl<'a> Operation<'a> {
    /// Returns the operation of a method and a path. `HEAD` counts as `GET`.
    fn from_request(method: &Method, path: &'a str) -> Option<Self> {
        let below = path.strip_prefix("/projects")?;
        let segments: Vec<&str> = below.split('/').collect();
        let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
        if !segments[0].is_empty() || segments[1..].contains(&"") {
            return None;
        }
        match (method, &segments[1..]) {
            ("GET", []) => Some(Self::List),
            ("POST", []) => Some(Self::Create),
            ("DELETE", [id]) => Some(Self::Delete(id)),
            ("GET", [id, "rules"]) => Some(Self::ListRules(id)),
            ("POST", [id, "rules"]) => Some(Self::CreateRule(id)),
            ("PUT", [id, "rules", rule]) => Some(Self::UpdateRule(id, rule)),
            ("DELETE", [id, "rules", rule]) => Some(Self::DeleteRule(id, rule)),
            _ => None,
        }
    }

    const fn permission(self) -> Permission {
        match self {
            Self::Create | Self::Delete(_) => Permission::ADMIN,
            Self::List | Self::ListRules(_) => SHOW,
            Self::CreateRule(_) | Self::UpdateRule(..) | Self::DeleteRule(..) => CHANGE,
        }
    }
}

/// Returns what a request requires of its caller; `None` if it is not for these routes.
pub(super) fn permission_of(method: &Method, path: &str) -> Option<Permission> {
    Operation::from_request(method, path).map(Operation::permission)
}

/// Returns the routes.
pub(super) fn router(projects: Projects) -> Router {
    Router::new()
        .route("/projects", any(respond))
        .route("/projects/{*rest}", any(respond))
        .with_state(projects)
}

async fn respond(State(projects): State<Projects>, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let Some(operation) = Operation::from_request(&method, &path) else {
        return unrouted(&path, request).await;
    };
    let response = ManagementCall::new(projects, &request, operation);
    let response = match response {
        Ok(call) => call.answer(operation, request.into_body()).await,
        Err(error) => Err(error),
    };
    let mut response = response.unwrap_or_else(IntoResponse::into_response);
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

/// Answers a path or a method that is none of these routes.
async fn unrouted(path: &str, request: Request) -> Response {
    let known = METHODS.iter().filter(|method| Operation::from_request(method, path).is_some());
    let known: Vec<&str> = known.map(Method::as_str).collect();
    if known.is_empty() {
        return unknown_path(request).await.into_response();
    }
    let mut response = other_method(request).await;
    let known = HeaderValue::try_from(known.join(", ")).expect("names of methods");
    response.headers_mut().insert(header::ALLOW, known);
    response
}

/// A call of an admitted caller.
struct ManagementCall {
    projects: Projects,
    caller: Caller,
    required: Roles,
}

impl ManagementCall {
    /// Returns the call of a request that the middleware has admitted.
    fn new(
        projects: Projects,
        request: &Request,
        operation: Operation<'_>,
    ) -> Result<Self, ManagementError> {
        let caller = Caller::from_extensions(request.extensions()).cloned();
        let caller = caller.ok_or_else(ManagementError::forbidden)?;
        Ok(Self { projects, caller, required: operation.permission().roles() })
    }

    async fn answer(
        self,
        operation: Operation<'_>,
        body: Body,
    ) -> Result<Response, ManagementError> {
        match operation {
            Operation::List => Ok(self.list().await),
            Operation::Create => self.create(&body::read(body).await?).await,
            Operation::Delete(id) => self.delete(&self.admitted(id)?).await,
            Operation::ListRules(id) => self.list_rules(&self.admitted(id)?),
            Operation::CreateRule(id) => {
                let id = self.admitted(id)?;
                self.create_rule(&id, &body::read(body).await?).await
            }
            Operation::UpdateRule(id, rule) => {
                let (id, rule) = (self.admitted(id)?, rule_name(rule)?);
                self.update_rule(id, rule, &body::read(body).await?).await
            }
            Operation::DeleteRule(id, rule) => {
                let (id, rule) = (self.admitted(id)?, rule_name(rule)?);
                let (call, name) = (self.change("DeleteRule"), rule.clone());
                let planned = PlannedChange::new(&id, &rule, "delete rule".to_owned());
                let delete = self.projects.write_rule(&call, planned, move |rules, _| {
                    rules.delete(&name, None).map(Some).map_err(refused)
                });
                delete.await?;
                Ok(StatusCode::NO_CONTENT.into_response())
            }
        }
    }

    /// Returns the project of a path, if it exists and the caller has the role in it.
    fn admitted(&self, id: &str) -> Result<ProjectId, ManagementError> {
        let id: ProjectId = id.parse().map_err(|_| ManagementError::forbidden())?;
        let is_admitted = self.caller.roles_in(&id).intersects(self.required);
        if is_admitted && self.projects.project(&id).is_ok() {
            Ok(id)
        } else {
            Err(ManagementError::forbidden())
        }
    }

    fn change(&self, action: &'static str) -> AdminCall {
        AdminCall::by(&self.caller, action, Deadline::NEVER)
    }

    /// All projects together may have 100,000 rules: others run between two of them.
    async fn list(&self) -> Response {
        let mut states = self.projects.projects();
        states.retain(|state| {
            let id = &state.project.id;
            !id.is_unnamed() && self.caller.roles_in(id).intersects(self.required)
        });
        let mut body = b"[".to_vec();
        for (index, state) in states.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend(json(&ProjectView::new(state, self.caller.actor(), None)));
            yield_now().await;
        }
        body.push(b']');
        ([(header::CONTENT_TYPE, JSON)], body).into_response()
    }

    async fn create(&self, body: &[u8]) -> Result<Response, ManagementError> {
        let call = self.change("CreateProject");
        let name = project::read_name(body)?;
        let (state, secret) = self.projects.create_with_key(&call, name).await?;
        let view = ProjectView::new(&state, self.caller.actor(), Some(secret.expose()));
        Ok(json_response(StatusCode::CREATED, &view))
    }

    async fn delete(&self, id: &ProjectId) -> Result<Response, ManagementError> {
        self.projects.delete(&self.change("DeleteProject"), id, None).await?;
        Ok(StatusCode::NO_CONTENT.into_response())
    }

    fn list_rules(&self, id: &ProjectId) -> Result<Response, ManagementError> {
        let state = self.projects.project(id)?;
        Ok(json_response(StatusCode::OK, &RuleView::all(&state)))
    }

    async fn create_rule(&self, id: &ProjectId, body: &[u8]) -> Result<Response, ManagementError> {
        let etag = Etag::random().map_err(no_random_numbers)?;
        let spec = RuleFields::read(body)?.into_rule(etag.0)?;
        let name = spec.name.value().cloned().unwrap_or_default();
        let call = self.change("CreateRule");
        let planned = PlannedChange::new(id, &name, "create rule".to_owned());
        let made = self.projects.write_rule(&call, planned, move |rules, by| {
            rules.create(spec.clone(), by).map(Some).map_err(refused)
        });
        let written = made.await?.ok_or(RuleWriteError::NotFound)?;
        let view = RuleView::new(id, &name, &written.record);
        Ok(json_response(StatusCode::CREATED, &view))
    }

    async fn update_rule(
        &self,
        id: ProjectId,
        rule: String,
        body: &[u8],
    ) -> Result<Response, ManagementError> {
        let fields = RuleFields::read_of(body, &id, &rule)?;
        let (call, name) = (self.change("UpdateRule"), rule.clone());
        let planned = PlannedChange::new(&id, &rule, "update rule".to_owned());
        let made = self.projects.write_rule(&call, planned, move |rules, by| {
            let before = rules.rule(&name).ok_or(RuleWriteError::NotFound).map_err(refused)?;
            let before = before.spec.clone();
            let after = fields.changed(&before).written_to(before).map_err(refused)?;
            rules.replace(after, None, by).map_err(refused)
        });
        let written = made.await?.ok_or(RuleWriteError::NotFound)?;
        let view = RuleView::new(&id, &rule, &written.record);
        Ok(json_response(StatusCode::OK, &view))
    }
}

/// Returns the name of the rule of a path.
fn rule_name(segment: &str) -> Result<String, ManagementError> {
    // Queries have `+` for a space, paths have not. What is not UTF-8 is the name of no rule.
    decode(&segment.replace('+', "%2B")).ok_or_else(|| RuleWriteError::NotFound.into())
}

fn json_response(status: StatusCode, view: &impl Serialize) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], json(view)).into_response()
}

fn json(view: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(view).expect("texts, numbers and lists are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_is_that_of_the_method_and_the_path() {
        for (method, path, expected) in [
            (Method::GET, "/projects", Operation::List),
            (Method::HEAD, "/projects/a/rules", Operation::ListRules("a")),
            (Method::POST, "/projects", Operation::Create),
            (Method::DELETE, "/projects/a", Operation::Delete("a")),
            (Method::POST, "/projects/a/rules", Operation::CreateRule("a")),
            (Method::PUT, "/projects/a/rules/b%2Fc", Operation::UpdateRule("a", "b%2Fc")),
            (Method::DELETE, "/projects/rules/rules/b", Operation::DeleteRule("rules", "b")),
        ] {
            assert_eq!(Operation::from_request(&method, path), Some(expected), "{method} {path}");
        }
        for (method, path) in [
            (Method::GET, "/projects/"),
            (Method::GET, "/projects/a"),
            (Method::GET, "/projectsx"),
            (Method::GET, "/projects//rules"),
            (Method::PUT, "/projects/a/rules/"),
            (Method::PUT, "/projects/a/rules/b/c"),
            (Method::PATCH, "/projects/a/rules/b"),
            (Method::OPTIONS, "/projects"),
            (Method::GET, "/v1/projects"),
        ] {
            assert_eq!(Operation::from_request(&method, path), None, "{method} {path}");
        }
    }
}
