//! Random cases: rules, and steps of requests, refunds and changes of the rules.

use proptest::prelude::*;
use proptest::sample::Index;
use rlaas::algorithm::{Algorithm, Limit, Window};
use rlaas::clock::Micros;
use rlaas::control::{KeyGrant, OverrideKind};
use rlaas::rules::{Grant, Matcher, Mode, Override, Part, Pattern, Rule, RuleSet, TextPattern};

const DAY_MS: u64 = 86_400_000;

/// The rules, and the steps that are taken under them.
#[derive(Clone, Debug)]
pub(super) struct DifferentialCase {
    pub(super) rule: Shape,
    /// More rules with their modes. If empty, `rule` is the default rule.
    pub(super) more: Vec<(Shape, Mode)>,
    /// Whether the rules obey overrides of single keys.
    pub(super) overridable: bool,
    /// What an override of the rule grants to the id [`OVERRIDDEN_BY_FILE`].
    pub(super) by_file: Option<DrawnGrant>,
    pub(super) steps: Vec<Step>,
}

/// The id to which an override of the rule may grant something else.
pub(super) const OVERRIDDEN_BY_FILE: u8 = 1;

impl DifferentialCase {
    pub(super) fn rules(&self) -> RuleSet {
        let rule = |shape: Shape| Rule {
            overridable: self.overridable,
            overrides: self.by_file.iter().map(|drawn| shape.override_by_file(*drawn)).collect(),
            ..Rule::new_default(shape.algorithm(), shape.limit())
        };
        if self.more.is_empty() {
            return RuleSet::new(rule(self.rule), Vec::new());
        }
        let named = self.shapes().enumerate().map(|(index, (shape, mode))| Rule {
            name: format!("rule-{index}").into(),
            mode,
            ..rule(shape)
        });
        let wide = Limit::new(Limit::MAX_UNITS, Limit::MAX_WINDOW).expect("a valid limit");
        RuleSet::new(Rule::new_default(Algorithm::Gcra, wide), named.collect())
    }

    pub(super) fn shapes(&self) -> impl Iterator<Item = (Shape, Mode)> {
        std::iter::once((self.rule, Mode::Enforced)).chain(self.more.iter().copied())
    }

    /// Returns the shortest window: a longer step back counts as a jump of the clock for its rule.
    pub(super) fn shortest_window(&self) -> Micros {
        let windows = self.shapes().map(|(shape, _)| shape.limit().window());
        windows.min().expect("a rule")
    }
}

/// A rule before its values are clamped to the bounds of its algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) algorithm: usize,
    pub(super) units: u64,
    pub(super) window_ms: u64,
    /// The burst as a percentage of the units.
    pub(super) burst_percent: u64,
    /// The maximum debt as a percentage of the units.
    pub(super) debt_percent: Option<u64>,
    /// Whether a fixed window begins with the first use.
    pub(super) at_first_use: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) advance: Advance,
    /// Which of the earlier requests is refunded before the requests of this step, if any.
    pub(super) refunds: Option<Index>,
    /// The change of an id by an administrator before the requests of this step, if any.
    pub(super) admin: Option<(usize, AdminChange)>,
    /// The rule from this step on, if it changes.
    pub(super) rule: Option<Shape>,
    /// The requests of this step, each for another id.
    pub(super) requests: Vec<(Cost, Verb)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Advance {
    Micros(u64),
    /// Forward by thousandths of the window.
    Window(u64),
    /// To the end of the last announced wait, or a microsecond before.
    LastWait {
        too_early: bool,
    },
    /// To the end of the override that ends next, or a microsecond before.
    OverrideEnd {
        too_early: bool,
    },
    /// Back by thousandths of the window, up to one window.
    Back(u64),
}

/// What an administrator does with a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum AdminChange {
    Inspect,
    Reset,
    Refund(u32),
    /// For thousandths of the window.
    SetOverride(DrawnGrant, u64),
    ClearOverride(OverrideKind),
}

/// A grant before its values are clamped to the bounds of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) enum DrawnGrant {
    Limited {
        units: u64,
        /// The burst as a percentage of the units.
        burst_percent: u64,
    },
    Unlimited,
    Banned,
}

/// The action of a request. Without debt a report is a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Look,
    Report,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Cost {
    Units(u32),
    /// A percentage of the burst; 101 is one unit more than the burst.
    Share(u64),
}

