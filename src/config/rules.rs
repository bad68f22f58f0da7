//! The rules: `rate-limiter` (the default rule) and `rules`.

use std::borrow::Cow;
use std::collections::HashSet;

use figment::value::Value;

use super::section::Section;
use super::values::{self, Invalid, Read};
use super::yaml;
use crate::algorithm::{Algorithm, Limit, LimitError};
use crate::clock::Span;
use crate::rules::{
    Grant, Matcher, Mode, OnStoreFailure, Override, Part, Pattern, Request, Rule, RuleSet, Share,
    Text, Unmatched,
};

/// Most rules, and most overrides of one.
const MOST: usize = 100_000;
/// Most rules that one request may meet: the store decides them in one step.
const MOST_HITS: usize = 64;
/// What RLaaS calls the `key` of a request, beside `api_key`, which is an attribute.
const KEYS_OF_RLAAS: [&str; 3] = ["ip", "token", "custom"];

pub(super) fn read(root: &mut Section<'_>) -> RuleSet {
    let default = default_rule(root);
    let mut taken = HashSet::new();
    let mut named = Vec::new();
    let sections = root.list("rules");
    if sections.len() > MOST {
        root.refuse("rules", Invalid(Cow::Owned(format!("valid is up to {MOST} of them"))));
    }
    for section in sections {
        named.extend(named_rule(section, &mut taken));
    }
    let unmatched = root.read("unmatched", "default", |value| {
        let policies = [
            ("default", Unmatched::DefaultRule),
            ("allow", Unmatched::Allow),
            ("deny", Unmatched::Deny),
        ];
        values::word(value, &policies)
    });
    let rules = RuleSet::new(default, named).with_unmatched(unmatched);
    if rules.most_matches() > MOST_HITS {
        let valid = format!("valid is up to {MOST_HITS} rules that one request may meet");
        root.refuse("rules", Invalid(Cow::Owned(valid)));
    }
    rules
}

fn default_rule(root: &mut Section<'_>) -> Rule {
    let mut section = root.section("rate-limiter");
    let rate = Rate {
        algorithm: section.read("use-algo", "sliding-window-log", values::algorithm),
        window: section.read("window-size", "60s", values::window),
        units: section.read("max-requests", "5", units_or_none),
    };
    let burst = if rate.units == 0 {
        section.optional("burst", units)
    } else {
        Some(section.read("burst", &rate.units.to_string(), units))
    };
    let key_by = section.optional("key-by", parts).unwrap_or_else(|| vec![Part::UserId]);
    let grant = rate.grant(&section, "max-requests", burst);
    let failure = failure(&mut section);
    if !section.has("fail-open") && !section.has("on-store-failure") {
        section.read("fail-open", "false", values::boolean);
    }
    section.close();
    // Where the limit is refused nothing is taken from here.
    let unused = Limit::new(1, Limit::MAX_WINDOW).expect("a valid limit");
    Rule {
        key_by,
        grant: grant.unwrap_or(Grant::Limited(unused)),
        on_store_failure: failure.policy,
        breaker_opens: failure.breaker_opens,
        ..Rule::default_of(rate.algorithm, unused)
    }
}

/// `None` if it has a problem, which is told.
fn named_rule(mut section: Section<'_>, taken: &mut HashSet<String>) -> Option<Rule> {
    let name = section.required("name", name);
    if let Some(name) = &name
        && !taken.insert(name.clone())
    {
        section.refuse("name", Invalid::new("another rule has this name"));
    }
    let matcher = matcher_with_endpoint(&mut section);
    let key_by = section.optional("key-by", parts).unwrap_or_else(|| vec![Part::UserId]);
    let key_by = if section.has("endpoint") { key_of_endpoint(key_by) } else { key_by };
    let algorithm = section.optional("algorithm", values::algorithm);
    let algorithm = algorithm.unwrap_or(Algorithm::SlidingWindowLog);
    let limited = section.required("limit", units_or_none);
    let window = section.required("window", values::window);
    let burst = section.optional("burst", units);
    let mode = match section.optional("shadow", values::boolean) {
        Some(true) => Mode::Shadow,
        Some(false) | None => Mode::Enforced,
    };
    let failure = failure(&mut section);
    let rate = match (limited, window) {
        (Some(units), Some(window)) => Some(Rate { algorithm, units, window }),
        _ => None,
    };
    let grant = rate.and_then(|rate| rate.grant(&section, "limit", burst));
    let overrides = section.list("overrides");
    if overrides.len() > MOST {
        section.refuse("overrides", Invalid(Cow::Owned(format!("valid is up to {MOST} of them"))));
    }
    let overrides = overrides.into_iter().filter_map(|other| exception(other, rate)).collect();
    section.close();
    Some(Rule {
        name: name?.into(),
        matcher,
        key_by,
        algorithm,
        grant: grant?,
        overrides,
        mode,
        on_store_failure: failure.policy,
        breaker_opens: failure.breaker_opens,
    })
}

