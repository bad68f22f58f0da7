//! Of when and of which instances decisions are shown, in all pages that show decisions in time.

use std::sync::Arc;

use maud::{Markup, html};

use crate::admin::StatsScope;
use crate::clock::{Micros, Timestamp};
use crate::console::fields::Link;
use crate::console::page_error::PageError;
use crate::console::text::{number, time};
use crate::proto_values::timestamp;
use crate::telemetry::stats::{StatsCoverage, StatsPoint};

/// The time that is shown.
pub(in crate::console::pages) const SPAN: Micros = Micros::from_secs(15 * 60);
/// The same in words.
pub(in crate::console::pages) const SPAN_NAME: &str = "15 minutes";

/// The decisions that a page shows.
#[derive(Clone, Copy, Debug)]
pub(in crate::console::pages) struct Shown<'a> {
    pub(in crate::console::pages) scope: StatsScope,
    /// End of the newest point.
    pub(in crate::console::pages) until: Option<Timestamp>,
    /// Instances of the points.
    pub(in crate::console::pages) coverage: &'a PointsCoverage,
    /// Whether instances are shown.
    pub(in crate::console::pages) has_instances: bool,
    /// Name of the store.
    pub(in crate::console::pages) store: &'a str,
}

/// Instances that the points of a page cover.
#[derive(Clone, Debug, Default)]
pub(in crate::console::pages) struct PointsCoverage {
    /// Those of the newest point.
    pub(in crate::console::pages) newest: StatsCoverage,
    /// Number of points that lack an instance.
    incomplete: usize,
}

impl Shown<'_> {
    /// Links to what all instances, and this one, have decided; nothing if they are the same.
    pub(in crate::console::pages) fn scopes(&self, link: impl Fn(StatsScope) -> Link) -> Markup {
        let scopes =
            [(StatsScope::Fleet, "All instances"), (StatsScope::Instance, "This instance")];
        html! {
            @if self.has_instances && self.store != "memory" {
                nav.tabs aria-label="Instances" {
                    ul {
                        @for (scope, name) in scopes {
                            @let is_chosen = scope == self.scope;
                            li { a href=(link(scope)) aria-current=[is_chosen.then_some("true")] { (name) } }
                        }
                    }
                }
            }
        }
    }

    /// Says of when and of which instances the numbers are.
    pub(in crate::console::pages) fn as_of(&self, reload: &Link) -> Markup {
        let PointsCoverage { newest: StatsCoverage { instances, missing }, incomplete } =
            self.coverage;
        let (counted, missing) = (instances.len() as u64, missing.len() as u64);
        html! {
            p.hint.as-of {
                @match self.until {
                    Some(until) => { "As of " (time(Some(&timestamp(until)))) },
                    None => "The first numbers come within 10 s",
                }
                @if !self.has_instances {}
                @else if self.store == "memory" { ", of this instance only: the store is its memory" }
                @else if self.scope == StatsScope::Instance { ", of this instance only" }
                @else if counted > 0 {
                    ", of " (number(counted)) @if counted == 1 { " instance" } @else { " instances" }
                    @if missing > 0 { "; " strong.bad { (number(missing)) " missing" } }
                    @if *incomplete > 0 {
                        "; " (number(*incomplete as u64)) " of the points of 10 s lack an instance"
                    }
                }
                ". Rates are of the last 10 s. " a href=(reload) { "Reload" }
            }
        }
    }
}

impl PointsCoverage {
    pub(in crate::console::pages) fn new(points: &[Arc<StatsPoint>]) -> Self {
        let lacks = |point: &&Arc<StatsPoint>| !point.coverage.missing.is_empty();
        Self {
            newest: points.last().map(|point| point.coverage.clone()).unwrap_or_default(),
            incomplete: points.iter().filter(lacks).count(),
        }
    }
}

/// Returns the value of the field that stands for a scope; the default is left out.
pub(in crate::console::pages) const fn scope_field(scope: StatsScope) -> &'static str {
    match scope {
        StatsScope::Fleet => "",
        StatsScope::Instance => "instance",
    }
}

/// Reads the field of a scope.
pub(in crate::console::pages) fn scope_of(field: &str) -> Result<StatsScope, PageError> {
    match field {
        "" | "fleet" => Ok(StatsScope::Fleet),
        "instance" => Ok(StatsScope::Instance),
        _ => Err(PageError::invalid("of must be fleet or instance")),
    }
}
