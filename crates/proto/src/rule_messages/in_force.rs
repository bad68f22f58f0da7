//! Rules in force as messages, with all of their numbers.

use std::num::NonZeroU64;

use rlaas_core::algorithm::Window;
use rlaas_core::calendar::CalendarUnit;
use rlaas_core::rules::descriptors::{PathStep, PlacedRule};
use rlaas_core::rules::{
    EnforcedShare, Grant, HoldTerms, LimitFrom, Matcher, Mode, OnStoreFailure, Override, Part,
    Pattern, Rule, RuleInfo, Share, TextPattern,
};

use crate::ratelimit::v1 as proto;
use crate::ratelimit::v1::calendar_window::Unit;
use crate::ratelimit::v1::grant::Kind;
use crate::ratelimit::v1::rule_origin::Kind as OriginKind;
use crate::values::{algorithm, duration, int64, timestamp, units};

/// Returns the message of a flat rule.
pub fn rule_message(rule: &Rule) -> proto::Rule {
    let is_default = &*rule.name == Rule::DEFAULT;
    // Slots are bounded by the limit.
    let reservable = rule.holds.filter(|_| !rule.algorithm.has_slots());
    proto::Rule {
        matchers: matchers(&rule.matcher),
        key_by: rule.key_by.iter().map(Part::to_string).collect(),
        overrides: rule.overrides.iter().map(override_message).collect(),
        enforce_ppm: (rule.enforce != EnforcedShare::ALL).then(|| rule.enforce.millionths()),
        on_change: rule.on_change.map_or(0, |policy| {
            let name = value_name("ON_CHANGE_", policy.name());
            proto::OnChange::from_str_name(&name).unwrap_or_default().into()
        }),
        cost: rule.cost.map_or(0, |cost| u32::try_from(cost.units()).unwrap_or(u32::MAX)),
        post_paid: rule.is_post_paid,
        reservable: reservable.is_some(),
        calendar: calendar_window(rule.window, rule.anchor_from.as_deref()),
        window_from: window_from(rule.window).into(),
        hold: rule.holds.map(|terms| duration(terms.longest)),
        max_holds: reservable.map_or(0, |terms| terms.most),
        hold_share_ppm: hold_share(rule.holds),
        notify_at_ppm: rule.notify_at.iter().map(|share| share.millionths()).collect(),
        limit_from: rule.limit_from.as_ref().map(LimitFrom::to_string).unwrap_or_default(),
        origin: Some(if is_default {
            origin(OriginKind::BuiltIn, "")
        } else {
            origin(OriginKind::File, &rule.file)
        }),
        ..common_message(rule.info(), rule.grant)
    }
}

/// Returns the most that a reservation holds, in millionths; 0 without a bound.
pub fn hold_share(terms: Option<HoldTerms>) -> u32 {
    terms.and_then(|terms| terms.share).map_or(0, Share::millionths)
}

/// Returns the length of windows that all have one; those of a calendar are in its message.
fn length(window: Window) -> Option<prost_types::Duration> {
    window.calendar().is_none().then(|| duration(window.length()))
}

/// Returns where windows of one length begin, if it is not the epoch.
pub const fn window_from(window: Window) -> proto::WindowFrom {
    if window.is_from_first_use() {
        proto::WindowFrom::FirstUse
    } else {
        proto::WindowFrom::Unspecified
    }
}

/// Returns the message of the windows of a calendar; `None` of others.
pub fn calendar_window(window: Window, anchor_from: Option<&str>) -> Option<proto::CalendarWindow> {
    let calendar = window.calendar()?;
    Some(proto::CalendarWindow {
        unit: Unit::from_str_name(&value_name("", calendar.unit().name()))
            .unwrap_or_default()
            .into(),
        zone: calendar.zone().to_owned(),
        anchor: match calendar.unit() {
            CalendarUnit::Day => 0,
            _ => calendar.anchor().into(),
        },
        anchor_from: anchor_from.unwrap_or_default().to_owned(),
    })
}

/// Returns the origin of a rule that has no revision. The source of one of a file is its path.
pub fn origin(kind: OriginKind, source: &str) -> proto::RuleOrigin {
    proto::RuleOrigin { kind: kind.into(), source: source.to_owned(), revision: 0 }
}

/// Returns the origin of a rule that was made at run time.
pub fn run_time_origin(project: &str, revision: Option<NonZeroU64>) -> proto::RuleOrigin {
    let revision = revision.map_or(0, NonZeroU64::get);
    proto::RuleOrigin { revision, ..origin(OriginKind::RunTime, project) }
}

