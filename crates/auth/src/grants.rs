//! What callers are granted: roles for all projects, and roles for some.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::project_id::ProjectId;
use super::roles::{Permission, Roles};

/// The roles of a caller. Those for all projects are also for what belongs to no project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    everywhere: Roles,
    /// Never empty.
    projects: Option<Arc<BTreeMap<ProjectId, Roles>>>,
}

impl Grants {
    /// Most projects that a list may name.
    pub const MAX_PROJECTS: usize = 1_000;

    /// Grants roles for these projects alone.
    pub fn within(projects: impl IntoIterator<Item = ProjectId>, roles: Roles) -> Self {
        let projects: BTreeMap<_, _> = projects.into_iter().map(|id| (id, roles)).collect();
        let projects = (!projects.is_empty()).then(|| Arc::new(projects));
        Self { everywhere: Roles::default(), projects }
    }

    /// Returns the roles for all projects.
    pub const fn everywhere(&self) -> Roles {
        self.everywhere
    }

    /// Returns the roles in a project, those for all projects included.
    pub fn in_project(&self, id: &ProjectId) -> Roles {
        let own = self.projects.as_ref().and_then(|projects| projects.get(id));
        self.everywhere.with(own.copied().unwrap_or_default())
    }

    /// Returns the projects that are listed with one of these roles.
    pub fn projects_with(&self, roles: Roles) -> impl Iterator<Item = &ProjectId> {
        let listed = self.projects.iter().flat_map(|projects| projects.iter());
        listed.filter(move |(_, held)| held.intersects(roles)).map(|(id, _)| id)
    }

    /// Returns the roles that are held for all projects or for any.
    pub fn anywhere(&self) -> Roles {
        let own = self.projects.iter().flat_map(|projects| projects.values());
        own.fold(self.everywhere, |all, roles| all.with(*roles))
    }

    /// Returns `true` if the caller may make a call that requires this, as far as is known before its
    /// project is.
    pub(super) fn meet(&self, permission: Permission) -> bool {
        let held = match permission {
            Permission::Projects(_) | Permission::ProjectConfiguration => self.anywhere(),
            Permission::Decisions
            | Permission::Descriptors
            | Permission::Metrics
            | Permission::Configuration
            | Permission::Administration(_) => self.everywhere(),
        };
        held.intersects(permission.roles())
    }

    /// Returns `true` if all that `other` grants is granted.
    pub fn cover(&self, other: &Self) -> bool {
        let mut projects = other.projects.iter().flat_map(|projects| projects.iter());
        self.everywhere.cover(other.everywhere)
            && projects.all(|(id, roles)| self.in_project(id).cover(*roles))
    }

    /// Returns what both grant together.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let everywhere = self.everywhere.with(other.everywhere);
        let projects = match (&self.projects, &other.projects) {
            (Some(own), Some(other)) => {
                let mut all = BTreeMap::clone(own);
                for (id, roles) in &**other {
                    let held = all.entry(id.clone()).or_default();
                    *held = held.with(*roles);
                }
                Some(Arc::new(all))
            }
            (own, other) => own.as_ref().or(other.as_ref()).cloned(),
        };
        Self { everywhere, projects }
    }
}

/// Grants roles for all projects.
impl From<Roles> for Grants {
    fn from(everywhere: Roles) -> Self {
        Self { everywhere, projects: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::roles::Role;
    use super::*;

    fn id(text: &str) -> ProjectId {
        text.parse().expect("an id")
    }

    #[test]
    fn roles_are_for_all_projects_or_for_some() {
        let (operate, admin) = (Roles::only(Role::Operate), Roles::only(Role::Admin));
        let everywhere = Grants::from(operate);
        let shop = Grants::within([id("shop")], admin);
        let both = everywhere.with(&shop).with(&Grants::within([id("shop"), id("blog")], operate));
        assert_eq!(shop.everywhere(), Roles::default());
        assert_eq!((shop.in_project(&id("shop")), shop.anywhere()), (admin, admin));
        assert_eq!(shop.in_project(&id("sho")), Roles::default());
        assert_eq!((both.everywhere(), both.in_project(&id("other"))), (operate, operate));
        assert_eq!(both.in_project(&id("shop")), operate.with(admin));
        assert_eq!((both.in_project(&id("blog")), both.anywhere()), (operate, operate.with(admin)));
        assert_eq!(Grants::within([], admin), Grants::default());
        assert!(both.cover(&shop) && both.cover(&everywhere) && both.cover(&both));
        assert!(!shop.cover(&both) && !everywhere.cover(&shop));
        assert!(everywhere.cover(&Grants::within([id("any")], operate)));
        assert!(!Grants::within([id("any")], operate).cover(&everywhere));
    }
}
