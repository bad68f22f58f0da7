//! Visitors, as the service admits them anew for each request: who they are, what they may see, and the
//! clients that make calls for them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use super::calls::{Services, id_of};
use super::fields::{FormFields, Link};
use super::layout::Frame;
use super::page_error::PageError;
use super::{Console, moved_to};

/// The field of a query that says what was done.
const OUTCOME: &str = "done";
/// Longest outcome, in bytes: with its link it fits the address of a page.
const MAX_OUTCOME: usize = 1024;

/// A visitor of one page, with the roles that they have at that moment. Extension of the request.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// Their name, as the audit has it.
    pub actor: String,
    /// Where they may change things.
    pub admin: RoleScope,
    /// Where they may see and repair keys.
    pub operate: RoleScope,
    /// The services, as they may call them.
    pub services: Services,
    /// The secret that forms of their pages must have.
    pub form_secret: FormSecret,
    /// Whether they have signed in.
    pub has_session: bool,
    /// The instance that answers, and its store.
    pub store: StoreInfo,
    /// What the service does beside calls.
    pub host: Arc<dyn VisitHost>,
}

/// A request for a page: who makes it, with the fields of its query or of its form.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) console: Console,
    pub(super) visitor: Visitor,
    pub(super) fields: FormFields,
}

/// The projects for which a visitor has a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleScope {
    /// Whether these are all, now and in the future.
    pub everywhere: bool,
    /// Ids of projects.
    pub projects: BTreeSet<String>,
}

/// The instance that answers, and its store.
#[derive(Clone, Debug)]
pub struct StoreInfo {
    /// Id of the instance.
    pub instance: String,
    /// Name of the cluster for people, such as `production`; may be empty.
    pub cluster: String,
    /// Kind of the store.
    pub kind: &'static str,
    /// Whether it does not answer.
    pub is_away: bool,
    /// Whether its catalogue of projects conflicts with that of an instance: projects and rules can't be
    /// changed.
    pub has_conflict: bool,
}

/// What the service does for a visit, beside the calls of its clients.
pub trait VisitHost: fmt::Debug + Send + Sync {
    /// Returns whether the store is away by now. A visit that is checked does not last any longer.
    ///
    /// # Errors
    ///
    /// The visitor may not see the page any more.
    fn check(&self) -> Result<bool, EndOfVisit>;

    /// Returns a text as visible characters that its visitor can neither read nor change. `None` without
    /// random numbers.
    fn seal(&self, text: &str) -> Option<String>;

    /// Returns the text that was sealed for this visitor, a moment ago.
    fn open(&self, sealed: &str) -> Option<String>;
}

/// The reason why a visit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfVisit {
    /// The session has ended.
    Session,
    /// The visitor has other roles by now.
    Roles,
}

/// A text that every form of a session has, so that no other page can send one. Never shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct FormSecret(Arc<str>);

impl FormSecret {
    /// Takes a text at random. An empty one is a secret that no form can have.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the secret as a form has it: below a random mask, which is part of it, so that no two pages have
    /// the same text. Empty without random numbers.
    pub fn masked(&self) -> String {
        let mut mask = vec![0; self.0.len()];
        if SystemRandom::new().fill(&mut mask).is_err() {
            return String::new();
        }
        let covered: Vec<u8> = self.0.bytes().zip(&mask).map(|(byte, mask)| byte ^ mask).collect();
        URL_SAFE_NO_PAD.encode([mask, covered].concat())
    }

    /// Compares in constant time with what a form has.
    pub fn is(&self, masked: &str) -> bool {
        let Ok(bytes) = URL_SAFE_NO_PAD.decode(masked) else { return false };
        let (mask, covered) = bytes.split_at(bytes.len() / 2);
        let text: Vec<u8> = covered.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
        let is_whole = !self.0.is_empty() && mask.len() == covered.len();
        is_whole && self.0.as_bytes().ct_eq(&text).into()
    }
}

impl fmt::Debug for FormSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl RoleScope {
    fn covers(&self, project: &str) -> bool {
        self.everywhere || self.projects.contains(project)
    }
}

impl Visitor {
    /// Returns `true` for visitors with a role for all projects. Others see neither the instances nor the
    /// store.
    pub(super) fn sees_instances(&self) -> bool {
        self.operate.everywhere || self.admin.everywhere
    }

    /// Returns `true` for visitors who may change all projects.
    pub(super) fn is_admin_of_all(&self) -> bool {
        self.admin.everywhere
    }

    /// Returns `true` for visitors who may change a project, given by its id.
    pub(super) fn is_admin(&self, project: &str) -> bool {
        self.admin.covers(project)
    }

    /// Returns `true` for visitors who may see and repair keys of a project, given by its id.
    pub(super) fn is_operator(&self, project: &str) -> bool {
        self.operate.covers(project)
    }

