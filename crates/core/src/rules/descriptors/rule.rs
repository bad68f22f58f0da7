//! A rule of a tree, and its metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::algorithm::{Algorithm, Limit, Window};
use crate::rules::{Coupling, Grant, HoldTerms, Mode, OnStoreFailure, RuleInfo, SetMode, Share};

/// A rule of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct DescriptorRule {
    /// Name in metrics: the path as configured ([`label`](super::label)).
    pub name: Arc<str>,
    /// Name of the limit, for responses and for `replaces` of other rules.
    pub limit_name: Option<Arc<str>>,
    /// Algorithm that decides.
    pub algorithm: Algorithm,
    /// Units that the rule grants.
    pub grant: Grant,
    /// Whether the rule is enforced, at this time.
    pub mode: Mode,
    /// Set if `mode` is not that of the configuration.
    pub set_mode: Option<SetMode>,
    /// Policy for the time when the store fails.
    pub on_store_failure: OnStoreFailure,
    /// Whether requests pass while the circuit breaker of the store is open.
    pub breaker_opens: bool,
    /// Part of the limit from which a key is near it. `None`: never.
    pub near_limit: Option<Share>,
    /// Names of the limits that do not apply to requests to which this rule applies.
    pub replaces: Vec<Arc<str>>,
    /// Window of the limit; set for a limit of 0 too.
    pub window: Window,
    /// Whether overrides and bans of single keys can be set at run time.
    pub overridable: bool,
    /// Whether metrics have the values of requests.
    pub is_detailed: bool,
    /// Whether hits are reports of costs that were incurred already, counted even if too few units
    /// are left.
    pub is_post_paid: bool,
    /// Set if reservations hold units, which are charged when they are settled. The limit then keeps debt.
    pub holds: Option<HoldTerms>,
    /// Most units of debt. `None`: as many as the algorithm keeps if costs come later, else the units per
    /// window.
    pub max_debt: Option<u64>,
    /// Metadata for callers.
    pub metadata: Option<Arc<Metadata>>,
    /// File of the rule, for messages. Empty if there is none.
    pub file: Arc<str>,
}

impl DescriptorRule {
    /// Creates the rule that stands for limits of requests.
    pub(crate) fn for_domain(domain: &str) -> Self {
        let limit = Limit::new(1, Limit::MAX_WINDOW).expect("a valid limit");
        Self {
            name: domain.into(),
            limit_name: None,
            algorithm: Algorithm::FixedWindow,
            grant: Grant::Limited(limit),
            mode: Mode::Enforced,
            set_mode: None,
            on_store_failure: OnStoreFailure::Error,
            breaker_opens: false,
            near_limit: None,
            replaces: Vec::new(),
            window: limit.windows(),
            overridable: false,
            is_detailed: false,
            is_post_paid: false,
            holds: None,
            max_debt: None,
            metadata: None,
            file: Arc::default(),
        }
    }

    /// Returns the data that rules of both kinds have.
    pub fn info(&self) -> RuleInfo<'_> {
        RuleInfo {
            name: &self.name,
            algorithm: self.algorithm,
            mode: self.mode,
            set_mode: self.set_mode,
            on_store_failure: self.on_store_failure,
            breaker_opens: self.breaker_opens,
            overridable: self.overridable,
            near_limit: self.near_limit,
            notify_at: &[],
        }
    }

    /// Returns the grant with debt, if hits of this rule are reports or costs come later.
    ///
    /// With [`Coupling::EachAlone`] every hit on a fixed window is a report, as in
    /// envoyproxy/ratelimit. With other algorithms repeated requests would extend their own denial
    /// without end.
    pub(super) fn with_debt(&self, grant: Grant, coupling: Coupling) -> Grant {
        let Grant::Limited(limit) = grant else { return grant };
        let is_counter = self.algorithm == Algorithm::FixedWindow;
        let comes_later = self.is_post_paid || self.holds.is_some();
        if !(comes_later || is_counter && coupling == Coupling::EachAlone) {
            return grant;
        }
        // What is paid for later must be paid in full, however late: a ceiling of one limit would let
        // who overspends pay for one limit only.
        let unless_set = (!comes_later).then(|| limit.units());
        Grant::Limited(self.algorithm.with_debt(limit, self.max_debt.or(unless_set)))
    }
}

/// Metadata of a rule: values by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(pub BTreeMap<String, MetadataValue>);

/// A value of metadata, as in JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A finite number.
    Number(f64),
    /// A string.
    Text(String),
    /// Values in order.
    List(Vec<Self>),
    /// Values by name.
    Map(Metadata),
}

/// Numbers are finite, so equality is reflexive.
impl Eq for MetadataValue {}

impl Metadata {
    /// Adds the names of `other` that are missing here, recursively for maps that both have.
    pub fn merge(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            match (self.0.get_mut(name), value) {
                (None, value) => {
                    self.0.insert(name.clone(), value.clone());
                }
                (Some(MetadataValue::Map(own)), MetadataValue::Map(other)) => own.merge(other),
                (Some(_), _) => {}
            }
        }
    }
}