/// An override: `limit`, `limit: 0` or `unlimited: true`.
fn exception(mut section: Section<'_>, rate: Option<Rate>) -> Option<Override> {
    let matcher = matcher(&mut section);
    if matcher.patterns.is_empty() && section.is_sound() {
        section.refuse("match", Invalid::new("missing: it says to whom this is granted"));
    }
    let unlimited = section.optional("unlimited", values::boolean).unwrap_or(false);
    let limited = section.optional("limit", units_or_none);
    let burst = section.optional("burst", units);
    let grant = match (unlimited, limited) {
        (true, None) => Some(Grant::Unlimited),
        (false, Some(0)) => Some(Grant::Banned),
        (false, Some(units)) => {
            rate.and_then(|rate| Rate { units, ..rate }.grant(&section, "limit", burst))
        }
        (true, Some(_)) | (false, None) => {
            section.refuse("limit", Invalid::new("give either limit or unlimited: true"));
            None
        }
    };
    section.close();
    Some(Override { matcher, grant: grant? })
}

/// How many, per how long, by which algorithm.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    pub(super) algorithm: Algorithm,
    pub(super) units: u64,
    pub(super) window: Span,
}

impl Rate {
    /// What so many are: 0 is a ban, for which there is no burst to look at.
    fn grant(self, section: &Section<'_>, units_key: &str, burst: Option<u64>) -> Option<Grant> {
        match self.units {
            0 => Some(Grant::Banned),
            _ => self.limit(section, units_key, burst).map(Grant::Limited),
        }
    }

    /// The limit, unless it is not valid, which is told at its key.
    pub(super) fn limit(
        self,
        section: &Section<'_>,
        units_key: &str,
        burst: Option<u64>,
    ) -> Option<Limit> {
        if !section.is_sound() {
            return None;
        }
        let refuse = |error: LimitError| {
            let key = match error {
                LimitError::Burst { .. } | LimitError::NoBurst { .. } => "burst",
                LimitError::Debt { .. } => "max-debt",
                LimitError::Units | LimitError::Window | LimitError::TooMany { .. } => units_key,
            };
            section.refuse(key, error);
        };
        let limit = Limit::new(self.units, self.window)
            .and_then(|limit| burst.map_or(Ok(limit), |burst| limit.with_burst(burst)))
            .and_then(|limit| self.algorithm.accepts(&limit).map(|()| limit));
        limit.map_err(refuse).ok()
    }
}

/// `endpoint`, which is short for `match: { resource }`, and `match`.
fn matcher_with_endpoint(section: &mut Section<'_>) -> Matcher {
    let endpoint = section.optional("endpoint", pattern);
    let mut matcher = matcher(section);
    if let Some(endpoint) = endpoint {
        if matcher.patterns.iter().any(|(part, _)| *part == Part::Resource) {
            section.refuse("endpoint", Invalid::new("the same as match.resource; give only one"));
        }
        // Where `match.resource` would stand.
        matcher.patterns.insert(0, (Part::Resource, endpoint));
    }
    matcher
}

/// The `key_by` of RLaaS, whose requests have one `key`: where it is not sent as an attribute, it is
/// the user id.
fn key_of_endpoint(key_by: Vec<Part>) -> Vec<Part> {
    match key_by.as_slice() {
        [Part::Attribute(name)] if KEYS_OF_RLAAS.contains(&name.as_str()) => {
            vec![Part::AttributeOrUserId(name.clone())]
        }
        _ => key_by,
    }
}

fn matcher(section: &mut Section<'_>) -> Matcher {
    let mut conditions = section.section("match");
    let mut patterns = Vec::new();
    let resource = conditions.optional("resource", pattern);
    patterns.extend(resource.map(|pattern| (Part::Resource, pattern)));
    let user_id = conditions.optional("user-id", pattern);
    patterns.extend(user_id.map(|pattern| (Part::UserId, pattern)));
    let attributes = conditions.section("attributes").entries(pattern);
    let attribute = |(name, pattern): (&str, Pattern)| (Part::Attribute(name.to_owned()), pattern);
    patterns.extend(attributes.into_iter().map(attribute));
    conditions.close();
    Matcher { patterns }
}

