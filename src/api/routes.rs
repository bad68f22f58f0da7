//! The routes of all methods over HTTP: those of decisions, which are here, and those of the administration.

use axum::http::Method;
use rlaas_auth::{AdminApi, AdminRoute, Permission, Verb};

#[cfg(feature = "admin")]
use rlaas_admin::routes::{PROJECT_ROUTES, ROUTES};

#[cfg(not(feature = "admin"))]
const ROUTES: &[AdminRoute] = &[];
#[cfg(not(feature = "admin"))]
const PROJECT_ROUTES: &[AdminRoute] = ROUTES;

const fn of_decisions(api: AdminApi, rpc: &'static str, path: &'static str) -> AdminRoute {
    AdminRoute::new(api, rpc, Permission::Decisions, Verb::Post, path)
}

/// The methods of decisions without a form of their own.
pub(super) const DECISION_ROUTES: &[AdminRoute] =
    &[of_decisions(AdminApi::Decisions, "Report", "/v1/report")];

/// Every method of reservations.
pub(super) const RESERVATION_ROUTES: &[AdminRoute] = &[
    of_decisions(AdminApi::Reservations, "Reserve", "/v1/reserve"),
    of_decisions(AdminApi::Reservations, "Extend", "/v1/extend"),
    of_decisions(AdminApi::Reservations, "Commit", "/v1/commit"),
    of_decisions(AdminApi::Reservations, "Cancel", "/v1/cancel"),
];

/// Returns the route of a method of a service.
pub(super) fn of_rpc(api: AdminApi, rpc: &str) -> Option<&'static AdminRoute> {
    all().find(|route| route.api == api && route.rpc == rpc)
}

/// Returns the route of a path over HTTP, if the request has its method. `HEAD` counts as `GET`.
pub(super) fn of_http(method: &Method, path: &str) -> Option<&'static AdminRoute> {
    let verb = Verb::from_method(method)?;
    all().find(|route| route.verb == verb && route.fields(path).is_some())
}

/// Returns `true` if the response of a path is a stream. It is asked for each request.
pub(super) fn streams(path: &str) -> bool {
    all().any(|route| route.is_stream && route.path == path)
}

/// Returns the methods of a path, separated by commas; empty if it is unknown.
#[cfg(feature = "admin")]
pub(super) fn allowed(path: &str) -> String {
    let routes = all().filter(|route| route.fields(path).is_some());
    routes.map(|route| route.verb.name().to_uppercase()).collect::<Vec<_>>().join(", ")
}

/// Returns the routes of all services.
pub(super) fn all() -> impl Iterator<Item = &'static AdminRoute> {
    let of_projects = ROUTES.iter().chain(PROJECT_ROUTES);
    of_projects.chain(DECISION_ROUTES).chain(RESERVATION_ROUTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = Vec<(&'static str, &'static str)>;

    fn rpc(method: &Method, path: &'static str) -> Option<(&'static str, Fields)> {
        let route = of_http(method, path)?;
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
        assert_eq!(allowed("/v1/projects/shop"), "GET, PATCH, DELETE");
    }
}
