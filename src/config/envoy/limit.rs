//! Reads `rate_limit`, the limit of a descriptor, with this service's extensions.

use std::sync::Arc;

use figment::value::Value;

use crate::algorithm::{Algorithm, Limit, Window};
use crate::calendar::{Calendar, CalendarUnit};
use crate::clock::Micros;
use crate::config::rules::read_some;
use crate::config::section::Section;
use crate::config::setting::Setting;
use crate::config::values::{self, Invalid, Read};
use crate::rules::descriptors::{DescriptorRule, DescriptorSpec};
use crate::rules::spec::{Field, RateSpec};
use crate::rules::{Coupling, Grant};

/// Windows of a limit; if fewer can be counted above it, that is told.
const FEW_WINDOWS: u64 = 10;
/// Units of time in seconds. A month has 30 days and a year 365, as in envoyproxy/ratelimit.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 60 * 60),
    ("day", 24 * 60 * 60),
    ("week", 7 * 24 * 60 * 60),
    ("month", 30 * 24 * 60 * 60),
    ("year", 365 * 24 * 60 * 60),
];

/// Units that a calendar has, in seconds.
const CALENDAR_UNITS: [(u64, CalendarUnit); 4] = [
    (24 * 60 * 60, CalendarUnit::Day),
    (7 * 24 * 60 * 60, CalendarUnit::Week),
    (30 * 24 * 60 * 60, CalendarUnit::Month),
    (365 * 24 * 60 * 60, CalendarUnit::Year),
];

const RATE_LIMIT: Setting = Setting::new("rate-limit", "Limit of the descriptor.");
const NAME: Setting = Setting::new("name", "Name of the limit, for replaces.");
const REPLACES: Setting =
    Setting::new("replaces", "Limits that do not apply to a request which meets this one.");
const REPLACED_NAME: Setting = Setting::new("name", "Name of another limit.");
const UNLIMITED: Setting = Setting::new("unlimited", "Allows everything, in place of a limit.");
const UNIT: Setting = Setting::new("unit", "Window: a month has 30 days, a year 365.");
const UNIT_MULTIPLIER: Setting = Setting::new("unit-multiplier", "Number of units in the window.");
const REQUESTS_PER_UNIT: Setting = Setting::new("requests-per-unit", "Units per window.");
const ALGORITHM: Setting = Setting::new(
    "algorithm",
    "Algorithm of the limit; by default fixed-window. Not in envoyproxy/ratelimit.",
);
const WINDOW: Setting =
    Setting::new("window", "Window in place of unit. Not in envoyproxy/ratelimit.");
const CALENDAR: Setting = Setting::new(
    "calendar",
    "true: the unit is a day, week, month or year of the calendar, in UTC. Not in envoyproxy/ratelimit.",
);
const BURST: Setting = Setting::new(
    "burst",
    "Units at once, for token-bucket, leaky-bucket and gcra. Not in envoyproxy/ratelimit.",
);
const POST_PAID: Setting = Setting::new(
    "post-paid",
    "Counts hits in full even where they exceed what is left. Not in envoyproxy/ratelimit.",
);
const RESERVABLE: Setting = Setting::new(
    "reservable",
    "Reservations hold units, and are charged when they are settled. Not in envoyproxy/ratelimit.",
);
const HOLD: Setting = Setting::new(
    "hold",
    "Longest time of a hold, with reservable; default 60s. Not in envoyproxy/ratelimit.",
);
const MAX_DEBT: Setting = Setting::new(
    "max-debt",
    "Most units that may be counted above the limit. Not in envoyproxy/ratelimit.",
);

const OVERRIDABLE: Setting = Setting::new(
    "overridable",
    "Overrides and bans of single keys can be set while the server runs. Not in \
     envoyproxy/ratelimit.",
);

/// Reads `rate_limit` and completes `spec` to a rule. Returns `None` without the section, or after it
/// reported a problem.
pub(super) fn read(
    descriptor: &mut Section<'_>,
    spec: DescriptorSpec,
    coupling: Coupling,
    calendar_month: bool,
) -> Option<DescriptorRule> {
    let mut section = descriptor.section(RATE_LIMIT);
    if !section.is_given() {
        return None;
    }
    let name = section.optional(NAME, text).filter(|name| !name.is_empty());
    let replaces = replaces(&mut section, name.as_deref());
    let algorithm = section.field(ALGORITHM);
    let unlimited = section.optional(UNLIMITED, values::boolean).unwrap_or(false);
    let window = window(&mut section, unlimited, algorithm, calendar_month);
    let limit = section.field(REQUESTS_PER_UNIT);
    let is_cut = |units: &u64| (Limit::MAX_UNITS + 1..=u32::MAX.into()).contains(units);
    if limit.value().is_some_and(is_cut) {
        section.warn("requests-per-unit", "reduced to 1000000000, the maximum of a limit");
    }
    let burst = section.field(BURST);
    let post_paid = section.optional(POST_PAID, values::boolean).unwrap_or(false);
    let failure = ["local-share", "on-store-failure", "fail-open", "breaker-opens-rule"];
    let spec = DescriptorSpec {
        name: name.map(Into::into),
        replaces,
        rate: RateSpec { algorithm, limit, window, burst },
        unlimited,
        failure: (&read_some(&mut section, &failure)).into(),
        post_paid,
        reservable: section.field(RESERVABLE),
        hold: section.field(HOLD),
        max_debt: section.field(MAX_DEBT),
        near_limit: match read_some(&mut section, &["near-limit"]).near_limit {
            Field::Unset => spec.near_limit,
            own => own,
        },
        overridable: section.optional(OVERRIDABLE, values::boolean).unwrap_or(false),
        ..spec
    };
    let rule = spec.build(coupling).map_err(|mut problems| {
        for problem in problems.iter_mut().filter(|problem| problem.field == "limit") {
            "requests-per-unit".clone_into(&mut problem.field);
        }
        section.refuse_fields(problems);
    });
    if let Ok(rule) = &rule {
        warn_of_little_debt(rule, &mut section);
    }
    section.close();
    rule.ok()
}

