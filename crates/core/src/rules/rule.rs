//! A rule: matcher + key + limit + algorithm + policies.

use std::sync::Arc;

use super::matcher::Matcher;
use super::{Key, Request};
use crate::algorithm::{Algorithm, Limit};

/// Matcher + key + limit + algorithm + policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique name, shown to callers and in metrics.
    pub name: Arc<str>,
    /// Which requests it is about.
    pub matcher: Matcher,
    /// Whose state it is: the parts of the request that name it.
    pub key_by: Vec<Part>,
    /// Which algorithm decides.
    pub algorithm: Algorithm,
    /// What it grants.
    pub grant: Grant,
    /// What it grants to some; the closest counts.
    pub overrides: Vec<Override>,
    /// Is it enforced?
    pub mode: Mode,
    /// What a request meets when the store does not answer.
    pub on_store_failure: OnStoreFailure,
    /// Do requests pass once the store has failed so often that it is no longer asked?
    pub breaker_opens: bool,
}

/// What rules of both kinds have, flat ones and those for descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleInfo<'a> {
    /// Its name, or the label of its descriptor.
    pub name: &'a Arc<str>,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// How it is enforced.
    pub mode: Mode,
    /// The policy for when the store does not answer.
    pub on_store_failure: OnStoreFailure,
    /// Requests pass once the store is no longer asked.
    pub breaker_opens: bool,
}

/// A part of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Who asks.
    UserId,
    /// What is asked for.
    Resource,
    /// An attribute, by its name.
    Attribute(String),
    /// An attribute, by its name; the user id in requests without it. In keys alone.
    AttributeOrUserId(String),
}

/// What a rule grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// So many per window.
    Limited(Limit),
    /// Nothing, ever: `limit: 0`.
    Banned,
    /// Everything: `unlimited: true`.
    Unlimited,
}

/// What a rule grants to some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// To whom.
    pub matcher: Matcher,
    /// What.
    pub grant: Grant,
}

/// Is a rule enforced?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    #[default]
    Enforced,
    /// It is decided, counted and reported, and stops nobody.
    Shadow,
    /// One of several quotas of a request: it is refused if all of them deny.
    Quota,
    /// A quota that is decided, counted and reported, and always has room.
    ShadowQuota,
}

impl Mode {
    /// Returns true for a rule that stops nobody by itself.
    pub fn is_shadow(self) -> bool {
        matches!(self, Self::Shadow | Self::ShadowQuota)
    }

    /// Returns `true` if these rules, each with whether it denies, refuse a request: an enforced one
    /// denies, or every quota that there is.
    pub fn refuse(denials: impl Iterator<Item = (Self, bool)> + Clone) -> bool {
        denials.clone().any(|denial| denial == (Self::Enforced, true))
            || Self::quotas_refuse(denials)
    }

    /// Returns `true` if there are quotas and all of them deny.
    pub fn quotas_refuse(denials: impl Iterator<Item = (Self, bool)>) -> bool {
        let quotas = denials.filter_map(|(mode, denies)| match mode {
            Self::Quota => Some(denies),
            Self::ShadowQuota => Some(false),
            Self::Enforced | Self::Shadow => None,
        });
        quotas.reduce(|all, denies| all && denies).unwrap_or(false)
    }
}

/// How the takes of a request depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// Units are taken only if no hit refuses the request. Reports are counted first, then all else
    /// is decided.
    #[default]
    AllOrNothing,
    /// Each hit by itself, in order; one that denies takes what is left.
    EachAlone,
}

/// What a request meets when the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The call fails: fail-closed, the caller decides.
    Error,
    /// The request passes: fail-open.
    Allow,
    /// The request is denied.
    Deny,
    /// This instance decides alone, in memory, by its share of the limit.
    Local(Share),
}

