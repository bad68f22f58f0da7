//! The table of the methods: what each requires of its caller, and its route over HTTP. Its rows are where the
//! methods are.
//!
//! A path has names of fields in braces, which are set from the request's path; the project "" is `_`
//! there.

use http::Method;

use super::roles::Permission;

/// A service with routes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminApi {
    /// `RateLimitService`, but for what has routes of its own.
    Decisions,
    /// `ReservationService`.
    Reservations,
    /// `AdminService`.
    Keys,
    /// `ProjectService`.
    Projects,
}

/// A method, and its route over HTTP.
#[derive(Clone, Copy, Debug)]
pub struct AdminRoute {
    /// Service of the method.
    pub api: AdminApi,
    /// Name of the method.
    pub rpc: &'static str,
    /// What it requires of its caller.
    pub permission: Permission,
    /// How it is called over HTTP.
    pub verb: Verb,
    /// Path over HTTP.
    pub path: &'static str,
    /// Whether its responses are a stream.
    pub is_stream: bool,
    /// Whether its request has any number of rules, so that it may be large.
    pub takes_rules: bool,
}

/// How a method is called over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `GET`: the fields of the request are parameters of the query. If the method streams, the
    /// response is an event stream.
    Get,
    /// `POST`: the request is the body.
    Post,
    /// `PUT`: as `POST`; creates what is missing.
    Put,
    /// `PATCH`: as `POST`.
    Patch,
    /// `DELETE`: as `GET`; the response has no body.
    Delete,
}

impl Verb {
    /// Returns the method, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    /// Returns `true` if the request has a body.
    pub const fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }

    /// Returns how a request with this method calls; `HEAD` counts as `GET`.
    pub fn from_method(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Self::Get),
            Method::POST => Some(Self::Post),
            Method::PUT => Some(Self::Put),
            Method::PATCH => Some(Self::Patch),
            Method::DELETE => Some(Self::Delete),
            _ => None,
        }
    }
}

impl AdminRoute {
    /// Creates the route of a method with one response, whose request is small.
    pub const fn new(
        api: AdminApi,
        rpc: &'static str,
        permission: Permission,
        verb: Verb,
        path: &'static str,
    ) -> Self {
        Self { api, rpc, permission, verb, path, is_stream: false, takes_rules: false }
    }

    /// Returns `true` for the methods of callers who ask for decisions.
    pub const fn is_of_decisions(&self) -> bool {
        matches!(self.api, AdminApi::Decisions | AdminApi::Reservations)
    }

    /// Returns the fields that a path sets, with their values as they are in the path; `None` if it
    /// is another path.
    pub fn fields<'a>(&self, path: &'a str) -> Option<Vec<(&'static str, &'a str)>> {
        if !self.path.contains('{') {
            return (self.path == path).then(Vec::new);
        }
        let mut fields = Vec::new();
        let mut segments = path.split('/');
        for part in self.path.split('/') {
            let segment = segments.next()?;
            match part.strip_prefix('{').and_then(|part| part.split_once('}')) {
                None if part == segment => {}
                None => return None,
                Some((field, end)) => {
                    let value = segment.strip_suffix(end)?;
                    if value.is_empty() || end.is_empty() && value.contains(':') {
                        return None;
                    }
                    fields.push((field, value));
                }
            }
        }
        segments.next().is_none().then_some(fields)
    }
}
