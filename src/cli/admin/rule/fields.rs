//! The fields of a rule as options, read as the same fields of rules files.

use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

use crate::algorithm::{Algorithm, OnChange};
use crate::clock::Micros;
use crate::rules::spec::{Field, MatcherSpec, RuleSpec, StoreFailurePolicy};
use crate::rules::{EnforcedShare, RuleMode, Share};

const UNITS: &str = "must be a whole number from 1 to 1000000000";
const BOOLEAN: &str = "must be true or false";
const SHARE: &str = "must be a number above 0 and at most 1, such as 0.5";

/// The fields of a rule. Those that are not given stay unset.
#[derive(Args, Clone, Debug, Default)]
#[group(id = "fields", multiple = true)]
pub(super) struct RuleFieldArgs {
    /// Units per window
    #[arg(long, value_name = "N", value_parser = units)]
    limit: Option<u64>,
    /// Window, such as 10s; a number without a unit is in seconds
    #[arg(long, value_name = "D", value_parser = window)]
    window: Option<Micros>,
    /// Algorithm [default: sliding-window-log]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    algorithm: Option<Algorithm>,
    /// Maximum units at once, for token-bucket, leaky-bucket and gcra [default: the limit]
    #[arg(long, value_name = "N", value_parser = units)]
    burst: Option<u64>,
    /// Parts of a request that name the counter: `user_id`, resource, names of attributes, `NAME|user_id`
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    key_by: Vec<String>,
    /// Condition on `user_id`, resource or attributes.NAME; of a part given again one must fit
    #[arg(long = "match", value_name = "PART=PATTERN", value_parser = condition)]
    conditions: Vec<Condition>,
    /// enforce, shadow or off
    #[arg(long, value_parser = mode)]
    mode: Option<RuleMode>,
    /// Part of the keys for which the rule is enforced, such as 25%
    #[arg(long, value_name = "SHARE", value_parser = enforced)]
    enforce: Option<EnforcedShare>,
    /// Units in use after a change: keep-used, keep-left, scale or reset
    #[arg(long, value_name = "POLICY", value_parser = on_change)]
    on_change: Option<OnChange>,
    /// Decision if the store does not answer: error, allow, deny or local
    #[arg(long, value_name = "POLICY", value_parser = on_store_failure)]
    on_store_failure: Option<StoreFailurePolicy>,
    /// Share of the limit that an instance grants with --on-store-failure local
    #[arg(long, value_name = "SHARE", value_parser = share)]
    local_share: Option<Share>,
    /// Whether requests pass while the circuit breaker is open
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    breaker_opens_rule: Option<bool>,
    /// Share of the limit from which answers say that it is near
    #[arg(long, value_name = "SHARE", value_parser = share)]
    near_limit: Option<Share>,
    /// Whether overrides and bans of single keys can be set
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    overridable: Option<bool>,
}

/// A condition of the option `--match`.
#[derive(Clone, Debug)]
struct Condition {
    part: Part,
    pattern: String,
}

#[derive(Clone, Debug)]
enum Part {
    UserId,
    Resource,
    Attribute(String),
}

/// A field that can have its default again.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum OptionalField {
    Algorithm,
    Burst,
    KeyBy,
    Match,
    Mode,
    Enforce,
    OnChange,
    OnStoreFailure,
    LocalShare,
    BreakerOpensRule,
    NearLimit,
    Overridable,
    Overrides,
    Candidates,
}

impl OptionalField {
    /// Returns the name of the field of the message.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Algorithm => "algorithm",
            Self::Burst => "burst",
            Self::KeyBy => "key_by",
            Self::Match => "matchers",
            Self::Mode => "mode",
            Self::Enforce => "enforce_ppm",
            Self::OnChange => "on_change",
            Self::OnStoreFailure => "on_store_failure",
            Self::LocalShare => "local_share_ppm",
            Self::BreakerOpensRule => "breaker_opens_rule",
            Self::NearLimit => "near_limit_ppm",
            Self::Overridable => "overridable",
            Self::Overrides => "overrides",
            Self::Candidates => "candidates",
        }
    }
}

