//! A view of a visitor: the fields of the query.

use super::shown::{scope_field, scope_of};
use crate::admin::StatsScope;
use crate::api::auth::{Caller, Permission, Role};
use crate::console::fields::{FormFields, Link, project_id};
use crate::console::page_error::PageError;
use crate::projects::ProjectId;
use crate::telemetry::stats::StatsFilter;

/// A view of decisions. Visitors with the same view see the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::console) struct View {
    pub(in crate::console) scope: StatsScope,
    /// The rules that are shown: all that the visitor may see, or those of the project.
    pub(in crate::console) filter: StatsFilter,
    /// The project that was chosen, as in the query.
    pub(super) project: Option<String>,
    /// Whether instances are shown.
    pub(in crate::console) has_instances: bool,
}

impl View {
    /// Reads a query of a visitor.
    pub(super) fn parse(
        query: &[u8],
        caller: &Caller,
        is_project: impl Fn(&str) -> bool,
    ) -> Result<Self, PageError> {
        let fields = FormFields::parse(query)?;
        let required = Permission::PROJECT_OPERATE_OR_ADMIN.roles();
        let is_for_all = caller.has(Role::Operate) || caller.has(Role::Admin);
        let scope = scope_of(fields.one("of")?)?;
        let scope = if is_for_all { scope } else { StatsScope::Fleet };
        let project = Some(fields.one("project")?).filter(|project| !project.is_empty());
        let projects = match project {
            None if is_for_all => None,
            None => Some(caller.projects_with(required).map(ProjectId::to_string).collect()),
            Some(project) => {
                let is_shown = |id: &ProjectId| {
                    (is_for_all || caller.roles_in(id).intersects(required))
                        && is_project(id.as_str())
                };
                let unknown = || {
                    let problem =
                        format!("project must be one that you have the role {required} for");
                    PageError::not_found(problem)
                };
                let id = project_id(project).filter(is_shown).ok_or_else(unknown)?;
                Some([id.to_string()].into())
            }
        };
        Ok(Self {
            scope,
            filter: StatsFilter { projects, rule: None },
            project: project.map(str::to_owned),
            has_instances: is_for_all,
        })
    }

    /// Returns the link to a view that differs in some fields.
    pub(super) fn link(scope: StatsScope, project: Option<&str>) -> Link {
        let link = Link::to("now").with("of", scope_field(scope));
        link.with("project", project.unwrap_or_default())
    }
}
