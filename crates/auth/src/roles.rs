//! Roles, and what a call requires.

use std::fmt;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Request decisions.
    Check,
    /// See and repair the state of keys, and read the configuration.
    Operate,
    /// Decide about keys: overrides, bans and the audit. Also reads the configuration.
    Admin,
    /// See the names of projects in metrics, where others do not.
    Metrics,
}

/// A set of roles. None implies another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(u8);

/// What a call requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The role `check`. While `auth` lists nobody, every caller has it.
    Decisions,
    /// The same for decisions by descriptors, which take no API keys.
    Descriptors,
    /// The role `metrics`.
    Metrics,
    /// The role `operate` or `admin`. While `auth` lists nobody, every caller may read the
    /// configuration.
    Configuration,
    /// The same in the project that the API key of the call names; without a key in that of requests
    /// without one.
    ProjectConfiguration,
    /// One of these roles. While `auth` lists nobody, local callers alone have it.
    Administration(Roles),
    /// One of these roles, for all projects or for some: the call is for a project, and the
    /// service decides by that. While `auth` lists nobody, local callers alone have it.
    Projects(Roles),
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Check, Self::Operate, Self::Admin, Self::Metrics];

    /// Returns the name of the role in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Operate => "operate",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

impl Roles {
    /// Every role.
    pub const ALL: Self = Self::only(Role::Check)
        .with(Self::only(Role::Operate))
        .with(Self::only(Role::Admin))
        .with(Self::only(Role::Metrics));

    /// Creates the set of one role.
    pub const fn only(role: Role) -> Self {
        Self(1 << role as u8)
    }

    /// Returns the roles of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns `true` if the set contains `role`.
    pub const fn contains(self, role: Role) -> bool {
        self.intersects(Self::only(role))
    }

    /// Returns `true` if the set contains all roles of `other`.
    pub const fn cover(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns `true` if a role is in both sets.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        roles.into_iter().fold(Self::default(), |set, role| set.with(Self::only(role)))
    }
}

/// Writes the names of the roles: `operate or admin`.
impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contained = Role::ALL.into_iter().filter(|role| self.contains(*role));
        for (position, role) in contained.enumerate() {
            f.write_str(if position == 0 { "" } else { " or " })?;
            f.write_str(role.name())?;
        }
        Ok(())
    }
}

impl Permission {
    /// A call that sees or repairs the state of keys.
    pub const OPERATE: Self = Self::Administration(Roles::only(Role::Operate));
    /// A call that decides about keys, or reads the audit.
    pub const ADMIN: Self = Self::Administration(Roles::only(Role::Admin));
    /// A call that shows something to both roles.
    pub const OPERATE_OR_ADMIN: Self = Self::Administration(Self::OPERATORS);

    /// A call that changes a project.
    pub const PROJECT_ADMIN: Self = Self::Projects(Roles::only(Role::Admin));
    /// A call that sees or repairs the state of keys of a project.
    pub const PROJECT_OPERATE: Self = Self::Projects(Roles::only(Role::Operate));
    /// A call that shows a project.
    pub const PROJECT_OPERATE_OR_ADMIN: Self = Self::Projects(Self::OPERATORS);

    const OPERATORS: Roles = Roles::only(Role::Operate).with(Roles::only(Role::Admin));

    /// Returns the roles, one of which the caller must have.
    pub const fn roles(self) -> Roles {
        match self {
            Self::Decisions | Self::Descriptors => Roles::only(Role::Check),
            Self::Metrics => Roles::only(Role::Metrics),
            Self::Configuration | Self::ProjectConfiguration => Self::OPERATORS,
            Self::Administration(roles) | Self::Projects(roles) => roles,
        }
    }

    /// Returns `true` for calls that are refused to callers that `auth` does not list, unless they
    /// are local.
    pub const fn is_administrative(self) -> bool {
        matches!(self, Self::Administration(_) | Self::Projects(_))
    }
}
