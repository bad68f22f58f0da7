//! The methods of the services: their roles, and their routes over HTTP.
//!
//! A method needs its line here, and its function in the service; everything else, such as the
//! description of the HTTP API, follows.

use rlaas_auth::{AdminApi, AdminRoute, Permission, Verb};

const fn route(
    rpc: &'static str,
    permission: Permission,
    verb: Verb,
    path: &'static str,
) -> AdminRoute {
    AdminRoute::new(AdminApi::Keys, rpc, permission, verb, path)
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
pub const ROUTES: &[AdminRoute] = &[
    route("Inspect", REPAIR, Verb::Post, "/v1/admin/keys:inspect"),
    route("Reset", REPAIR, Verb::Post, "/v1/admin/keys:reset"),
    route("Refund", REPAIR, Verb::Post, "/v1/admin/keys:refund"),
    route("SetOverride", CHANGE, Verb::Post, "/v1/admin/keys:override"),
    route("ClearOverride", CHANGE, Verb::Post, "/v1/admin/keys:clear-override"),
    route("ListOverrides", CHANGE, Verb::Get, "/v1/admin/overrides"),
    route("Explain", SHOW, Verb::Post, "/v1/admin/explain"),
    route("ExplainDescriptors", Permission::OPERATE, Verb::Post, "/v1/admin/explain-descriptors"),
    route("ListAudit", CHANGE, Verb::Get, "/v1/admin/audit"),
    route("ListThresholdEvents", REPAIR, Verb::Get, "/v1/admin/events"),
    route("ListInstances", Permission::OPERATE_OR_ADMIN, Verb::Get, "/v1/admin/instances"),
    route("TopKeys", SHOW, Verb::Get, "/v1/admin/top-keys"),
    streaming(route("WatchDecisions", SHOW, Verb::Get, "/v1/admin/decisions")),
    route("SetMode", CHANGE, Verb::Post, "/v1/admin/mode"),
    streaming(route("WatchStats", SHOW, Verb::Get, "/v1/admin/stats")),
    route("BanKey", CHANGE, Verb::Post, "/v1/admin/keys:ban"),
    route("LookUp", REPAIR, Verb::Post, "/v1/admin/look-up"),
];

/// Every method of the projects. `UpdateRule` has two routes.
pub const PROJECT_ROUTES: &[AdminRoute] = &[
    of_projects("CreateProject", Permission::ADMIN, Verb::Post, "/v1/projects"),
    of_projects("GetProject", SHOW, Verb::Get, "/v1/projects/{projectId}"),
    of_projects("ListProjects", SHOW, Verb::Get, "/v1/projects"),
    of_projects("UpdateProject", CHANGE, Verb::Patch, "/v1/projects/{project.id}"),
    of_projects("DeleteProject", CHANGE, Verb::Delete, "/v1/projects/{projectId}"),
    of_projects("CreateKey", CHANGE, Verb::Post, "/v1/projects/{projectId}/keys"),
    of_projects("ListKeys", SHOW, Verb::Get, "/v1/projects/{projectId}/keys"),
    of_projects("UpdateKey", CHANGE, Verb::Patch, "/v1/projects/{projectId}/keys/{key.id}"),
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
}
