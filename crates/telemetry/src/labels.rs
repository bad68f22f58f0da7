//! Labels of metrics.
//!
//! Their values are names of rules and projects, at most 1,000 of each or as many as
//! `telemetry.projects` says, and fixed words; never a user, a key or an address. So the number of
//! series is bounded whatever clients send and however many rules there are.

use prometheus_client::encoding::EncodeLabelSet;

/// Outcomes of decisions. `near_limit` is allowed near the limit, of rules with `near-limit`.
pub const OUTCOMES: [&str; 4] = ["allowed", "near_limit", "denied", "shadow_denied"];
/// Sources of decisions.
pub const SOURCES: [&str; 5] =
    ["store", "deny_cache", "fail_open", "fail_closed", "local_fallback"];
/// Policies of rules for a failure of the store (`on-store-failure`).
pub const POLICIES: [&str; 4] = ["error", "allow", "deny", "local"];
/// Kinds of store failures, other than errors from Redis.
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
/// Kinds of errors from Redis.
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

/// Fields of requests that can be rejected as invalid.
pub const REQUEST_FIELDS: [&str; 21] = [
    "user_id",
    "resource",
    "attributes",
    "cost",
    "costs",
    "at_least",
    "actual",
    "actuals",
    "ttl",
    "reservation_id",
    "dry_run",
    "request_id",
    "requests",
    "body",
    "domain",
    "descriptors",
    "hits_addend",
    "actual_amount",
    "limit",
    "page_size",
    "page_token",
];
/// Reasons why a call is not authorised. Those of API keys begin with `api_key_`, those of an issuer's
/// tokens with `oidc_`.
pub const AUTH_REFUSALS: [&str; 21] = [
    "unauthenticated",
    "forbidden",
    "api_key_missing",
    "api_key_disagrees",
    "api_key_malformed",
    "api_key_checksum",
    "api_key_unknown",
    "api_key_expired",
    "api_key_revoked",
    "api_key_unavailable",
    "oidc_malformed",
    "oidc_algorithm",
    "oidc_unknown_key",
    "oidc_claims",
    "oidc_issuer",
    "oidc_audience",
    "oidc_expired",
    "oidc_not_yet_valid",
    "oidc_signature",
    "oidc_nonce",
    "oidc_keys_unavailable",
];
/// Reasons why a connection is rejected.
pub const CONNECTION_REFUSALS: [&str; 3] = ["full", "address_full", "silent"];
/// Reasons why no rule decides a request as it asks: `rule` is that of rules with conditions, the others are
/// those of Envoy's requests. `own_limit`: rules of a project decide, and not the request's limit.
pub const UNMATCHED_REASONS: [&str; 6] =
    ["rule", "domain", "descriptor", "no_entry", "unknown_project", "own_limit"];
/// Protocols with listeners of their own.
pub const LISTENERS: [&str; 2] = ["grpc", "http"];
/// APIs in the metric of durations.
pub const APIS: [&str; 3] = ["grpc", "http", "envoy"];

/// Labels of a decision.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct DecisionLabels {
    /// Name of the rule.
    pub rule: String,
    /// Canonical name of its algorithm.
    pub algorithm: &'static str,
    /// One of [`OUTCOMES`].
    pub outcome: &'static str,
    /// One of [`SOURCES`].
    pub source: &'static str,
}

/// Labels of requests that no rule decides as they ask.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OutcomeLabels {
    /// `allowed` or `denied`.
    pub outcome: &'static str,
    /// The reason, one of [`UNMATCHED_REASONS`].
    pub reason: &'static str,
}

/// Label of the calls for reservations, and of the rules of a management server.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EventLabels {
    /// `reserved`, `denied`, `extended`, `committed` or `cancelled`; `accepted` or `refused`.
    pub event: &'static str,
}

/// Labels of the requests of a project.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ProjectLabels {
    /// Id of the project, or `other`; empty for requests without one.
    pub project: String,
    /// What became of the requests.
    pub outcome: &'static str,
}

/// Label of an API.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ApiLabels {
    /// One of [`APIS`] or [`LISTENERS`].
    pub api: &'static str,
}

/// Label of a store operation.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OperationLabels {
    /// `check` or `give_back`.
    pub operation: &'static str,
}

/// Label of a kind of failure.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct KindLabels {
    /// One of [`STORE_ERROR_KINDS`] or [`REDIS_ERROR_KINDS`].
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
    /// One of [`POLICIES`].
    pub policy: &'static str,
    /// One of [`STORE_ERROR_KINDS`] or [`REDIS_ERROR_KINDS`].
    pub kind: &'static str,
}

/// Label of a certificate.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct CertificateLabels {
    /// `server` or `client-ca`.
    pub certificate: &'static str,
}

/// Label of a reason.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReasonLabels {
    /// The reason.
    pub reason: &'static str,
}