impl Shape {
    pub(super) fn limit(self) -> Limit {
        let algorithm = self.algorithm();
        let most = if algorithm == Algorithm::SlidingWindowLog { 300 } else { Limit::MAX_UNITS };
        let window = Window::from(Micros::from_millis(self.window_ms));
        let window = if self.is_from_first_use() { window.at_first_use() } else { window };
        let limit = Limit::new(self.units.min(most), window);
        let limit = limit.expect("a valid limit");
        let burst = (limit.units() * self.burst_percent / 100).max(1);
        let limit =
            if algorithm.has_burst() { limit.with_burst(burst).unwrap_or(limit) } else { limit };
        match self.debt_percent {
            Some(percent) => {
                let most = self.algorithm().max_debt(&limit).max(limit.units());
                limit.with_max_debt((limit.units() * percent / 100).min(most))
            }
            None => Ok(limit),
        }
        .expect("at most one limit")
    }

    /// Returns a grant in the window of this rule.
    pub(super) fn grant(self, drawn: DrawnGrant) -> Grant {
        match drawn {
            DrawnGrant::Limited { units, burst_percent } => {
                Grant::Limited(Self { units, burst_percent, ..self }.limit())
            }
            DrawnGrant::Unlimited => Grant::Unlimited,
            DrawnGrant::Banned => Grant::Banned,
        }
    }

    /// Returns a grant to a key of this rule.
    pub(super) fn key_grant(self, drawn: DrawnGrant) -> KeyGrant {
        match self.grant(drawn) {
            Grant::Limited(limit) => {
                KeyGrant::Limited { units: limit.units(), burst: limit.burst() }
            }
            Grant::Unlimited => KeyGrant::Unlimited,
            Grant::Banned => KeyGrant::Banned,
        }
    }

    fn override_by_file(self, drawn: DrawnGrant) -> Override {
        let id = TextPattern::Exact(OVERRIDDEN_BY_FILE.to_string());
        let pattern = Pattern::OneOf(vec![id]);
        let matcher = Matcher { patterns: vec![(Part::UserId, pattern)] };
        Override::new(matcher, self.grant(drawn))
    }

    /// Returns `true` if two rules use the same keys in Redis. Fixed windows have one key per
    /// window:
    /// after a change to other keys and back, Redis would find states that memory has replaced.
    pub(super) fn shares_keys_with(self, other: &Self) -> bool {
        let keys = |shape: &Self| {
            let has_window = shape.algorithm().keyed_by_window() && !shape.is_from_first_use();
            has_window.then_some(shape.window_ms)
        };
        keys(&self) == keys(other)
    }

    pub(super) fn is_from_first_use(&self) -> bool {
        self.at_first_use && self.algorithm() == Algorithm::FixedWindow
    }

    pub(super) fn algorithm(self) -> Algorithm {
        Algorithm::RATES[self.algorithm]
    }

    pub(super) fn rules(self) -> RuleSet {
        RuleSet::new(Rule::new_default(self.algorithm(), self.limit()), Vec::new())
    }
}

fn units() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 1..=10_u64,
        2 => prop::sample::select(vec![100, 999_983, 3_000_000, 1_000_000_000]),
        1 => 1..=1_000_000_000_u64,
    ]
}

fn burst_percent() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![100, 100, 1, 50, 150, 250])
}

fn drawn_grant() -> impl Strategy<Value = DrawnGrant> {
    let limited = (units(), burst_percent())
        .prop_map(|(units, burst_percent)| DrawnGrant::Limited { units, burst_percent });
    prop_oneof![4 => limited, 1 => Just(DrawnGrant::Unlimited), 2 => Just(DrawnGrant::Banned)]
}

pub(super) fn shape() -> impl Strategy<Value = Shape> {
    let window_ms = prop_oneof![
        4 => prop::sample::select(vec![1, 2, 7, 100, 1_000, 60_000, DAY_MS, 366 * DAY_MS]),
        1 => 1..=366 * DAY_MS,
    ];
    let debt_percent =
        prop::sample::select(vec![None, None, Some(0), Some(50), Some(100), Some(1_000_000_000)]);
    let parts = (units(), window_ms, burst_percent(), debt_percent, any::<bool>());
    (0..Algorithm::RATES.len(), parts).prop_map(
        |(algorithm, (units, window_ms, burst_percent, debt_percent, at_first_use))| Shape {
            algorithm,
            units,
            window_ms,
            burst_percent,
            debt_percent,
            at_first_use,
        },
    )
}