/// Returns the fields that both kinds of rules have.
fn common_message(rule: RuleInfo<'_>, grant: Grant) -> proto::Rule {
    let limit = match grant {
        Grant::Limited(limit) => Some(limit),
        Grant::Banned | Grant::Unlimited => None,
    };
    proto::Rule {
        name: rule.name.to_string(),
        algorithm: algorithm(rule.algorithm).into(),
        max_requests: int64(units(grant)),
        window: limit
            .filter(|_| !rule.algorithm.has_slots())
            .and_then(|limit| length(limit.windows())),
        fail_open: rule.on_store_failure == OnStoreFailure::Allow,
        burst: limit.map_or(0, |limit| int64(limit.burst())),
        shadow: rule.mode.is_shadow(),
        on_store_failure: proto::OnStoreFailure::from_str_name(&value_name(
            "ON_STORE_FAILURE_",
            rule.on_store_failure.name(),
        ))
        .unwrap_or_default()
        .into(),
        local_share_ppm: match rule.on_store_failure {
            OnStoreFailure::Local(share) => share.millionths(),
            _ => 0,
        },
        breaker_opens_rule: rule.breaker_opens,
        near_limit_ppm: rule.near_limit.map_or(0, Share::millionths),
        overridable: rule.overridable,
        mode: mode(rule.mode).into(),
        mode_ends_at: rule.set_mode.map(|set| timestamp(set.ends_at)),
        max_debt: limit.and_then(|limit| {
            // As many as the algorithm can keep is what unset means.
            let most = rule.algorithm.max_debt(&limit);
            limit.max_debt().filter(|debt| *debt != most).map(int64)
        }),
        ..proto::Rule::default()
    }
}

/// Returns the message of a rule for descriptors.
pub fn descriptor_message(placed: PlacedRule<'_>) -> proto::Rule {
    let PlacedRule { domain, path, rule, .. } = placed;
    let descriptor_rule = proto::DescriptorRule {
        domain: domain.to_owned(),
        path: path.into_iter().map(step).collect(),
        limit_name: rule.limit_name.as_deref().unwrap_or_default().to_owned(),
        replaces: rule.replaces.iter().map(ToString::to_string).collect(),
        quota: matches!(rule.mode, Mode::Quota | Mode::ShadowQuota),
        post_paid: rule.is_post_paid,
        detailed_metric: rule.is_detailed,
    };
    proto::Rule {
        // A limit of 0 has a window too.
        window: length(rule.window).filter(|_| rule.grant != Grant::Unlimited),
        calendar: calendar_window(rule.window, None),
        reservable: rule.holds.is_some(),
        hold: rule.holds.map(|terms| duration(terms.longest)),
        max_holds: rule.holds.map_or(0, |terms| terms.most),
        descriptor_rule: Some(descriptor_rule),
        origin: Some(origin(OriginKind::EnvoyFile, &rule.file)),
        ..common_message(rule.info(), rule.grant)
    }
}

fn step(step: PathStep<'_>) -> proto::DescriptorStep {
    proto::DescriptorStep {
        key: step.key.to_owned(),
        value: step.value.unwrap_or_default().to_owned(),
        share: step.shares,
        value_to_metric: step.value_to_metric,
    }
}

fn override_message(other: &Override) -> proto::RuleOverride {
    let headroom_ppm = other.headroom.map_or(0, Share::millionths);
    let (matchers, grant) = (matchers(&other.matcher), other.grant.map(grant));
    proto::RuleOverride { matchers, grant, headroom_ppm }
}

/// Returns the message of a grant.
pub fn grant(grant: Grant) -> proto::Grant {
    let (kind, burst) = match grant {
        Grant::Limited(limit) => (Kind::Limit(int64(limit.units())), int64(limit.burst())),
        Grant::Unlimited => (Kind::Unlimited(true), 0),
        Grant::Banned => (Kind::Banned(true), 0),
    };
    proto::Grant { kind: Some(kind), burst }
}

fn matchers(matcher: &Matcher) -> Vec<proto::PartMatcher> {
    let of_part = |(part, pattern): &(Part, Pattern)| proto::PartMatcher {
        part: part.to_string(),
        any_of: match pattern {
            Pattern::Present => vec!["*".to_owned()],
            Pattern::OneOf(texts) => texts.iter().map(TextPattern::to_text).collect(),
        },
    };
    matcher.patterns.iter().map(of_part).collect()
}

/// Returns the name of the value of an enum that files name so.
fn value_name(prefix: &str, word: &str) -> String {
    prefix.to_owned() + &word.replace('-', "_").to_uppercase()
}

/// Returns the mode of a rule as messages have it.
pub const fn mode(mode: Mode) -> proto::RuleMode {
    match mode {
        // A quota is enforced together with the other quotas of a request.
        Mode::Enforced | Mode::Quota => proto::RuleMode::Enforce,
        Mode::Shadow | Mode::ShadowQuota => proto::RuleMode::Shadow,
        Mode::Off => proto::RuleMode::Off,
    }
}
