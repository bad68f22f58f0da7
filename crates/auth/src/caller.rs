//! Callers: who makes a call, and from where.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Extensions;
use rlaas_telemetry::holder::Holder;

use super::grants::Grants;
use super::project_id::ProjectId;
use super::roles::{Role, Roles};

/// Stands for every project.
pub const EVERY_PROJECT: &str = "-";

/// Who makes an administrative call, and what it may do. Extension of the request: a call without
/// it was not admitted, and must be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    actor: Arc<str>,
    grants: Grants,
}

impl Caller {
    pub(super) fn new(actor: impl Into<Arc<str>>, grants: impl Into<Grants>) -> Self {
        Self { actor: actor.into(), grants: grants.into() }
    }

    /// Returns a local caller without a certificate, who has every role.
    #[doc(hidden)]
    pub fn local() -> Self {
        Self::new("local", super::Roles::ALL)
    }

    /// Returns the caller of a request that the middleware has admitted.
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Returns the name of the caller for the audit: `token:NAME`, `certificate:NAME`,
    /// `oidc:ISSUER#SUBJECT`, or `local` while `auth` lists nobody. NAME and SUBJECT are any text.
    pub fn actor(&self) -> &str {
        &self.actor
    }

    /// Returns what the caller is granted.
    pub(super) fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Adds the roles of `other`.
    pub(super) fn with_roles_of(self, other: &Self) -> Self {
        Self { grants: self.grants.with(&other.grants), ..self }
    }

    /// Returns `true` if the caller has the role for all projects.
    pub fn has(&self, role: Role) -> bool {
        self.grants.everywhere().contains(role)
    }

    /// Returns which projects the caller may change.
    pub fn scope(&self) -> CallerScope {
        let is_of_all = self.has(Role::Admin);
        if is_of_all { CallerScope::AllProjects } else { CallerScope::SomeProjects }
    }

    /// Returns on whose account the caller holds a place: that of the project it asks about, unless it
    /// has a role for all.
    pub fn holder(&self, project: &str) -> Holder {
        if self.has(Role::Admin) || self.has(Role::Operate) {
            return Holder::AllProjects;
        }
        Holder::Project(project.to_owned())
    }

    /// Returns on whose account the caller watches a project, or `-`: every one that it has a role in.
    pub fn watch_holder(&self, project: &str) -> Holder {
        match self.holder(project) {
            Holder::Project(id) => Holder::Caller {
                name: self.actor.to_string(),
                project: Some(id).filter(|id| id != EVERY_PROJECT),
            },
            holder => holder,
        }
    }

    /// Returns the projects for which the caller has one of the roles, but for all projects at once.
    pub fn projects_with(&self, roles: Roles) -> impl Iterator<Item = &ProjectId> {
        self.grants.projects_with(roles)
    }

    /// Returns the roles that the caller has in a project.
    pub fn roles_in(&self, project: &ProjectId) -> Roles {
        self.grants.in_project(project)
    }
}

/// Whether a change is made by somebody who may change all projects.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub enum CallerScope {
    /// One who may change some.
    #[default]
    SomeProjects,
    /// One who may change all.
    AllProjects,
}

/// The project that a call is about, as a page names it. Extension of the request.
#[derive(Clone, Debug, Default)]
pub struct CallProject(pub String);

/// The place that a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLocality {
    /// A Unix domain socket: the permissions of its file decide who may connect.
    UnixSocket,
    /// A loopback address: a process of this machine, or of this pod.
    Loopback,
    /// Any other address, or an unknown one.
    Remote,
}

impl PeerLocality {
    /// Returns the place of an address. An IPv4 address that is mapped to IPv6 is the IPv4 address.
    pub fn from_address(address: SocketAddr) -> Self {
        if address.ip().to_canonical().is_loopback() { Self::Loopback } else { Self::Remote }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_in_all_its_forms() {
        for (address, peer) in [
            ("127.0.0.1:1", PeerLocality::Loopback),
            ("127.255.255.254:1", PeerLocality::Loopback),
            ("[::1]:1", PeerLocality::Loopback),
            ("[::ffff:127.0.0.1]:1", PeerLocality::Loopback),
            ("[::ffff:10.0.0.1]:1", PeerLocality::Remote),
            // The deprecated IPv4-compatible form is no loopback address.
            ("[::127.0.0.1]:1", PeerLocality::Remote),
            ("0.0.0.0:1", PeerLocality::Remote),
            ("[::]:1", PeerLocality::Remote),
            ("10.0.0.1:1", PeerLocality::Remote),
            ("169.254.1.1:1", PeerLocality::Remote),
            ("[fe80::1]:1", PeerLocality::Remote),
        ] {
            assert_eq!(
                PeerLocality::from_address(address.parse().expect("an address")),
                peer,
                "{address}"
            );
        }
    }
}
