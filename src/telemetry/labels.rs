//! What metrics are told apart by.
//!
//! Labels are rule names and enums only: no label ever holds a user, a key or an address, so that
//! the configuration bounds the number of series, whatever clients send.

use prometheus_client::encoding::EncodeLabelSet;

/// What a decision comes to.
pub const OUTCOMES: [&str; 3] = ["allowed", "denied", "shadow_denied"];
/// Where decisions come from.
pub const SOURCES: [&str; 5] =
    ["store", "deny_cache", "fail_open", "fail_closed", "local_fallback"];
/// What a rule may say about a store that does not decide.
pub const POLICIES: [&str; 4] = ["error", "allow", "deny", "local"];
/// How the store fails, beside what Redis refuses.
pub const STORE_ERROR_KINDS: [&str; 8] = [
    "unreachable",
    "breaker_open",
    "overloaded",
    "expired",
    "timeout",
    "lost",
    "garbled",
    "window_missed",
];
/// How Redis refuses.
pub const REDIS_ERROR_KINDS: [&str; 12] = [
    "loading",
    "busy",
    "oom",
    "misconf",
    "noreplicas",
    "readonly",
    "clusterdown",
    "masterdown",
    "slot_moves",
    "auth",
    "noperm",
    "refused",
];

/// Fields and parts of requests that can be rejected as invalid.
pub const REQUEST_FIELDS: [&str; 13] = [
    "user_id",
    "resource",
    "attributes",
    "cost",
    "dry_run",
    "requests",
    "body",
    "domain",
    "descriptors",
    "hits_addend",
    "limit",
    "page_size",
    "page_token",
];
/// Why a call is refused.
pub const AUTH_REFUSALS: [&str; 2] = ["unauthenticated", "forbidden"];
/// Why a connection is not served.
pub const CONNECTION_REFUSALS: [&str; 3] = ["full", "address_full", "silent"];
/// APIs that have listeners of their own.
pub const LISTENERS: [&str; 2] = ["grpc", "http"];
/// APIs whose decisions are timed.
pub const APIS: [&str; 3] = ["grpc", "http", "envoy"];

/// Labels of a decision.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct DecisionLabels {
    /// Name of the rule.
    pub rule: String,
    /// Canonical name of its algorithm.
    pub algorithm: &'static str,
    /// `allowed` or `denied`.
    pub outcome: &'static str,
    /// Where the answer came from.
    pub source: &'static str,
}

/// Label of requests that no rule decides.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OutcomeLabels {
    /// `allowed` or `denied`.
    pub outcome: &'static str,
}

/// Label of an API.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ApiLabels {
    /// Which API.
    pub api: &'static str,
}

/// Label of a store operation.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OperationLabels {
    /// Which operation.
    pub operation: &'static str,
}

/// Label of a kind of failure.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct KindLabels {
    /// Which kind.
    pub kind: &'static str,
}

/// Label of a rule.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RuleLabels {
    /// Name of the rule.
    pub rule: String,
}

/// Labels of a decision by policy.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct DegradedLabels {
    /// Name of the rule.
    pub rule: String,
    /// What its policy is.
    pub policy: &'static str,
    /// What kind of failure it met.
    pub kind: &'static str,
}

/// Label of a certificate.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct CertificateLabels {
    /// Whose certificate: `server` or `client-ca`.
    pub certificate: &'static str,
}

/// Label of a reason.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReasonLabels {
    /// Which reason.
    pub reason: &'static str,
}