    /// Returns the id of the project of a form, which the visitor may change.
    ///
    /// # Errors
    ///
    /// [`PageError`] as the service would refuse the change.
    pub(super) fn admin_in<'a>(&self, fields: &'a FormFields) -> Result<&'a str, PageError> {
        let id = id_of(fields.get("project"));
        match (self.is_admin(id), self.is_operator(id)) {
            (true, _) => Ok(id),
            (false, true) => Err(PageError::forbidden("admin")),
            (false, false) => Err(PageError::no_project()),
        }
    }

    /// Returns the id of a project of a visitor who has roles for some projects alone.
    pub(super) fn first_project(&self) -> Option<String> {
        self.admin.projects.iter().chain(&self.operate.projects).min().cloned()
    }

    /// Redirects to a page, which says what was done. A link with an outcome says nothing to others, and
    /// a reload of that page repeats nothing.
    pub(super) fn done(&self, page: Link, outcome: &str) -> Response {
        let text = &outcome[..outcome.floor_char_boundary(MAX_OUTCOME)];
        let sealed = self.host.seal(text).unwrap_or_default();
        moved_to(page.with(OUTCOME, &sealed).as_str())
    }
}

impl Visit {
    /// Returns the frame of a page, to which a change may have led.
    pub(super) fn frame(&self, page: &'static str) -> Frame {
        let outcome = self.visitor.host.open(self.fields.get(OUTCOME));
        Frame { page, visitor: self.visitor.clone(), outcome }
    }
}

impl FromRequestParts<Console> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        let visitor = parts.extensions.get::<Visitor>().cloned();
        let visitor = visitor.ok_or_else(|| StatusCode::FORBIDDEN.into_response())?;
        let form = parts.extensions.remove::<FormFields>();
        let fields = match form {
            Some(fields) => Ok(fields),
            None if parts.method == Method::POST => {
                return Err(StatusCode::FORBIDDEN.into_response());
            }
            None => FormFields::parse(parts.uri.query().unwrap_or_default().as_bytes()),
        };
        let console = console.clone();
        match fields {
            Ok(fields) => Ok(Self { console, visitor, fields }),
            Err(error) => Err(console.refuse(error.into()).await),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::http::Request;
    use tonic::Status;
    use tower::{ServiceExt, service_fn};

    use super::super::rule_diff::tests::FORMAT;
    use super::*;

    #[derive(Debug)]
    struct NoHost;

    impl VisitHost for NoHost {
        fn check(&self) -> Result<bool, EndOfVisit> {
            Ok(true)
        }

        fn seal(&self, _text: &str) -> Option<String> {
            None
        }

        fn open(&self, _sealed: &str) -> Option<String> {
            None
        }
    }

    /// Returns a visitor without roles, whose calls are refused.
    pub(crate) fn visitor() -> Visitor {
        let refused = service_fn(async |_| {
            Ok::<_, Infallible>(Status::permission_denied("no role").into_http())
        });
        Visitor {
            actor: "local".to_owned(),
            admin: RoleScope::default(),
            operate: RoleScope::default(),
            services: Services::new(refused),
            form_secret: FormSecret::new("secret"),
            has_session: false,
            store: StoreInfo {
                instance: "host-1".to_owned(),
                cluster: String::new(),
                kind: "redis",
                is_away: true,
                has_conflict: true,
            },
            host: Arc::new(NoHost),
        }
    }

    #[tokio::test]
    async fn a_request_without_a_visitor_is_refused() {
        let pages = Console::new(tokio::runtime::Handle::current(), FORMAT).pages();
        let status = async |request: axum::http::request::Builder, visitor: Option<Visitor>| {
            let mut request = request.body(Body::empty()).expect("a request");
            visitor.map(|visitor| request.extensions_mut().insert(visitor));
            pages.clone().oneshot(request).await.expect("a response").status()
        };
        for page in ["now", "now-events", "change?project=_", "usage.csv"] {
            let path = format!("/console/{page}");
            assert_eq!(status(Request::get(&path), None).await, StatusCode::FORBIDDEN, "{page}");
        }
        let form = || Request::post("/console/project-delete");
        assert_eq!(status(form(), None).await, StatusCode::FORBIDDEN);
        // A form whose fields were not checked.
        assert_eq!(status(form(), Some(visitor())).await, StatusCode::FORBIDDEN);
        let of_visitor = status(Request::get("/console/instances"), Some(visitor())).await;
        assert_eq!(of_visitor, StatusCode::FORBIDDEN, "the service refuses its calls");
    }

    #[test]
    fn the_secret_of_forms_is_masked_anew_each_time() {
        let secret = FormSecret::new("a-secret");
        let (first, second) = (secret.masked(), secret.masked());
        assert!(first != second && secret.is(&first) && secret.is(&second));
        assert!(!FormSecret::new("another").is(&first) && !FormSecret::new("").is(""));
        let bytes = URL_SAFE_NO_PAD.decode(&first).expect("base64");
        let cut = URL_SAFE_NO_PAD.encode(&bytes[1..]);
        for text in ["", "a-secret", "é", &first[1..], &cut, &FormSecret::new("").masked()] {
            assert!(!secret.is(text), "{text}");
        }
    }

    #[test]
    fn roles_are_for_all_projects_or_for_some() {
        let mut visitor = visitor();
        visitor.operate.projects.extend(["shop", "blog"].map(str::to_owned));
        visitor.admin.projects.insert("shop".to_owned());
        assert!(visitor.is_admin("shop") && !visitor.is_admin("blog") && !visitor.is_admin(""));
        assert!(visitor.is_operator("blog") && !visitor.sees_instances());
        assert_eq!(visitor.first_project().as_deref(), Some("blog"));
        visitor.admin.everywhere = true;
        assert!(visitor.is_admin("blog") && visitor.is_admin("") && visitor.sees_instances());
    }
}
