//! Rules in the shape of RLaaS on GoRL: one endpoint, one key, one limit.
//!
//! A rule that was made elsewhere may have more than this shape: several endpoints or parts of the
//! key are shown joined by commas, any resource as `*`, a window in whole seconds, rounded up. An
//! update leaves alone what is absent or as it is shown, so that nothing is lost that was not shown.

use rlaas_auth::ProjectId;
use rlaas_projects::registry::ProjectState;
use rlaas_projects::{RuleRecord, RuleWriteError};
use rlaas_proto::values::timestamp;
use serde::Serialize;

use super::error::ManagementError;
use crate::algorithm::{Algorithm, Limit};
use crate::api::http::json_object::JsonObject;
use crate::api::http::problem::{Field as Member, Rejection};
use crate::clock::Micros;
use crate::rules::spec::{CalendarSpec, Field, Problem, RuleSpec, StoreFailurePolicy};
use crate::rules::{Part, Request};

/// Values of `key_by`. Each but `api_key` is the `key` of `POST /check`, unless a caller of another
/// API sends the attribute.
const KEYS: [&str; 5] = ["ip", "user_id", "api_key", "token", "custom"];
/// Any resource.
const ANY: &str = "*";

const fn member(name: &'static [&'static str], valid: &'static str) -> Member {
    Member { names: name, reason: "body", valid }
}

const ENDPOINT: Member = member(&["endpoint"], "a string of 1 to 1024 bytes");
const STRATEGY: Member = member(
    &["strategy"],
    "fixed_window, sliding_window, sliding_window_log, token_bucket, leaky_bucket or gcra",
);
const KEY_BY: Member = member(&["key_by"], "ip, user_id, api_key, token or custom");
const LIMIT_COUNT: Member =
    member(&["limit_count", "limit"], "a whole number from 1 to 1000000000");
const WINDOW_SECONDS: Member = member(&["window_seconds"], "a whole number from 1 to 31622400");
const WINDOW: Member = member(&["window"], "a duration from 1 ms to 366 days, such as \"10s\"");
const FAIL_OPEN: Member = member(&["fail_open"], "true or false");
const ID: Member = member(&["id"], "that of the path");
const PROJECT_ID: Member = member(&["project_id"], "that of the path");
const CREATED_AT: Member = member(&["created_at"], "a string");

/// A rule as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct RuleView<'a> {
    /// The name of the rule.
    id: &'a str,
    project_id: &'a str,
    endpoint: String,
    strategy: &'static str,
    key_by: String,
    limit_count: u64,
    window_seconds: u64,
    fail_open: bool,
    created_at: String,
}

/// The members of a request that writes a rule. Those that are absent stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleFields {
    endpoint: Option<String>,
    strategy: Option<Algorithm>,
    key_by: Option<String>,
    limit_count: Option<u64>,
    window: Option<Micros>,
    fail_open: Option<bool>,
}

impl<'a> RuleView<'a> {
    pub(super) fn new(project: &'a ProjectId, name: &'a str, record: &RuleRecord) -> Self {
        let spec = &record.spec;
        Self {
            id: name,
            project_id: project.as_str(),
            endpoint: endpoint(spec),
            strategy: strategy(algorithm(spec)),
            key_by: key_by(spec),
            limit_count: spec.limit.value().copied().unwrap_or_default(),
            window_seconds: window_seconds(spec),
            fail_open: is_open(spec),
            created_at: timestamp(record.created_at).to_string(),
        }
    }

    /// Returns all rules of a project, oldest first.
    pub(super) fn all(state: &'a ProjectState) -> Vec<Self> {
        let mut rules: Vec<_> = state.rules.iter().collect();
        rules.sort_by_key(|(_, record)| record.created_at);
        let id = &state.project.id;
        rules.into_iter().map(|(name, record)| Self::new(id, name, record)).collect()
    }
}

