//! The methods of the service: their roles, and their routes over HTTP.
//!
//! A method needs its line here, and its function in the service; everything else, such as the
//! description of the HTTP API, follows.

use axum::http::Method;

use crate::api::auth::Permission;

/// A method, and its route over HTTP.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct AdminRoute {
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
}

/// How a method is called over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum Verb {
    /// `GET`: the fields of the request are parameters of the query. If the method streams, the
    /// response is an event stream.
    Get,
    /// `POST`: the request is the body.
    Post,
}

const fn route(
    rpc: &'static str,
    permission: Permission,
    verb: Verb,
    path: &'static str,
) -> AdminRoute {
    AdminRoute { rpc, permission, verb, path, is_stream: false }
}

const fn streaming(route: AdminRoute) -> AdminRoute {
    AdminRoute { is_stream: true, ..route }
}

/// Every method.
pub(in crate::api) const ROUTES: &[AdminRoute] = &[
    route("Inspect", Permission::OPERATE, Verb::Post, "/v1/admin/keys:inspect"),
    route("Reset", Permission::OPERATE, Verb::Post, "/v1/admin/keys:reset"),
    route("Refund", Permission::OPERATE, Verb::Post, "/v1/admin/keys:refund"),
    route("SetOverride", Permission::ADMIN, Verb::Post, "/v1/admin/keys:override"),
    route("ClearOverride", Permission::ADMIN, Verb::Post, "/v1/admin/keys:clear-override"),
    route("ListOverrides", Permission::ADMIN, Verb::Get, "/v1/admin/overrides"),
    route("Explain", Permission::OPERATE, Verb::Post, "/v1/admin/explain"),
    route("ExplainDescriptors", Permission::OPERATE, Verb::Post, "/v1/admin/explain-descriptors"),
    route("ListAudit", Permission::ADMIN, Verb::Get, "/v1/admin/audit"),
    route("ListInstances", Permission::OPERATE_OR_ADMIN, Verb::Get, "/v1/admin/instances"),
    route("TopKeys", Permission::OPERATE_OR_ADMIN, Verb::Get, "/v1/admin/top-keys"),
    streaming(route(
        "WatchDecisions",
        Permission::OPERATE_OR_ADMIN,
        Verb::Get,
        "/v1/admin/decisions",
    )),
    route("SetMode", Permission::ADMIN, Verb::Post, "/v1/admin/mode"),
];

impl AdminRoute {
    /// Returns the route of a method of the service.
    pub(in crate::api) fn of_rpc(rpc: &str) -> Option<&'static Self> {
        ROUTES.iter().find(|route| route.rpc == rpc)
    }

    /// Returns the route of a path over HTTP, if the request has its method. `HEAD` counts as `GET`.
    pub(in crate::api) fn of_http(method: &Method, path: &str) -> Option<&'static Self> {
        let verb = match *method {
            Method::GET | Method::HEAD => Verb::Get,
            Method::POST => Verb::Post,
            _ => return None,
        };
        ROUTES.iter().find(|route| route.verb == verb && route.path == path)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
}
