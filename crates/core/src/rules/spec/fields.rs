//! The table of the fields of rules: the names of each, its kind, and what is said of it.
//!
//! Whatever is done with every field is a loop over it: reading the configuration, conversion from and to
//! messages, the reference, the example and the schema. No decision looks at it.

use super::rate::{BURST as BURSTS, MAX_HOLDS};
use super::rule::{COSTS, UNITS};
use super::value::{FieldType, Value, ValueKind};
use super::{RuleSpec, RulesSpec, StoreFailurePolicy, Whole};
use crate::algorithm::{Algorithm, Limit, OnChange, WindowFrom};
use crate::calendar::CalendarUnit;
use crate::clock::Micros;
use crate::rules::{EnforcedShare, Percentage, RuleMode, Share, Unmatched};

/// A field of rules, or of a part of them.
#[derive(Clone, Copy, Debug)]
pub struct RuleField {
    /// Name in files, where `_` is the same as `-`.
    pub key: &'static str,
    /// Other names in files.
    pub aliases: &'static [&'static str],
    /// Name in messages, if it is not the key with `_`. Empty if only files have the field.
    pub message: Option<&'static str>,
    /// Description, in whole sentences.
    pub about: &'static str,
    /// The kind.
    pub kind: FieldKind,
    /// Bounds of a whole number.
    pub bounds: Option<Whole>,
    /// Value for an example, as YAML.
    pub example: Option<&'static str>,
    /// The value that says the same as none.
    pub default: Option<&'static str>,
}