/// Warns of a limit above which few units can be counted, though no `max_debt` says so.
fn warn_of_little_debt(rule: &DescriptorRule, section: &mut Section<'_>) {
    let Grant::Limited(limit) = &rule.grant else { return };
    let most = rule.algorithm.max_debt(limit);
    if (rule.is_post_paid || rule.holds.is_some())
        && rule.max_debt.is_none()
        && most < FEW_WINDOWS * limit.units()
    {
        section.warn(
            if rule.is_post_paid { "post-paid" } else { "reservable" },
            "debt ends at the units of 366 days: less than 10 windows of this limit",
        );
    }
}

/// Reads the window: `unit` with `unit_multiplier`, or `window`. After it reported a problem it
/// returns an arbitrary window.
fn window(
    section: &mut Section<'_>,
    unlimited: bool,
    algorithm: Field<Algorithm>,
    calendar_month: bool,
) -> Field<Window> {
    let is_fixed = matches!(algorithm, Field::Unset | Field::Set(Algorithm::FixedWindow));
    let unit = if unlimited {
        section.optional(UNIT, unit_of_unlimited).flatten()
    } else {
        section.optional(UNIT, unit)
    };
    let multiplier = section.optional(UNIT_MULTIPLIER, values::count(u32::MAX));
    let window = match section.field::<Micros>(WINDOW) {
        Field::Set(window) => Field::Set(Window::from(window)),
        Field::Unset => Field::Unset,
        Field::Unreadable => Field::Unreadable,
    };
    let calendar = section.optional(CALENDAR, values::boolean).unwrap_or(false);
    let refuse = |key, text| {
        section.refuse(key, Invalid::new(text));
        window.or(Limit::MIN_WINDOW.into())
    };
    if unlimited {
        for key in ["unit", "unit-multiplier", "window", "calendar"] {
            if section.has(key) && (key != "unit" || unit.is_some()) {
                refuse(key, "must not be given with unlimited: true");
            }
        }
        return Field::Unset;
    }
    match (section.has("unit"), section.has("window")) {
        (true, true) => return refuse("window", "must not be given with unit"),
        (false, true) if section.has("unit-multiplier") => {
            return refuse("unit-multiplier", "requires unit");
        }
        (false, true) if calendar => return refuse("calendar", "requires unit"),
        (false, true) => return window,
        (false, false) => return refuse("unit", "missing"),
        (true, false) => {}
    }
    let is_one = multiplier.is_none_or(|units| units == 1);
    let of_calendar = CALENDAR_UNITS.iter().find(|(seconds, _)| is_one && unit == Some(*seconds));
    let is_wanted =
        |unit: CalendarUnit| calendar || calendar_month && is_fixed && unit == CalendarUnit::Month;
    match of_calendar {
        Some((_, unit)) if is_fixed && is_wanted(*unit) => {
            let calendar = Calendar::new(*unit, Calendar::DEFAULT_ZONE, None);
            return calendar.map_or(Field::Unreadable, |calendar| Field::Set(calendar.into()));
        }
        _ if calendar => {
            return refuse("calendar", "only with one day, week, month or year, and fixed-window");
        }
        _ => {}
    }
    let seconds = unit.map_or(1, |unit| unit * u64::from(multiplier.unwrap_or(1)));
    let window = Micros::from_secs(seconds.min(1 << 32));
    if Limit::new(1, window).is_err() {
        return refuse("unit-multiplier", "must be a window of up to 366d");
    }
    Field::Set(window.into())
}

/// Reads the names of replaced limits, each in its own section.
fn replaces(section: &mut Section<'_>, own: Option<&str>) -> Vec<Arc<str>> {
    let mut names = Vec::new();
    for mut replaced in section.list(REPLACES) {
        match replaced.required(REPLACED_NAME, text) {
            Some(name) if name.is_empty() || Some(name.as_str()) == own => {
                replaced.refuse("name", Invalid::new("must be the name of another limit"));
            }
            Some(name) => names.push(name.into()),
            None => {}
        }
        replaced.close();
    }
    names
}

/// Reads the unit of an unlimited rule: empty or `unknown`.
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
    let text = values::scalar(value).ok_or(Invalid::new("must be a string"))?;
    Ok((text.clone(), text))
}