impl RuleFieldArgs {
    /// Returns the rule with these fields, and no others.
    pub(super) fn spec(&self, name: &str) -> RuleSpec {
        RuleSpec {
            name: Field::Set(name.to_owned()),
            limit: field(self.limit),
            window: field(self.window),
            algorithm: field(self.algorithm),
            burst: field(self.burst),
            key_by: field(Some(self.key_by.clone()).filter(|parts| !parts.is_empty())),
            matcher: self.matcher(),
            mode: field(self.mode),
            enforce: field(self.enforce),
            on_change: field(self.on_change),
            on_store_failure: field(self.on_store_failure),
            local_share: field(self.local_share),
            breaker_opens_rule: field(self.breaker_opens_rule),
            near_limit: field(self.near_limit),
            overridable: field(self.overridable),
            ..RuleSpec::default()
        }
    }

    /// Returns the names of the fields of the message that are given.
    pub(super) fn paths(&self) -> Vec<&'static str> {
        let given = [
            ("max_requests", self.limit.is_some()),
            ("window", self.window.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("burst", self.burst.is_some()),
            ("key_by", !self.key_by.is_empty()),
            ("matchers", !self.conditions.is_empty()),
            ("mode", self.mode.is_some()),
            ("enforce_ppm", self.enforce.is_some()),
            ("on_change", self.on_change.is_some()),
            ("on_store_failure", self.on_store_failure.is_some()),
            ("local_share_ppm", self.local_share.is_some()),
            ("breaker_opens_rule", self.breaker_opens_rule.is_some()),
            ("near_limit_ppm", self.near_limit.is_some()),
            ("overridable", self.overridable.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(path, _)| path).collect()
    }

    fn matcher(&self) -> MatcherSpec {
        let mut matcher = MatcherSpec::default();
        for Condition { part, pattern } in &self.conditions {
            let texts = match part {
                Part::UserId => &mut matcher.user_id,
                Part::Resource => &mut matcher.resource,
                Part::Attribute(name) => matcher.attributes.entry(name.clone()).or_default(),
            };
            let mut all = texts.value().cloned().unwrap_or_default();
            all.push(pattern.clone());
            *texts = Field::Set(all);
        }
        matcher
    }
}

fn field<T>(value: Option<T>) -> Field<T> {
    value.map_or(Field::Unset, Field::Set)
}

/// Reads a text as the field of a rules file.
fn read<T>(text: &str, valid: &'static str) -> Result<T, &'static str>
where
    Field<T>: DeserializeOwned,
{
    let text: StrDeserializer<'_, Error> = text.into_deserializer();
    match Field::deserialize(text) {
        Ok(Field::Set(value)) => Ok(value),
        _ => Err(valid),
    }
}

fn units(text: &str) -> Result<u64, &'static str> {
    read(text, UNITS).and_then(|units| if units == 0 { Err(UNITS) } else { Ok(units) })
}

fn window(text: &str) -> Result<Micros, &'static str> {
    read(text, "must be a duration from 1ms to 366d, in whole milliseconds, such as 10s")
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    let names = || Algorithm::ALL.iter().map(|of| of.name()).collect::<Vec<_>>().join(", ");
    read(text, "").map_err(|_| format!("must be one of {}", names()))
}

fn mode(text: &str) -> Result<RuleMode, &'static str> {
    read(text, "must be enforce, shadow or off")
}

fn enforced(text: &str) -> Result<EnforcedShare, &'static str> {
    read(text, "must be a percentage from 0% to 100%, such as 25%")
}

fn on_change(text: &str) -> Result<OnChange, &'static str> {
    read(text, "must be keep-used, keep-left, scale or reset")
}

fn on_store_failure(text: &str) -> Result<StoreFailurePolicy, &'static str> {
    read(text, "must be error, allow, deny or local")
}

fn share(text: &str) -> Result<Share, &'static str> {
    read(text, SHARE)
}

fn boolean(text: &str) -> Result<bool, &'static str> {
    read(text, BOOLEAN)
}

fn condition(text: &str) -> Result<Condition, &'static str> {
    const VALID: &str = "must be user_id=PATTERN, resource=PATTERN or attributes.NAME=PATTERN";
    let (part, pattern) = text.split_once('=').ok_or(VALID)?;
    let part = match part {
        "user_id" | "user-id" => Part::UserId,
        "resource" => Part::Resource,
        part => match part.strip_prefix("attributes.") {
            Some(name) if !name.is_empty() => Part::Attribute(name.to_owned()),
            _ => return Err(VALID),
        },
    };
    Ok(Condition { part, pattern: pattern.to_owned() })
}
