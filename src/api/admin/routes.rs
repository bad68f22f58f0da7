//! The methods of the services: their roles, and their routes over HTTP.
//!
//! A method needs its line here, and its function in the service; everything else, such as the
//! description of the HTTP API, follows. A path has names of fields in braces, which are set from
//! the request's path; the project "" is `_` there.

use axum::http::Method;
use rlaas_auth::Permission;

/// A service with routes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum AdminApi {
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
pub(in crate::api) struct AdminRoute {
    /// Service of the method.
    pub(in crate::api) api: AdminApi,
    /// Name of the method.
    pub(in crate::api) rpc: &'static str,
    /// What it requires of its caller.
    pub(in crate::api) permission: Permission,
    /// How it is called over HTTP.
    pub(in crate::api) verb: Verb,
    /// Path over HTTP.
    pub(in crate::api) path: &'static str,
    /// Whether its responses are a stream.
    pub(in crate::api) is_stream: bool,
    /// Whether its request has any number of rules, so that it may be large.
    pub(in crate::api) takes_rules: bool,
}

/// How a method is called over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum Verb {
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
    pub(in crate::api) const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    /// Returns `true` if the request has a body.
    pub(in crate::api) const fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }

    fn from_method(method: &Method) -> Option<Self> {
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

const fn route(
    rpc: &'static str,
    permission: Permission,
    verb: Verb,
    path: &'static str,
) -> AdminRoute {
    AdminRoute {
        api: AdminApi::Keys,
        rpc,
        permission,
        verb,
        path,
        is_stream: false,
        takes_rules: false,
    }
}

const fn of_projects(
    rpc: &'static str,
    permission: Permission,
    verb: Verb,
    path: &'static str,
) -> AdminRoute {
    AdminRoute { api: AdminApi::Projects, ..route(rpc, permission, verb, path) }
}

const fn streaming(route: AdminRoute) -> AdminRoute {
    AdminRoute { is_stream: true, ..route }
}

const fn of_rules(
    rpc: &'static str,
    permission: Permission,
    verb: Verb,
    path: &'static str,
) -> AdminRoute {
    AdminRoute { takes_rules: true, ..of_projects(rpc, permission, verb, path) }
}

/// For calls with a project, by whose roles the service decides.
const REPAIR: Permission = Permission::PROJECT_OPERATE;
const SHOW: Permission = Permission::PROJECT_OPERATE_OR_ADMIN;
const CHANGE: Permission = Permission::PROJECT_ADMIN;

/// Every method.
pub(in crate::api) const ROUTES: &[AdminRoute] = &[
    route("Inspect", REPAIR, Verb::Post, "/v1/admin/keys:inspect"),
    route("Reset", REPAIR, Verb::Post, "/v1/admin/keys:reset"),
    route("Refund", REPAIR, Verb::Post, "/v1/admin/keys:refund"),
    route("SetOverride", CHANGE, Verb::Post, "/v1/admin/keys:override"),
    route("ClearOverride", CHANGE, Verb::Post, "/v1/admin/keys:clear-override"),
    route("ListOverrides", CHANGE, Verb::Get, "/v1/admin/overrides"),
    route("Explain", SHOW, Verb::Post, "/v1/admin/explain"),
    route("ExplainDescriptors", Permission::OPERATE, Verb::Post, "/v1/admin/explain-descriptors"),
    route("ListAudit", CHANGE, Verb::Get, "/v1/admin/audit"),
    route("ListInstances", Permission::OPERATE_OR_ADMIN, Verb::Get, "/v1/admin/instances"),
    route("TopKeys", SHOW, Verb::Get, "/v1/admin/top-keys"),
    streaming(route("WatchDecisions", SHOW, Verb::Get, "/v1/admin/decisions")),
    route("SetMode", CHANGE, Verb::Post, "/v1/admin/mode"),
    streaming(route("WatchStats", SHOW, Verb::Get, "/v1/admin/stats")),
    route("BanKey", CHANGE, Verb::Post, "/v1/admin/keys:ban"),
    route("LookUp", REPAIR, Verb::Post, "/v1/admin/look-up"),
];

const fn of_decisions(api: AdminApi, rpc: &'static str, path: &'static str) -> AdminRoute {
    AdminRoute { api, ..route(rpc, Permission::Decisions, Verb::Post, path) }
}

/// The methods of decisions without a form of their own.
pub(in crate::api) const DECISION_ROUTES: &[AdminRoute] =
    &[of_decisions(AdminApi::Decisions, "Report", "/v1/report")];

/// Every method of reservations.
pub(in crate::api) const RESERVATION_ROUTES: &[AdminRoute] = &[
    of_decisions(AdminApi::Reservations, "Reserve", "/v1/reserve"),
    of_decisions(AdminApi::Reservations, "Extend", "/v1/extend"),
    of_decisions(AdminApi::Reservations, "Commit", "/v1/commit"),
    of_decisions(AdminApi::Reservations, "Cancel", "/v1/cancel"),
];

/// Every method of the projects. `UpdateRule` has two routes.
pub(in crate::api) const PROJECT_ROUTES: &[AdminRoute] = &[
    of_projects("CreateProject", Permission::ADMIN, Verb::Post, "/v1/projects"),
    of_projects("GetProject", SHOW, Verb::Get, "/v1/projects/{projectId}"),
    of_projects("ListProjects", SHOW, Verb::Get, "/v1/projects"),
    of_projects("UpdateProject", CHANGE, Verb::Patch, "/v1/projects/{project.id}"),
    of_projects("DeleteProject", CHANGE, Verb::Delete, "/v1/projects/{projectId}"),
    of_projects("CreateKey", CHANGE, Verb::Post, "/v1/projects/{projectId}/keys"),
    of_projects("ListKeys", SHOW, Verb::Get, "/v1/projects/{projectId}/keys"),
    of_projects("RotateKey", CHANGE, Verb::Post, "/v1/projects/{projectId}/keys/{keyId}:rotate"),
    of_projects("RevokeKey", CHANGE, Verb::Delete, "/v1/projects/{projectId}/keys/{keyId}"),
    of_projects("CreateRule", CHANGE, Verb::Post, "/v1/projects/{projectId}/rules"),
    of_projects("GetRule", SHOW, Verb::Get, "/v1/projects/{projectId}/rules/{ruleName}"),
    of_projects("ListRules", SHOW, Verb::Get, "/v1/projects/{projectId}/rules"),
    of_projects("UpdateRule", CHANGE, Verb::Patch, "/v1/projects/{projectId}/rules/{rule.name}"),
    of_projects("UpdateRule", CHANGE, Verb::Put, "/v1/projects/{projectId}/rules/{rule.name}"),
    of_projects("DeleteRule", CHANGE, Verb::Delete, "/v1/projects/{projectId}/rules/{ruleName}"),
    of_rules("ApplyRules", CHANGE, Verb::Post, "/v1/projects/{projectId}/rules:apply"),
    of_rules("Validate", SHOW, Verb::Post, "/v1/projects/{projectId}/rules:validate"),
    of_projects("ListRevisions", SHOW, Verb::Get, "/v1/projects/{projectId}/revisions"),
    of_projects("GetRevision", SHOW, Verb::Get, "/v1/projects/{projectId}/revisions/{revision}"),
    of_projects(
        "Rollback",
        CHANGE,
        Verb::Post,
        "/v1/projects/{projectId}/revisions/{revision}:rollback",
    ),
    of_projects("ListUsage", SHOW, Verb::Get, "/v1/projects/{projectId}/usage"),
    of_projects("RestoreCatalogue", Permission::ADMIN, Verb::Post, "/v1/catalogue:restore"),
];

impl AdminRoute {
    /// Returns `true` for the methods of callers who ask for decisions.
    pub(in crate::api) const fn is_of_decisions(&self) -> bool {
        matches!(self.api, AdminApi::Decisions | AdminApi::Reservations)
    }

    /// Returns the route of a method of a service.
    pub(in crate::api) fn of_rpc(api: AdminApi, rpc: &str) -> Option<&'static Self> {
        all().find(|route| route.api == api && route.rpc == rpc)
    }

    /// Returns the route of a path over HTTP, if the request has its method. `HEAD` counts as `GET`.
    pub(in crate::api) fn of_http(method: &Method, path: &str) -> Option<&'static Self> {
        let verb = Verb::from_method(method)?;
        all().find(|route| route.verb == verb && route.fields(path).is_some())
    }

    /// Returns `true` if the response of a path is a stream. It is asked for each request.
    pub(in crate::api) fn streams(path: &str) -> bool {
        all().any(|route| route.is_stream && route.path == path)
    }

    /// Returns the methods of a path, separated by commas; empty if it is unknown.
    pub(in crate::api) fn allowed(path: &str) -> String {
        let routes = all().filter(|route| route.fields(path).is_some());
        routes.map(|route| route.verb.name().to_uppercase()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the fields that a path sets, with their values as they are in the path; `None` if it
    /// is another path.
    pub(in crate::api) fn fields<'a>(&self, path: &'a str) -> Option<Vec<(&'static str, &'a str)>> {
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

/// Returns the routes of all services.
pub(in crate::api) fn all() -> impl Iterator<Item = &'static AdminRoute> {
    let of_projects = ROUTES.iter().chain(PROJECT_ROUTES);
    of_projects.chain(DECISION_ROUTES).chain(RESERVATION_ROUTES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    type Fields = Vec<(&'static str, &'static str)>;

    #[test]
    fn every_method_of_the_service_has_one_route() {
        let pool = prost_reflect::DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET);
        let pool = pool.expect("descriptors");
        let service = pool.get_service_by_name("ratelimit.admin.v1.AdminService");
        let service = service.expect("the service");
        let methods: Vec<String> = service.methods().map(|one| one.name().to_owned()).collect();
        let routed: Vec<&str> = ROUTES.iter().map(|route| route.rpc).collect();
        assert_eq!(routed, methods);
        for (route, method) in ROUTES.iter().zip(service.methods()) {
            assert_eq!(route.is_stream, method.is_server_streaming(), "{}", route.rpc);
        }
        let paths: BTreeSet<&str> = ROUTES.iter().map(|route| route.path).collect();
        assert_eq!(paths.len(), ROUTES.len());
    }

    #[test]
    fn every_method_of_the_projects_is_routed() {
        let pool = prost_reflect::DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET);
        let pool = pool.expect("descriptors");
        let service = pool.get_service_by_name("ratelimit.admin.v1.ProjectService");
        let service = service.expect("the service");
        let methods: Vec<String> = service.methods().map(|one| one.name().to_owned()).collect();
        let mut routed: Vec<&str> = PROJECT_ROUTES.iter().map(|route| route.rpc).collect();
        routed.dedup();
        assert_eq!(routed, methods);
    }

    fn rpc(method: &Method, path: &'static str) -> Option<(&'static str, Fields)> {
        let route = AdminRoute::of_http(method, path)?;
        Some((route.rpc, route.fields(path)?))
    }

    #[test]
    fn path_sets_fields() {
        let shop = ("projectId", "shop");
        for (method, path, expected) in [
            (Method::GET, "/v1/projects", ("ListProjects", vec![])),
            (Method::HEAD, "/v1/projects/shop", ("GetProject", vec![shop])),
            (Method::PUT, "/v1/projects/_/rules/a.b", {
                ("UpdateRule", vec![("projectId", "_"), ("rule.name", "a.b")])
            }),
            (Method::POST, "/v1/projects/shop/rules:apply", ("ApplyRules", vec![shop])),
            (Method::POST, "/v1/projects/shop/keys/k:rotate", {
                ("RotateKey", vec![shop, ("keyId", "k")])
            }),
            (Method::POST, "/v1/projects/shop/revisions/7:rollback", {
                ("Rollback", vec![shop, ("revision", "7")])
            }),
        ] {
            assert_eq!(rpc(&method, path), Some(expected), "{path}");
        }
        for (method, path) in [
            (Method::GET, "/v1/projects/"),
            (Method::GET, "/v1/projects//rules"),
            (Method::GET, "/v1/projects/shop/rules/"),
            (Method::GET, "/v1/projects/shop/rules/a/b"),
            (Method::DELETE, "/v1/projects/shop/keys/k:rotate"),
            (Method::PUT, "/v1/projects/shop"),
            (Method::OPTIONS, "/v1/projects"),
            (Method::POST, "/v1/projects/shop/keys/:rotate"),
        ] {
            assert_eq!(rpc(&method, path), None, "{method} {path}");
        }
        assert_eq!(AdminRoute::allowed("/v1/projects/shop"), "GET, PATCH, DELETE");
    }
}