fn step(rules: Rules) -> impl Strategy<Value = Step> {
    let advance = prop_oneof![
        2 => Just(Advance::Micros(0)),
        2 => (0..=3_000_u64).prop_map(Advance::Micros),
        4 => (0..=1_200_u64).prop_map(Advance::Window),
        1 => (1_200..=4_000_u64).prop_map(Advance::Window),
        4 => any::<bool>().prop_map(|too_early| Advance::LastWait { too_early }),
        // A step back may revive a state that has expired, unless it was swept already. A changed
        // rule could tell the difference.
        1 => (0..=1_000_u64).prop_map(move |thousandths| match rules {
            Rules::Stay => Advance::Back(thousandths),
            Rules::Change | Rules::Overridable => Advance::Window(thousandths),
        }),
    ];
    let cost = prop_oneof![
        6 => Just(Cost::Units(1)),
        1 => Just(Cost::Units(0)),
        2 => (2..=5_u32).prop_map(Cost::Units),
        1 => Just(Cost::Units(u32::MAX)),
        4 => (1..=101_u64).prop_map(Cost::Share),
    ];
    let verb = prop_oneof![7 => Just(Verb::Take), 2 => Just(Verb::Look), 3 => Just(Verb::Report)];
    let requests = prop::collection::vec((cost, verb), 1..=4);
    let rule = match rules {
        Rules::Stay | Rules::Overridable => Just(None).boxed(),
        Rules::Change => prop::option::weighted(0.05, shape()).boxed(),
    };
    (advance, rule, requests).prop_map(|(advance, rule, requests)| Step {
        advance,
        refunds: None,
        admin: None,
        rule,
        requests,
    })
}

/// Whether rules change while states exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    Stay,
    Change,
    /// They stay, and obey overrides of single keys.
    Overridable,
}

pub(super) fn case(rules: Rules) -> impl Strategy<Value = DifferentialCase> {
    (shape(), prop::collection::vec(step(rules), 1..=80)).prop_map(move |(rule, steps)| {
        let overridable = rules == Rules::Overridable;
        DifferentialCase { rule, more: Vec::new(), overridable, by_file: None, steps }
    })
}

/// Generates cases with two to four rules on each request.
pub(super) fn case_of_many(rules: Rules) -> impl Strategy<Value = DifferentialCase> {
    let modes = prop_oneof![3 => Just(Mode::Enforced), 1 => Just(Mode::Shadow)];
    let more = prop::collection::vec((shape(), modes), 1..=3);
    (shape(), more, prop::collection::vec(step(rules), 1..=40)).prop_map(
        move |(rule, more, steps)| {
            let overridable = rules == Rules::Overridable;
            DifferentialCase { rule, more, overridable, by_file: None, steps }
        },
    )
}

/// Adds occasional refunds to the steps of a case.
pub(super) fn with_refunds(
    case: impl Strategy<Value = DifferentialCase>,
) -> impl Strategy<Value = DifferentialCase> {
    let which = prop::option::weighted(0.4, any::<Index>());
    (case, prop::collection::vec(which, 80)).prop_map(|(mut case, refunds)| {
        for (step, refunds) in case.steps.iter_mut().zip(refunds) {
            step.refunds = refunds;
        }
        case
    })
}

/// Adds changes by an administrator to the steps of a case.
pub(super) fn with_admin(
    case: impl Strategy<Value = DifferentialCase>,
) -> impl Strategy<Value = DifferentialCase> {
    let units = prop_oneof![4 => 1..=10_u32, 1 => 1..=u32::MAX];
    let change = prop_oneof![
        1 => Just(AdminChange::Inspect),
        2 => Just(AdminChange::Reset),
        3 => units.prop_map(AdminChange::Refund),
    ];
    let change = prop::option::weighted(0.4, (0..4_usize, change));
    (case, prop::collection::vec(change, 80)).prop_map(|(mut case, changes)| {
        for (step, change) in case.steps.iter_mut().zip(changes) {
            step.admin = change;
        }
        case
    })
}

/// Sets and clears overrides of keys at the steps of a case, and moves the clock to their ends.
pub(super) fn with_overrides(
    case: impl Strategy<Value = DifferentialCase>,
) -> impl Strategy<Value = DifferentialCase> {
    let kinds = vec![OverrideKind::Both, OverrideKind::Ban, OverrideKind::Grant];
    let set = (drawn_grant(), 1..=4_000_u64);
    let change = prop_oneof![
        5 => set.prop_map(|(grant, thousandths)| AdminChange::SetOverride(grant, thousandths)),
        2 => prop::sample::select(kinds).prop_map(AdminChange::ClearOverride),
        1 => Just(AdminChange::Inspect),
        1 => Just(AdminChange::Reset),
        1 => (1..=10_u32).prop_map(AdminChange::Refund),
    ];
    let change = prop::option::weighted(0.4, (0..4_usize, change));
    let end = prop::option::weighted(0.2, any::<bool>());
    let by_file = prop::option::weighted(0.4, drawn_grant());
    (case, by_file, prop::collection::vec((change, end), 80)).prop_map(
        |(mut case, by_file, changes)| {
            case.by_file = by_file;
            for (step, (change, end)) in case.steps.iter_mut().zip(changes) {
                step.admin = change;
                if let Some(too_early) = end {
                    step.advance = Advance::OverrideEnd { too_early };
                }
            }
            case
        },
    )
}