/// The kind of a field.
#[derive(Clone, Copy, Debug)]
pub enum FieldKind {
    /// A value of this kind, and how it is read: `None` if it has the wrong type.
    Value(ValueKind, fn(Value) -> Option<Value>),
    /// Fields of its own.
    Section(&'static [RuleField]),
    /// Items, each with these fields.
    List(&'static [RuleField]),
    /// Values by names that are data.
    Map(&'static RuleField),
}

impl RuleField {
    const fn new(key: &'static str, about: &'static str, kind: FieldKind) -> Self {
        let (message, bounds, example, default) = (None, None, None, None);
        Self { key, aliases: &[], message, about, kind, bounds, example, default }
    }

    const fn example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    const fn message(self, name: &'static str) -> Self {
        Self { message: Some(name), ..self }
    }

    const fn within(self, bounds: Whole) -> Self {
        Self { bounds: Some(bounds), ..self }
    }

    /// Returns `true` if files may have the field under this name.
    pub fn is_named(&self, name: &str) -> bool {
        let mut names = self.aliases.iter().chain([&self.key]);
        names.any(|known| {
            let mut bytes = known.bytes().zip(name.bytes());
            known.len() == name.len()
                && bytes.all(|(own, given)| own == given || (own, given) == (b'-', b'_'))
        })
    }

    /// Returns the name in messages, if they have the field.
    pub fn name_in_messages(&self) -> Option<String> {
        let name = self.message.map_or_else(|| self.key.replace('-', "_"), str::to_owned);
        Some(name).filter(|name| !name.is_empty())
    }

    /// Returns the fields that the default rule may have.
    pub fn of_default_rule() -> impl Iterator<Item = &'static Self> {
        let shared = IN_DEFAULT_RULE.iter().filter_map(|key| Self::find(key));
        DEFAULT_RULE.iter().chain(shared)
    }

    /// Returns the field of rules with a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        RuleSpec::FIELDS.iter().find(|field| field.is_named(name))
    }
}

/// Returns the field of values of a type.
const fn value<T: FieldType>(key: &'static str, about: &'static str) -> RuleField {
    let kind = FieldKind::Value(T::KIND, |value| T::read(value).map(|value| value.write()));
    RuleField::new(key, about, kind)
}

const BURST: RuleField = value::<u64>(
    "burst",
    "Maximum units at once, for token-bucket, leaky-bucket and gcra; default is the limit.",
)
.example("5")
.within(BURSTS);
const LIMIT: RuleField = value::<u64>("limit", "Units per window. 0 denies every request.")
    .aliases(&["max-requests", "limit-count"])
    .message("max_requests")
    .example("100")
    .within(UNITS);
const MATCH: RuleField = RuleField::new(
    "match",
    "Conditions, all of which a request must meet.",
    FieldKind::Section(&[
        value::<Vec<String>>(
            "resource",
            "Pattern of the resource, or a list of patterns. An asterisk is any text; after a backslash it \
             is an asterisk.",
        )
        .example("/search/*"),
        value::<Vec<String>>("user-id", "Pattern of the user id, or a list of patterns.")
            .example("vip-*"),
        RuleField::new(
            "attributes",
            "Conditions on attributes.",
            FieldKind::Map(
                &value::<Vec<String>>(
                    "NAME",
                    "Pattern of the attribute of this name, or a list of patterns.",
                )
                .example("[free, trial]"),
            ),
        ),
    ]),
)
.message("matchers");

/// Fields that have other names in the default rule.
const DEFAULT_RULE: &[RuleField] = &[
    value::<Algorithm>("use-algo", "Algorithm of the default rule.")
        .aliases(&["algorithm", "strategy"])
        .default("sliding-window-log"),
    value::<Micros>("window-size", "Window; a number without a unit is in seconds.")
        .aliases(&["window", "window-seconds"])
        .default("60"),
    value::<u64>("max-requests", "Units per window for each user. 0 denies every request.")
        .aliases(&["limit", "limit-count"])
        .default("5")
        .within(UNITS),
];
/// The other fields that it may have.
const IN_DEFAULT_RULE: &[&str] = &[
    "burst",
    "key-by",
    "cost",
    "post-paid",
    "max-debt",
    "on-change",
    "near-limit",
    "overridable",
    "local-share",
    "on-store-failure",
    "fail-open",
    "breaker-opens-rule",
];

impl RulesSpec {
    /// The policy for requests that no enforced rule matches.
    #[doc(hidden)]
    pub const UNMATCHED: RuleField = value::<Unmatched>(
        "unmatched",
        "Requests that no enforced rule matches. default: the default rule decides; allow: they \
         are allowed; deny: they are refused (PERMISSION_DENIED, 403). Envoy's service always \
         allows them.",
    );
}

impl RuleSpec {
    /// The fields of rules, in the order of the documentation.
    #[doc(hidden)]
    pub const FIELDS: &'static [RuleField] = &[
        value::<u64>("version", "Version of the format of the rule.")
            .message("")
            .example("1")
            .within(Whole { from: 1, to: Self::VERSION }),
        value::<String>("name", "Name of the rule, unique in the list; label of its metrics.")
            .example("search"),
        value::<Vec<String>>("endpoint", "Short for match.resource.").message(""),
        MATCH,
        value::<Vec<String>>(
            "key-by",
            "Parts of a request that name the counter: user_id, resource, names of attributes, or \
             NAME|user_id, which is the user_id in requests without that attribute; default user_id.",
        )
        .example("[user_id]")
        .default("user_id"),
        value::<Algorithm>("algorithm", "Algorithm of the rule; default sliding-window-log.")
            .aliases(&["use-algo", "strategy"])
            .example("gcra")
            .default("sliding-window-log"),
        LIMIT,
        value::<Micros>("window", "Window; a number without a unit is in seconds.")
            .aliases(&["window-size", "window-seconds"])
            .example("10s"),
        RuleField::new(
            "calendar",
            "Windows of a calendar, in the place of window; only with fixed-window.",
            FieldKind::Section(&[
                value::<CalendarUnit>("unit", "day, week, month, quarter or year."),
                value::<String>("zone", "Name of the time zone; default UTC."),
                value::<u64>(
                    "anchor",
                    "Day on which a window begins: of a week 1 (Monday) to 7, of a month 1 to 31 (in a shorter month its \
                     last day), of a quarter and a year that of the first month; default 1.",
                ),
                value::<String>(
                    "anchor-from",
                    "Attribute of a request that has the anchor, from a caller that is trusted: each value has windows of \
                     its own. Without a valid one anchor counts.",
                ),
            ]),
        ),
        value::<WindowFrom>(
            "window-from",
            "Where windows begin; only with fixed-window and window. epoch: at multiples of the window since 1970; \
             first-use: with the first units that a key takes, then all are whole at the end. Default epoch.",
        )
        .default("epoch"),
        BURST,
        value::<String>(
            "limit-from",
            "Where requests have limits of their own, which count in the place of limit: attributes.NAME, an \
             attribute of a caller that is trusted or of an API key (attributes.key.NAME), a whole number from 0 to \
             the most of the algorithm; or request, the limit of Envoy's descriptor in a project, of the same \
             window. Others are ignored, and limit counts. Only with fixed-window, sliding-window-counter and \
             sliding-window-log.",
        ),
        value::<u64>(
            "cost",
            "Units that each request takes, whatever cost it has itself; a request may name the rule in its \
             costs. Default: the cost of the request.",
        )
        .example("1")
        .within(COSTS),
        value::<bool>(
            "post-paid",
            "true: Report counts costs that are known after the work, also if they exceed what is left. The \
             rest is debt. Not for sliding-window-log; default false.",
        )
        .example("true")
        .default("false"),
        value::<u64>(
            "max-debt",
            "Most units of debt, with post-paid or reservable; default as many as the algorithm can keep.",
        )
        .example("50000")
        .within(Whole { from: 0, to: Limit::MAX_DEBT }),
        value::<bool>(
            "reservable",
            "true: reservations hold units, which are charged when they are settled. Not for sliding-window-log; \
             default false.",
        )
        .example("false")
        .default("false"),
        value::<Micros>(
            "hold",
            "Longest time of a hold, with reservable or concurrency; default 60s.",
        ),
        value::<u64>(
            "max-holds",
            "Most holds of a key, with reservable: 1 to 10000; default 1000.",
        )
        .within(MAX_HOLDS),
        value::<Percentage>(
            "hold-share",
            "Most that a reservation holds, with reservable: 1% to 100% of the units at once (burst, else limit), at \
             least one unit. A larger cost is held by as many, and charged in full when it is settled. Default: its cost.",
        )
        .message("hold_share_ppm"),
        value::<RuleMode>(
            "mode",
            "enforce; shadow: the rule is decided, counted and reported, but refuses no request; off: it is \
             ignored. In any mode a request that it matches is not unmatched. Default enforce.",
        )
        .example("enforce")
        .default("enforce"),
        value::<bool>("shadow", "Short for mode: shadow (true) or enforce (false).")
            .message("")
            .example("false"),
        value::<EnforcedShare>(
            "enforce",
            "Part of the keys for which the rule is enforced; for the others it is in shadow mode. While \
             the part grows, no key falls out. Default 100%.",
        )
        .message("enforce_ppm")
        .example("25%")
        .default("100%"),
        value::<OnChange>(
            "on-change",
            "Units in use after a change of limit, burst or window. keep-used: as many as before; keep-left: \
             as many stay left; scale: the same part; reset: none. The limits are then kept beside each key. \
             Default: the state stays as it is.",
        )
        .example("keep-used"),
        value::<Share>(
            "near-limit",
            "Share of the limit: responses and metrics say near_limit while at least as much is in use; \
             default never.",
        )
        .message("near_limit_ppm")
        .example("0.8"),
        value::<Vec<Percentage>>(
            "notify-at",
            "Parts of the limit at which an event is told, once for each key and window: up to 5, each 1% to 100%; \
             only with fixed-window. Default: none.",
        )
        .message("notify_at_ppm"),
        value::<bool>(
            "overridable",
            "true: overrides and bans of single keys can be set while the server runs, which costs each \
             decision one more read; default false.",
        )
        .example("true")
        .default("false"),
        value::<Share>(
            "local-share",
            "Share of the limit that this instance grants with on-store-failure: local; default 0.5.",
        )
        .message("local_share_ppm")
        .example("0.5")
        .default("0.5"),
        value::<StoreFailurePolicy>(
            "on-store-failure",
            "Decision if the store does not answer: error (UNAVAILABLE), allow, deny, or local, which \
             decides in memory with a share of the limit; default error.",
        )
        .example("local")
        .default("error"),
        value::<bool>(
            "fail-open",
            "Short form of on-store-failure: false is error, true is allow. Set only one of them.",
        )
        .message(""),
        value::<bool>(
            "breaker-opens-rule",
            "true: allow requests while the circuit breaker is open; default false.",
        )
        .example("false")
        .default("false"),
        RuleField::new(
            "overrides",
            "Other limits for some requests of the rule. The most specific override that matches counts.",
            FieldKind::List(&[
                MATCH,
                value::<bool>("unlimited", "Allows everything, in place of limit."),
                LIMIT,
                BURST,
                value::<Percentage>(
                    "headroom",
                    "Leaves so much to other requests, beside a limit or alone: 1% to 100% of the units at once \
                     (burst, else limit). A request passes only while that would be left.",
                ),
            ]),
        ),
    ];
}
