//! `rate_limit`: the limit of a descriptor, with what this service can do beyond its source.

use std::sync::Arc;

use figment::value::Value;

use crate::algorithm::{Algorithm, Limit};
use crate::clock::Span;
use crate::config::rules::{Rate, failure};
use crate::config::section::Section;
use crate::config::values::{self, Invalid, Read};
use crate::rules::descriptors::DescriptorRule;
use crate::rules::{Coupling, Grant, Matcher, Mode, Rule};

/// Units of time and their seconds: a month has 30 days and a year 365, as in the source.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 60 * 60),
    ("day", 24 * 60 * 60),
    ("week", 7 * 24 * 60 * 60),
    ("month", 30 * 24 * 60 * 60),
    ("year", 365 * 24 * 60 * 60),
];

/// The rule that `rate_limit` makes of a descriptor; none if there is none, or it has a problem,
/// which is told.
pub(super) fn read(
    descriptor: &mut Section<'_>,
    label: &str,
    mode: Mode,
    is_detailed: bool,
    coupling: Coupling,
) -> Option<DescriptorRule> {
    let mut section = descriptor.section("rate-limit");
    if !section.is_given() {
        return None;
    }
    let name = section.optional("name", text).filter(|name| !name.is_empty());
    let replaces = replaces(&mut section, name.as_deref());
    let algorithm = section.optional("algorithm", values::algorithm);
    let algorithm = algorithm.unwrap_or(Algorithm::FixedWindow);
    let unlimited = section.optional("unlimited", values::boolean).unwrap_or(false);
    let window = window(&mut section, unlimited);
    let requests = section.optional("requests-per-unit", |value| {
        const BOUNDS: Invalid = Invalid::new("must be a whole number from 0 to 4294967295");
        values::whole(value, 0..=u32::MAX.into(), BOUNDS)
    });
    if requests.is_some_and(|units| units > Limit::MAX_UNITS) {
        section.warn("requests-per-unit", "cut to 1000000000, the most that a limit may be");
    }
    let requests = requests.map(|units| units.min(Limit::MAX_UNITS));
    let burst = section.optional("burst", |value| {
        values::whole(value, 1..=Limit::MAX_UNITS, Invalid::new("valid is 1 to 1000000000"))
    });
    let is_post_paid = section.optional("post-paid", values::boolean).unwrap_or(false);
    let max_debt = section.optional("max-debt", |value| {
        values::whole(value, 0..=Limit::MAX_UNITS, Invalid::new("must be 0 to 1000000000"))
    });
    let failure = failure(&mut section);
    let grant = match (unlimited, requests, window) {
        (true, _, _) => Some(Grant::Unlimited),
        (false, Some(0), Some(_)) => Some(Grant::Banned),
        (false, Some(units), Some(window)) => {
            let rate = Rate { algorithm, units, window };
            rate.limit(&section, "requests-per-unit", burst).map(Grant::Limited)
        }
        (false, None, _) if !section.has("requests-per-unit") => {
            section.refuse("requests-per-unit", Invalid::new("missing"));
            None
        }
        (false, _, _) => None,
    };
    let is_log = algorithm == Algorithm::SlidingWindowLog;
    let most_reported = u64::from(algorithm.max_cost());
    if is_post_paid && requests.is_some_and(|units| units > most_reported) {
        let bound = format!("must be 0 to {most_reported} for {} with post_paid", algorithm.name());
        section.refuse("requests-per-unit", Invalid(bound.into()));
    }
    if let Some(units) = max_debt {
        let most = if is_log { 0 } else { requests.unwrap_or(Limit::MAX_UNITS) };
        let counts =
            is_post_paid || coupling == Coupling::EachAlone && algorithm == Algorithm::FixedWindow;
        if unlimited || !counts {
            let beside =
                "only with post_paid: true, or for a fixed window with envoy.count-refused";
            section.refuse("max-debt", Invalid::new(beside));
        } else if units > most {
            let why = if is_log { " for sliding-window-log, which keeps no debt" } else { "" };
            section.refuse("max-debt", Invalid(format!("must be 0 to {most}{why}").into()));
        }
    }
    section.close();
    let rule = Rule {
        name: label.into(),
        matcher: Matcher::default(),
        key_by: Vec::new(),
        algorithm,
        grant: grant?,
        overrides: Vec::new(),
        mode,
        on_store_failure: failure.policy,
        breaker_opens: failure.breaker_opens,
    };
    let (name, window) = (name.map(Into::into), window.unwrap_or(Span::ZERO));
    Some(DescriptorRule {
        rule,
        name,
        replaces,
        window,
        is_detailed,
        is_post_paid,
        max_debt,
        metadata: None,
        file: Arc::default(),
    })
}

/// `unit`, with `unit_multiplier`; or `window`.
fn window(section: &mut Section<'_>, unlimited: bool) -> Option<Span> {
    let unit = if unlimited {
        section.optional("unit", unit_of_unlimited).flatten()
    } else {
        section.optional("unit", unit)
    };
    let multiplier = section.optional("unit-multiplier", values::count(u32::MAX));
    let window = section.optional("window", values::window);
    if unlimited {
        let is_unit_given = unit.is_some();
        for key in ["unit", "unit-multiplier", "window"] {
            if section.has(key) && (key != "unit" || is_unit_given) {
                section.refuse(key, Invalid::new("must not stand beside unlimited: true"));
            }
        }
        return None;
    }
    match (section.has("unit"), section.has("window")) {
        (true, true) => section.refuse("window", Invalid::new("give either unit or window")),
        (false, true) if section.has("unit-multiplier") => {
            section.refuse("unit-multiplier", Invalid::new("valid only with unit"));
        }
        (false, false) => section.refuse("unit", Invalid::new("missing")),
        _ => {}
    }
    let seconds = unit.map(|unit| unit * u64::from(multiplier.unwrap_or(1)));
    if let Some(seconds) = seconds
        && Limit::new(1, Span::from_secs(seconds.min(1 << 32))).is_err()
    {
        section.refuse("unit-multiplier", Invalid::new("valid is a window of up to 366d"));
        return None;
    }
    seconds.map(Span::from_secs).or(window)
}

/// Names of rules, each in a section of its own.
fn replaces(section: &mut Section<'_>, own: Option<&str>) -> Vec<Arc<str>> {
    let mut names = Vec::new();
    for mut replaced in section.list("replaces") {
        match replaced.required("name", text) {
            Some(name) if name.is_empty() || Some(name.as_str()) == own => {
                replaced.refuse("name", Invalid::new("valid is the name of another limit"));
            }
            Some(name) => names.push(name.into()),
            None => {}
        }
        replaced.close();
    }
    names
}

/// What is unlimited has no unit, which may be written down.
fn unit_of_unlimited(value: &Value) -> Read<Option<u64>> {
    let given = values::scalar(value).unwrap_or_default().to_ascii_lowercase();
    if matches!(given.as_str(), "unknown" | "") {
        return Ok((None, given));
    }
    unit(value).map(|(unit, shown)| (Some(unit), shown))
}

fn unit(value: &Value) -> Read<u64> {
    let given = values::scalar(value).unwrap_or_default().to_ascii_lowercase();
    let found = UNITS.iter().find(|(name, _)| *name == given);
    let (name, seconds) =
        found.ok_or(Invalid::new("must be second, minute, hour, day, week, month or year"))?;
    Ok((*seconds, (*name).to_owned()))
}

fn text(value: &Value) -> Read<String> {
    let text = values::scalar(value).ok_or(Invalid::new("must be a text"))?;
    Ok((text.clone(), text))
}
