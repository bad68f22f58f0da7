//! The rules: `rate-limiter` (the default rule), `rules` and `unmatched`.
//!
//! They are read as specifications, which `rlaas-core` validates and builds. Its problems are
//! reported with the line of the field.

use std::iter;

use rlaas_auth::ApiKeyMode;
use rlaas_projects::api_key_problems;

use super::section::Section;
use super::setting::Setting;
use super::values;
use crate::algorithm::Limit;
use crate::rules::spec::{
    CalendarSpec, Field, MatcherSpec, OverrideSpec, Problem, RuleSpec, RulesSpec, StoreFailureSpec,
};
use crate::rules::{RuleSet, Unmatched};

/// Fields of the default rule whose keys have other names than in `rules`.
const KEYS_OF_DEFAULT_RULE: [(&str, &str); 3] = [
    ("rate-limiter.algorithm", "rate-limiter.use-algo"),
    ("rate-limiter.limit", "rate-limiter.max-requests"),
    ("rate-limiter.window", "rate-limiter.window-size"),
];

const DEFAULT_RULE: Setting =
    Setting::new("rate-limiter", "The default rule, for requests that no other rule matches.");
const USE_ALGO: Setting = Setting::new("use-algo", "Algorithm of the default rule.");
const WINDOW_SIZE: Setting =
    Setting::new("window-size", "Window; a number without a unit is in seconds.");
const MAX_REQUESTS: Setting =
    Setting::new("max-requests", "Units per window for each user. 0 denies every request.");
const BURST: Setting = Setting::new(
    "burst",
    "Maximum units at once, for token-bucket, leaky-bucket and gcra; default is the limit.",
)
.example("5");
const KEY_BY: Setting = Setting::new(
    "key-by",
    "Parts of a request that name the counter: user_id, resource, names of attributes, or \
     NAME|user_id, which is the user_id in requests without that attribute; default user_id.",
)
.example("[user_id]");
const LOCAL_SHARE: Setting = Setting::new(
    "local-share",
    "Share of the limit that this instance grants with on-store-failure: local; default 0.5.",
)
.example("0.5");
const ON_STORE_FAILURE: Setting = Setting::new(
    "on-store-failure",
    "Decision if the store does not answer: error (UNAVAILABLE), allow, deny, or local, which \
     decides in memory with a share of the limit; default error.",
)
.example("local");
const FAIL_OPEN: Setting = Setting::new(
    "fail-open",
    "Short form of on-store-failure: false is error, true is allow. Set only one of them.",
);
const BREAKER_OPENS_RULE: Setting = Setting::new(
    "breaker-opens-rule",
    "true: allow requests while the circuit breaker is open; default false.",
)
.example("false");
pub(super) const NEAR_LIMIT: Setting = Setting::new(
    "near-limit",
    "Share of the limit: responses and metrics say near_limit while at least as much is in use; \
     default never.",
)
.example("0.8");
pub(super) const RULES: Setting = Setting::new(
    "rules",
    "Rules beside the default rule. All that match a request apply; if one denies, none takes \
     units. Their order has no meaning. The rules of several files are one list.",
);
const VERSION: Setting = Setting::new("version", "Version of the format of the rule.").example("1");
const NAME: Setting =
    Setting::new("name", "Name of the rule, unique in the list; label of its metrics.")
        .example("search");
pub(super) const REPLACE: Setting = Setting::new(
    "replace",
    "true: the rule stands in the place of the whole rule of this name in an earlier file; default \
     false.",
)
.example("true");
const ENDPOINT: Setting = Setting::new("endpoint", "Short for match.resource.");
const ALGORITHM: Setting =
    Setting::new("algorithm", "Algorithm of the rule; default sliding-window-log.").example("gcra");
const LIMIT: Setting =
    Setting::new("limit", "Units per window. 0 denies every request.").example("100");
const WINDOW: Setting =
    Setting::new("window", "Window; a number without a unit is in seconds.").example("10s");
const MODE: Setting = Setting::new(
    "mode",
    "enforce; shadow: the rule is decided, counted and reported, but refuses no request; off: it is \
     ignored. In any mode a request that it matches is not unmatched. Default enforce.",
)
.example("enforce");
const SHADOW: Setting =
    Setting::new("shadow", "Short for mode: shadow (true) or enforce (false).").example("false");
