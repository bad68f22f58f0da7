//! A view of a visitor: the fields of the query.

use axum::http::StatusCode;
use thiserror::Error;

use crate::admin::{StatsLength, StatsScope};
use crate::api::auth::{Caller, Permission, Role};
use crate::clock::Micros;
use crate::console::fields::{FieldError, FormFields, Link, project_id};
use crate::projects::ProjectId;
use crate::telemetry::stats::StatsFilter;

/// A view of decisions. Visitors with the same view see the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::console) struct View {
    pub(in crate::console) range: Range,
    pub(in crate::console) scope: StatsScope,
    /// The rules that are shown: all that the visitor may see, or those of the project.
    pub(in crate::console) filter: StatsFilter,
    /// The project that was chosen, as in the query.
    pub(super) project: Option<String>,
    /// Whether instances are shown.
    pub(in crate::console) has_instances: bool,
}

/// The time that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::console) enum Range {
    Recent,
    Day,
}

/// The reason why there is nothing to show.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(in crate::console) enum ViewError {
    #[error(transparent)]
    Fields(#[from] FieldError),
    #[error("range must be 15m or 24h")]
    Range,
    #[error("of must be fleet or instance")]
    Scope,
    /// There is no such project, or the visitor has no role in it.
    #[error("project must be one that you have the role operate or admin for")]
    Project,
}

impl ViewError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Project => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

impl Range {
    pub(in crate::console) const ALL: [Self; 2] = [Self::Recent, Self::Day];

    /// Reads the field.
    pub(in crate::console) fn parse(field: &str) -> Result<Self, ViewError> {
        if field.is_empty() {
            return Ok(Self::Recent);
        }
        let range = Self::ALL.into_iter().find(|range| range.field() == field);
        range.ok_or(ViewError::Range)
    }

    /// Returns the value of the field.
    pub(in crate::console) const fn field(self) -> &'static str {
        match self {
            Self::Recent => "15m",
            Self::Day => "24h",
        }
    }

    pub(in crate::console) const fn name(self) -> &'static str {
        match self {
            Self::Recent => "15 minutes",
            Self::Day => "24 hours",
        }
    }

    /// Returns the time that the newest point has.
    pub(in crate::console) const fn step(self) -> &'static str {
        match self {
            Self::Recent => "the last 10 s",
            Self::Day => "the last 5 minutes at most",
        }
    }

    pub(in crate::console) const fn span(self) -> Micros {
        match self {
            Self::Recent => Micros::from_secs(15 * 60),
            Self::Day => Micros::from_secs(24 * 60 * 60),
        }
    }

    /// Returns the length of the points that span the time.
    pub(in crate::console) const fn length(self) -> StatsLength {
        match self {
            Self::Recent => StatsLength::TenSeconds,
            Self::Day => StatsLength::FiveMinutes,
        }
    }
}

/// Returns the value of the field that stands for a scope.
pub(in crate::console) const fn scope_field(scope: StatsScope) -> &'static str {
    match scope {
        StatsScope::Fleet => "fleet",
        StatsScope::Instance => "instance",
    }
}

/// Reads the field of a scope.
pub(in crate::console) fn scope_of(field: &str) -> Result<StatsScope, ViewError> {
    match field {
        "" | "fleet" => Ok(StatsScope::Fleet),
        "instance" => Ok(StatsScope::Instance),
        _ => Err(ViewError::Scope),
    }
}

impl View {
    /// Reads a query of a visitor.
    pub(super) fn parse(
        query: &[u8],
        caller: &Caller,
        is_project: impl Fn(&str) -> bool,
    ) -> Result<Self, ViewError> {
        let fields = FormFields::parse(query)?;
        let range = Range::parse(fields.one("range")?)?;
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
                let id = project_id(project).filter(is_shown).ok_or(ViewError::Project)?;
                Some([id.to_string()].into())
            }
        };
        Ok(Self {
            range,
            scope,
            filter: StatsFilter { projects, rule: None },
            project: project.map(str::to_owned),
            has_instances: is_for_all,
        })
    }

    /// Returns the link to a view that differs in some fields.
    pub(super) fn link(range: Range, scope: StatsScope, project: Option<&str>) -> Link {
        // The defaults are left out.
        let range = if range == Range::Recent { "" } else { range.field() };
        let scope = if scope == StatsScope::Fleet { "" } else { scope_field(scope) };
        let link = Link::to("now").with("range", range).with("of", scope);
        link.with("project", project.unwrap_or_default())
    }
}
