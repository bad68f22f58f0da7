//! Stands for `compat_projects` in a build without projects: there are no such routes.

use axum::http::Method;
use rlaas_auth::Permission;

pub(super) fn permission_of(_method: &Method, _path: &str) -> Option<Permission> {
    None
}

pub(super) mod openapi {
    pub(in crate::api::http) fn describe(_document: &mut serde_json::Value) {}
}