const ENFORCE: Setting = Setting::new(
    "enforce",
    "Part of the keys for which the rule is enforced; for the others it is in shadow mode. While \
     the part grows, no key falls out. Default 100%.",
)
.example("25%");
const ON_CHANGE: Setting = Setting::new(
    "on-change",
    "Units in use after a change of limit, burst or window. keep-used: as many as before; keep-left: \
     as many stay left; scale: the same part; reset: none. The limits are then kept beside each key. \
     Default: the state stays as it is.",
)
.example("keep-used");
const CALENDAR: Setting = Setting::new(
    "calendar",
    "Windows of a calendar, in the place of window; only with fixed-window.",
);
const CALENDAR_UNIT: Setting = Setting::new("unit", "day, week, month, quarter or year.");
const CALENDAR_ZONE: Setting = Setting::new("zone", "Name of the time zone; default UTC.");
const CALENDAR_ANCHOR: Setting = Setting::new(
    "anchor",
    "Day on which a window begins: of a week 1 (Monday) to 7, of a month 1 to 31 (in a shorter month its \
     last day), of a quarter and a year that of the first month; default 1.",
);
const CALENDAR_ANCHOR_FROM: Setting = Setting::new(
    "anchor-from",
    "Attribute of a request that has the anchor, from a caller that is trusted: each value has windows of \
     its own. Without a valid one anchor counts.",
);
const COST: Setting = Setting::new(
    "cost",
    "Units that each request takes, whatever cost it has itself; a request may name the rule in its \
     costs. Default: the cost of the request.",
)
.example("1");
const POST_PAID: Setting = Setting::new(
    "post-paid",
    "true: Report counts costs that are known after the work, also if they exceed what is left. The \
     rest is debt. Not for sliding-window-log; default false.",
)
.example("true");
const RESERVABLE: Setting = Setting::new(
    "reservable",
    "true: reservations hold units, which are charged when they are settled. Not for sliding-window-log; \
     default false.",
)
.example("false");
const HOLD: Setting =
    Setting::new("hold", "Longest time of a hold, with reservable or concurrency; default 60s.");
const MAX_HOLDS: Setting =
    Setting::new("max-holds", "Most holds of a key, with reservable: 1 to 10000; default 1000.");
const MAX_DEBT: Setting = Setting::new(
    "max-debt",
    "Most units of debt, with post-paid or reservable; default as many as the algorithm can keep.",
)
.example("50000");
pub(super) const OVERRIDABLE: Setting = Setting::new(
    "overridable",
    "true: overrides and bans of single keys can be set while the server runs, which costs each \
     decision one more read; default false.",
)
.example("true");
const OVERRIDES: Setting = Setting::new(
    "overrides",
    "Other limits for some requests of the rule. The most specific override that matches counts.",
);
const UNLIMITED: Setting = Setting::new("unlimited", "Allows everything, in place of limit.");
const MATCH: Setting = Setting::new("match", "Conditions, all of which a request must meet.");
const RESOURCE: Setting = Setting::new(
    "resource",
    "Pattern of the resource, or a list of patterns. An asterisk is any text; after a backslash it \
     is an asterisk.",
)
.example("/search/*");
const USER_ID: Setting =
    Setting::new("user-id", "Pattern of the user id, or a list of patterns.").example("vip-*");
const ATTRIBUTES: Setting = Setting::new("attributes", "Conditions on attributes.");
const ATTRIBUTE: Setting =
    Setting::new("NAME", "Pattern of the attribute of this name, or a list of patterns.")
        .example("[free, trial]");
pub(super) const UNMATCHED: Setting = Setting::new(
    "unmatched",
    "Requests that no enforced rule matches. default: the default rule decides; allow: they \
     are allowed; deny: they are refused (PERMISSION_DENIED, 403). Envoy's service always \
     allows them.",
);

/// Reads the specification.
pub(super) fn read(root: &mut Section<'_>) -> RulesSpec {
    let default_rule = default_rule(root);
    let rules = named_rules(root);
    let unmatched = root.field_or(UNMATCHED, Unmatched::default());
    RulesSpec { default_rule, rules, unmatched }
}

/// Builds the rules. Unless `keys` are off none may use the attribute `api_key`.
pub(super) fn build(root: &Section<'_>, spec: &RulesSpec, keys: ApiKeyMode) -> RuleSet {
    if keys != ApiKeyMode::Off {
        root.refuse_fields(api_key_problems_of(spec));
    }
    spec.build().unwrap_or_else(|mut problems| {
        for problem in &mut problems {
            let renamed = KEYS_OF_DEFAULT_RULE.iter().find(|(field, _)| *field == problem.field);
            if let Some((_, key)) = renamed {
                (*key).clone_into(&mut problem.field);
            }
        }
        root.refuse_fields(problems);
        // A placeholder: the problems prevent its use.
        RulesSpec::default().build().expect("the built-in rule is valid")
    })
}

/// Reads the list of rules.
pub(super) fn named_rules(root: &mut Section<'_>) -> Vec<RuleSpec> {
    let rules = root.items(RULES).into_iter();
    rules.map(|section| section.map_or_else(RuleSpec::default, named_rule)).collect()
}

/// Returns the problems of rules that use the attribute `api_key`, which requests without a project
/// never have while API keys are on.
pub(super) fn api_key_problems_of(spec: &RulesSpec) -> Vec<Problem> {
    let default_rule = ("rate-limiter".to_owned(), &spec.default_rule);
    let rules = spec.rules.iter().enumerate();
    let rules = rules.map(|(index, rule)| (format!("rules[{index}]"), rule));
    let all = iter::once(default_rule).chain(rules);
    all.flat_map(|(path, rule)| api_key_problems(rule, &path)).collect()
}

