//! The pages: each gathers what it shows by an operation of [`crate::api::admin`], and renders it.

pub(super) mod audit;
pub(super) mod change;
pub(super) mod history;
pub(super) mod instances;
pub(super) mod key;
pub(super) mod now;
pub(super) mod project;
pub(super) mod projects;
pub(super) mod rule;
pub(super) mod rules;

/// The first page.
pub(super) const HOME: &str = "now";
/// Every page that a sign-in may lead to.
pub(super) const ALL: &[&str] = &[
    "now",
    "instances",
    "rules",
    "rule",
    "key",
    "projects",
    "project",
    "change",
    "history",
    "audit",
];