/// What a request meets when the store fails.
pub(super) struct Failure {
    pub(super) policy: OnStoreFailure,
    pub(super) breaker_opens: bool,
}

pub(super) fn failure(section: &mut Section<'_>) -> Failure {
    const HALF: u32 = Share::WHOLE / 2;
    let share = section.optional("local-share", share);
    let half = || Share::new(HALF).expect("a half is a part");
    let local = OnStoreFailure::Local(share.unwrap_or_else(half));
    let named = section.optional("on-store-failure", |value| {
        let policies = [OnStoreFailure::Error, OnStoreFailure::Allow, OnStoreFailure::Deny, local];
        values::word(value, &policies.map(|policy| (policy.name(), policy)))
    });
    if share.is_some() && !matches!(named, Some(OnStoreFailure::Local(_))) && section.is_sound() {
        let alone = Invalid::new("valid only with on-store-failure: local");
        section.refuse("local-share", alone);
    }
    let fail_open = section.optional("fail-open", values::boolean);
    if section.has("on-store-failure") && section.has("fail-open") {
        let twice = Invalid::new("the same as on-store-failure; give only one of them");
        section.refuse("fail-open", twice);
    }
    let breaker_opens = section.optional("breaker-opens-rule", values::boolean);
    let policy = match (named, fail_open) {
        (Some(named), _) => named,
        (None, Some(true)) => OnStoreFailure::Allow,
        (None, _) => OnStoreFailure::Error,
    };
    Failure { policy, breaker_opens: breaker_opens.unwrap_or(false) }
}

/// A part of 1: at most six digits after the point.
fn share(value: &Value) -> Read<Share> {
    let invalid = || Invalid::new("valid is a number above 0 and at most 1, such as 0.5");
    let text = values::scalar(value).ok_or_else(invalid)?;
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let digits = |text: &str| text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) {
        return Err(invalid());
    }
    let millionths = format!("{whole}{part:0<6}").parse().ok().and_then(Share::new);
    Ok((millionths.ok_or_else(invalid)?, text.clone()))
}

fn name(value: &Value) -> Read<String> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match value.as_str() {
        Some(name)
            if (1..=64).contains(&name.len())
                && name.bytes().all(valid)
                && name != Rule::DEFAULT =>
        {
            Ok((name.to_owned(), name.to_owned()))
        }
        _ => Err(Invalid::new(
            "valid is 1 to 64 letters, digits, '-', '_' or '.', and not \"default\"",
        )),
    }
}

fn units(value: &Value) -> Read<u64> {
    values::whole(value, 1..=Limit::MAX_UNITS, LimitError::Units)
}

/// Units, or 0: always denied.
fn units_or_none(value: &Value) -> Read<u64> {
    const VALID: &str = "valid is a whole number from 0 to 1000000000";
    values::whole(value, 0..=Limit::MAX_UNITS, Invalid::new(VALID))
}

fn pattern(value: &Value) -> Read<Pattern> {
    let texts = values::texts(value)?;
    let shown = shown(&texts);
    let pattern = match texts.as_slice() {
        [one] => Pattern::one(one),
        several if several.iter().any(|text| text == "*") => Pattern::Present,
        several => {
            let mut texts: Vec<Text> = several.iter().map(|text| Text::new(text)).collect();
            // The order says nothing.
            texts.sort();
            Pattern::OneOf(texts)
        }
    };
    Ok((pattern, shown))
}

fn shown(texts: &[String]) -> String {
    if let [one] = texts { one.clone() } else { yaml::list(texts) }
}

fn parts(value: &Value) -> Read<Vec<Part>> {
    let texts = values::texts(value)?;
    let shown = shown(&texts);
    let mut parts = Vec::new();
    for text in texts {
        let part = match text.as_str() {
            "user_id" | "user-id" => Part::UserId,
            "resource" => Part::Resource,
            name if (1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len()) => {
                Part::Attribute(text)
            }
            _ => return Err(Invalid::new("valid is user_id, resource, or names of attributes")),
        };
        if parts.contains(&part) {
            return Err(Invalid::new("each part names the key once"));
        }
        parts.push(part);
    }
    Ok((parts, shown))
}
