//! The claims of a token with its roles and its projects, which a setting names.
//!
//! A claim that is missing or of another type grants nothing.

use serde_json::Value;

use super::super::grants::Grants;
use super::super::roles::{Role, Roles};
use crate::ProjectId;

/// Every project, in the claim with projects.
const ALL_PROJECTS: &str = "*";

/// The place of a claim: its name, after those of the objects that contain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(Vec<String>);

/// The claim `roles`.
impl Default for ClaimPath {
    fn default() -> Self {
        Self(vec!["roles".to_owned()])
    }
}

impl ClaimPath {
    /// Maximum number of names.
    pub const MAX: usize = 8;

    /// Creates the path of these names, the outermost first. `None` unless there are 1 to
    /// [`Self::MAX`] names, none of them empty.
    pub fn new(names: Vec<String>) -> Option<Self> {
        let is_valid =
            (1..=Self::MAX).contains(&names.len()) && !names.iter().any(String::is_empty);
        is_valid.then_some(Self(names))
    }

    /// Returns the roles that the claim names. Other names are ignored; anything but a list of
    /// strings grants nothing.
    pub(super) fn roles(&self, claims: &Value) -> Roles {
        let names = self.texts(claims);
        Role::ALL.into_iter().filter(|role| names.contains(&role.name())).collect()
    }

    /// Returns the roles for the projects that the claim names, of which `*` is every project.
    /// Texts that are no id are ignored; anything but a list of strings grants nothing.
    pub(super) fn limit(&self, roles: Roles, claims: &Value) -> Grants {
        let names = self.texts(claims);
        if names.contains(&ALL_PROJECTS) {
            return roles.into();
        }
        let ids = names.iter().filter_map(|name| name.parse::<ProjectId>().ok());
        Grants::within(ids.take(Grants::MAX_PROJECTS), roles)
    }

    /// Returns the texts of the claim, none unless it is a list of strings.
    fn texts<'a>(&self, claims: &'a Value) -> Vec<&'a str> {
        let found = self.0.iter().try_fold(claims, |object, name| object.as_object()?.get(name));
        let texts = found.and_then(Value::as_array);
        let texts = texts.and_then(|texts| texts.iter().map(Value::as_str).collect());
        texts.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(names: &[&str]) -> ClaimPath {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        ClaimPath::new(names).expect("a path")
    }

    #[test]
    fn roles_are_those_of_a_list_of_strings() {
        let claims = json!({
            "roles": ["check", "Admin", "root", "operate", "check"],
            "realm_access": { "roles": ["admin"] },
            "https://a.example/roles": ["operate"],
            "realm_access.roles": ["operate"],
            "empty": [],
        });
        for (names, expected) in [
            (&["roles"][..], &[Role::Check, Role::Operate][..]),
            (&["realm_access", "roles"], &[Role::Admin]),
            (&["https://a.example/roles"], &[Role::Operate]),
            (&["realm_access.roles"], &[Role::Operate]),
            (&["empty"], &[]),
            (&["missing"], &[]),
            (&["realm_access", "missing"], &[]),
            (&["roles", "roles"], &[]),
            (&["realm_access"], &[]),
        ] {
            let expected: Roles = expected.iter().copied().collect();
            assert_eq!(path(names).roles(&claims), expected, "{names:?}");
        }
    }

    #[test]
    fn claim_of_another_type_grants_nothing() {
        for roles in [
            json!("admin"),
            json!("check operate admin"),
            json!(["admin", 1]),
            json!([["admin"]]),
            json!({ "admin": true }),
            json!({ "0": "admin" }),
            json!(7),
            json!(true),
            json!(null),
        ] {
            let claims = json!({ "roles": roles });
            assert_eq!(path(&["roles"]).roles(&claims), Roles::default(), "{claims}");
        }
        assert_eq!(path(&["roles"]).roles(&json!(["admin"])), Roles::default());
    }

    #[test]
    fn projects_are_those_of_a_list_of_strings() {
        let admin = Roles::only(Role::Admin);
        let id = |text: &str| text.parse::<ProjectId>().expect("an id");
        for (projects, expected) in [
            (json!(["shop", "Shop", "_", "", 7]), Grants::default()),
            (
                json!(["shop", "Shop", "_", "", "blog"]),
                Grants::within([id("shop"), id("blog")], admin),
            ),
            (json!(["shop", "*"]), admin.into()),
            (json!("*"), Grants::default()),
            (json!([]), Grants::default()),
            (json!(null), Grants::default()),
        ] {
            let claims = json!({ "projects": projects });
            assert_eq!(path(&["projects"]).limit(admin, &claims), expected, "{claims}");
        }
        assert_eq!(path(&["projects"]).limit(admin, &json!({})), Grants::default());
    }
}