impl RuleFields {
    /// Reads the members of a new rule.
    pub(super) fn read(body: &[u8]) -> Result<Self, Rejection> {
        let mut members = JsonObject::from_body(body)?;
        let fields = Self::take(&mut members)?;
        members.close()?;
        Ok(fields)
    }

    /// Reads the members of a change of a rule. It may be the whole rule as it was shown.
    pub(super) fn read_of(body: &[u8], project: &ProjectId, rule: &str) -> Result<Self, Rejection> {
        let mut members = JsonObject::from_body(body)?;
        for (member, own) in [(ID, rule), (PROJECT_ID, project.as_str())] {
            let given: Option<String> = members.take(&member)?;
            if given.is_some_and(|given| given != own) {
                return Err(member.invalid());
            }
        }
        let _ignored: Option<String> = members.take(&CREATED_AT)?;
        let fields = Self::take(&mut members)?;
        members.close()?;
        Ok(fields)
    }

    fn take(members: &mut JsonObject<'_>) -> Result<Self, Rejection> {
        let endpoint: Option<String> = members.take(&ENDPOINT)?;
        let is_resource = |text: &String| (1..=Request::MAX_RESOURCE).contains(&text.len());
        let strategy: Option<String> = members.take(&STRATEGY)?;
        let is_rate = |algorithm: &Algorithm| !algorithm.has_slots();
        let rate = |name: String| Algorithm::from_name(&name).filter(is_rate);
        let strategy = strategy.map(|name| rate(name).ok_or(STRATEGY.invalid()));
        let limit_count = members.take(&LIMIT_COUNT)?;
        let seconds = members.take(&WINDOW_SECONDS)?;
        let max_window = Limit::MAX_WINDOW.as_micros() / 1_000_000;
        let seconds =
            valid(seconds, |seconds| (1..=max_window).contains(seconds), &WINDOW_SECONDS)?;
        let window: Option<Field<Micros>> = members.take(&WINDOW)?;
        let is_window = |window: &Field<Micros>| {
            window.value().is_some_and(|window| Limit::new(1, *window).is_ok())
        };
        let window = valid(window, is_window, &WINDOW)?.and_then(|window| window.value().copied());
        if seconds.is_some() && window.is_some() {
            return Err(WINDOW.duplicate());
        }
        Ok(Self {
            endpoint: valid(endpoint, is_resource, &ENDPOINT)?,
            strategy: strategy.transpose()?,
            key_by: members.take(&KEY_BY)?,
            limit_count: valid(
                limit_count,
                |units| (1..=Limit::MAX_UNITS).contains(units),
                &LIMIT_COUNT,
            )?,
            window: window.or(seconds.map(Micros::from_secs)),
            fail_open: members.take(&FAIL_OPEN)?,
        })
    }

    /// Returns a new rule. Its name begins with the endpoint, and `random` makes it another one than
    /// those of other rules for the same endpoint.
    ///
    /// # Errors
    ///
    /// A [`ManagementError`] that names a member which is missing.
    pub(super) fn into_rule(self, random: u64) -> Result<RuleSpec, ManagementError> {
        let endpoint = self.endpoint.as_ref().ok_or_else(|| ENDPOINT.missing())?;
        for (is_missing, member) in [
            (self.strategy.is_none(), STRATEGY),
            (self.key_by.is_none(), KEY_BY),
            (self.limit_count.is_none(), LIMIT_COUNT),
            (self.window.is_none(), WINDOW_SECONDS),
        ] {
            if is_missing {
                return Err(member.missing().into());
            }
        }
        let name = format!("{}{random:016x}", RuleSpec::slug(endpoint));
        let fail_open = Some(self.fail_open.unwrap_or_default());
        let base = RuleSpec { name: name.into(), ..RuleSpec::default() };
        Ok(Self { fail_open, ..self }.written_to(base)?)
    }