/// A part of a limit, in millionths: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// All of it, in millionths.
    pub const WHOLE: u32 = 1_000_000;
    /// Half of it.
    pub const HALF: Self = Self(Self::WHOLE / 2);

    /// So many millionths, if that is above 0 and at most 1.
    pub fn new(millionths: u32) -> Option<Self> {
        (1..=Self::WHOLE).contains(&millionths).then_some(Self(millionths))
    }

    /// In millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }
}

impl OnStoreFailure {
    /// The policy as configuration and metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local(_) => "local",
        }
    }
}

impl Part {
    /// Its value in a request; an attribute may be absent.
    pub(super) fn value_in<'a>(&self, request: &Request<'a>) -> Option<&'a str> {
        match self {
            Self::UserId => Some(request.user_id()),
            Self::Resource => Some(request.resource()),
            Self::Attribute(name) => request.attributes().get(name),
            Self::AttributeOrUserId(name) => {
                let value = request.attributes().get(name);
                Some(value.unwrap_or(request.user_id()))
            }
        }
    }
}

impl RuleInfo<'_> {
    /// The policy that applies when the store does not answer, or is no longer asked.
    pub fn policy(&self, is_breaker_open: bool) -> OnStoreFailure {
        match self.on_store_failure {
            _ if is_breaker_open && self.breaker_opens => OnStoreFailure::Allow,
            // A shadow stops nobody.
            OnStoreFailure::Error | OnStoreFailure::Deny if self.mode.is_shadow() => {
                OnStoreFailure::Allow
            }
            policy => policy,
        }
    }
}

impl Rule {
    /// Name of the rule that applies where no other does.
    pub const DEFAULT: &str = "default";

    /// The default rule: so many per window for each user, fail-closed.
    pub fn new_default(algorithm: Algorithm, limit: Limit) -> Self {
        Self {
            name: Self::DEFAULT.into(),
            matcher: Matcher::default(),
            key_by: vec![Part::UserId],
            algorithm,
            grant: Grant::Limited(limit),
            overrides: Vec::new(),
            mode: Mode::Enforced,
            on_store_failure: OnStoreFailure::Error,
            breaker_opens: false,
        }
    }

    /// What it has in common with rules for descriptors.
    pub fn info(&self) -> RuleInfo<'_> {
        let Self { name, algorithm, mode, on_store_failure, breaker_opens, .. } = self;
        let (algorithm, mode, on_store_failure) = (*algorithm, *mode, *on_store_failure);
        RuleInfo { name, algorithm, mode, on_store_failure, breaker_opens: *breaker_opens }
    }

    /// What it grants to this request: that of the closest override, of equally close ones the
    /// strictest, else its own.
    pub(crate) fn grant_for(&self, request: &Request<'_>) -> Grant {
        let close = self.overrides.iter().filter_map(|other| {
            let fit = other.matcher.fit(request)?;
            Some((fit, other.grant))
        });
        let closest =
            close.max_by_key(|(fit, grant)| (*fit, std::cmp::Reverse(grant.generosity())));
        closest.map_or(self.grant, |(_, grant)| grant)
    }

    /// The key of its state for this request.
    pub(crate) fn key_for(&self, request: &Request<'_>) -> Key {
        let values = self.key_by.iter().map(|part| part.value_in(request));
        if &*self.name == Self::DEFAULT {
            Key::for_default_rule(values)
        } else {
            Key::for_rule(&self.name, values)
        }
    }
}

impl Grant {
    /// The mode of a rule with this mode that grants this. What is unlimited is no quota either: it
    /// neither refuses a request nor lets it pass.
    pub fn effective_mode(self, of_rule: Mode) -> Mode {
        if self == Self::Unlimited { Mode::Shadow } else { of_rule }
    }

    fn generosity(self) -> (u64, u64) {
        match self {
            Self::Banned => (0, 0),
            Self::Limited(limit) => (limit.units(), limit.burst()),
            Self::Unlimited => (u64::MAX, u64::MAX),
        }
    }
}