fn default_rule(root: &mut Section<'_>) -> RuleSpec {
    let mut section = root.section(DEFAULT_RULE);
    let algorithm = section.field_or(USE_ALGO, RuleSpec::DEFAULT_ALGORITHM);
    let window = section.field_or(WINDOW_SIZE, RuleSpec::DEFAULT_WINDOW);
    let limit = section.field_or(MAX_REQUESTS, RuleSpec::DEFAULT_LIMIT);
    let burst = match limit {
        Field::Set(units) if (1..=Limit::MAX_UNITS).contains(&units) => {
            section.field_or(BURST, units)
        }
        _ => section.field(BURST),
    };
    let key_by = section.field(KEY_BY);
    let cost = section.field(COST);
    let (post_paid, max_debt) = (section.field(POST_PAID), section.field(MAX_DEBT));
    let on_change = section.field(ON_CHANGE);
    let near_limit = section.field(NEAR_LIMIT);
    let overridable = section.field(OVERRIDABLE);
    let failure = store_failure(&mut section);
    if !section.has("fail-open") && !section.has("on-store-failure") {
        section.field_or(FAIL_OPEN, false);
    }
    section.close();
    RuleSpec {
        algorithm,
        window,
        limit,
        burst,
        key_by,
        cost,
        post_paid,
        max_debt,
        on_change,
        near_limit,
        overridable,
        ..RuleSpec::from(failure)
    }
}

fn named_rule(mut section: Section<'_>) -> RuleSpec {
    let spec = RuleSpec {
        version: section.field(VERSION),
        name: section.field(NAME),
        endpoint: section.field(ENDPOINT),
        matcher: matcher(&mut section),
        key_by: section.field(KEY_BY),
        algorithm: section.field(ALGORITHM),
        limit: section.field(LIMIT),
        window: section.field(WINDOW),
        calendar: calendar(&mut section),
        burst: section.field(BURST),
        cost: section.field(COST),
        post_paid: section.field(POST_PAID),
        max_debt: section.field(MAX_DEBT),
        reservable: section.field(RESERVABLE),
        hold: section.field(HOLD),
        max_holds: section.field(MAX_HOLDS),
        mode: section.field(MODE),
        shadow: section.field(SHADOW),
        enforce: section.field(ENFORCE),
        on_change: section.field(ON_CHANGE),
        near_limit: section.field(NEAR_LIMIT),
        overridable: section.field(OVERRIDABLE),
        file: section.file(),
        ..RuleSpec::from(store_failure(&mut section))
    };
    let overrides = section.items(OVERRIDES).into_iter();
    let overrides =
        overrides.map(|section| section.map_or_else(OverrideSpec::default, override_spec));
    let mut spec = RuleSpec { overrides: overrides.collect(), ..spec };
    // Files were joined by it before.
    section.optional(REPLACE, values::boolean);
    if let Some(name) = spec.name_by_endpoint() {
        let text = format!("the rule has no name: {name} was made from endpoint and algorithm");
        section.warn("name", text);
    }
    section.close();
    spec
}

/// Reads an override: `limit`, `limit: 0` or `unlimited: true`.
fn override_spec(mut section: Section<'_>) -> OverrideSpec {
    let spec = OverrideSpec {
        matcher: matcher(&mut section),
        unlimited: section.field(UNLIMITED),
        limit: section.field(LIMIT),
        burst: section.field(BURST),
    };
    section.close();
    spec
}

fn calendar(section: &mut Section<'_>) -> CalendarSpec {
    let mut calendar = section.section(CALENDAR);
    let spec = CalendarSpec {
        unit: calendar.field(CALENDAR_UNIT),
        zone: calendar.field(CALENDAR_ZONE),
        anchor: calendar.field(CALENDAR_ANCHOR),
        anchor_from: calendar.field(CALENDAR_ANCHOR_FROM),
    };
    calendar.close();
    spec
}

fn matcher(section: &mut Section<'_>) -> MatcherSpec {
    let mut conditions = section.section(MATCH);
    let spec = MatcherSpec {
        resource: conditions.field(RESOURCE),
        user_id: conditions.field(USER_ID),
        attributes: conditions.section(ATTRIBUTES).fields(ATTRIBUTE),
    };
    conditions.close();
    spec
}

pub(super) fn store_failure(section: &mut Section<'_>) -> StoreFailureSpec {
    StoreFailureSpec {
        local_share: section.field(LOCAL_SHARE),
        on_store_failure: section.field(ON_STORE_FAILURE),
        fail_open: section.field(FAIL_OPEN),
        breaker_opens_rule: section.field(BREAKER_OPENS_RULE),
    }
}