    /// Returns those that differ from a rule as it is shown.
    pub(super) fn changed(&self, before: &RuleSpec) -> Self {
        Self {
            endpoint: self.endpoint.clone().filter(|new| *new != endpoint(before)),
            strategy: self.strategy.filter(|new| *new != algorithm(before)),
            key_by: self.key_by.clone().filter(|new| *new != key_by(before)),
            limit_count: self.limit_count.filter(|new| before.limit.value() != Some(new)),
            window: self.window.filter(|new| *new != Micros::from_secs(window_seconds(before))),
            fail_open: self.fail_open.filter(|new| *new != is_open(before)),
        }
    }

    /// Returns a rule with these fields.
    ///
    /// # Errors
    ///
    /// [`RuleWriteError::Invalid`] if `key_by` is unknown.
    pub(super) fn written_to(self, rule: RuleSpec) -> Result<RuleSpec, RuleWriteError> {
        let mut rule = rule;
        if let Some(key_by) = self.key_by {
            if !KEYS.contains(&&*key_by) {
                let (field, text) = ("key-by".to_owned(), format!("must be {}", KEY_BY.valid));
                return Err(RuleWriteError::Invalid(vec![Problem { field, text }]));
            }
            // With `endpoint` the names of keys mean what they mean in RLaaS on GoRL.
            if rule.endpoint.is_unset() {
                let resource = std::mem::take(&mut rule.matcher.resource);
                rule.endpoint = resource.or(vec![ANY.to_owned()]);
            }
            rule.key_by = vec![key_by].into();
        }
        if let Some(endpoint) = self.endpoint {
            let has_matcher = rule.endpoint.is_unset();
            let place = if has_matcher { &mut rule.matcher.resource } else { &mut rule.endpoint };
            *place = vec![endpoint].into();
        }
        if let Some(strategy) = self.strategy {
            rule.algorithm = strategy.into();
        }
        if let Some(units) = self.limit_count {
            rule.limit = units.into();
        }
        if let Some(window) = self.window {
            rule.window = window.into();
            rule.calendar = CalendarSpec::default();
        }
        if let Some(fail_open) = self.fail_open {
            let policy =
                if fail_open { StoreFailurePolicy::Allow } else { StoreFailurePolicy::Deny };
            rule.on_store_failure = policy.into();
            (rule.fail_open, rule.local_share) = (Field::Unset, Field::Unset);
        }
        Ok(rule)
    }
}

fn valid<T>(
    given: Option<T>,
    is_valid: impl FnOnce(&T) -> bool,
    member: &Member,
) -> Result<Option<T>, Rejection> {
    match given {
        Some(value) if !is_valid(&value) => Err(member.invalid()),
        given => Ok(given),
    }
}

fn endpoint(spec: &RuleSpec) -> String {
    let texts = spec.endpoint.value().or_else(|| spec.matcher.resource.value());
    texts.map_or_else(|| ANY.to_owned(), |texts| texts.join(","))
}

fn algorithm(spec: &RuleSpec) -> Algorithm {
    spec.algorithm.value().copied().unwrap_or(RuleSpec::DEFAULT_ALGORITHM)
}

/// Returns the name that RLaaS on GoRL has for an algorithm, or ours in its spelling.
fn strategy(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::SlidingWindowCounter => "sliding_window",
        other => other.lua_name(),
    }
}

fn key_by(spec: &RuleSpec) -> String {
    let known = |part: &str| {
        let name = part.strip_suffix(Part::OR_USER_ID)?;
        KEYS.contains(&name).then(|| name.to_owned())
    };
    match spec.key_by.value().map(Vec::as_slice) {
        None => "user_id".to_owned(),
        Some([part]) => known(part).unwrap_or_else(|| part.clone()),
        Some(parts) => parts.join(","),
    }
}

fn window_seconds(spec: &RuleSpec) -> u64 {
    let of_calendar = spec.calendar.unit.value().map(|unit| unit.longest());
    let window = of_calendar.or(spec.window.value().copied()).unwrap_or_default();
    window.as_micros().div_ceil(1_000_000)
}

fn is_open(spec: &RuleSpec) -> bool {
    let policy = spec.on_store_failure.value();
    policy == Some(&StoreFailurePolicy::Allow) || spec.fail_open.value() == Some(&true)
}
