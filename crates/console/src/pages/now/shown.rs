//! Of when and of which instances decisions are shown, in all pages that show decisions in time.

use maud::{Markup, html};
use prost_types::Timestamp;
use rlaas_proto::ratelimit::admin::v1::Coverage;

use crate::decisions::PointsCoverage;
use crate::fields::Link;
use crate::page_error::PageError;
use crate::text::{number, time};

/// The decisions that a page shows.
#[derive(Clone, Copy, Debug)]
pub(in crate::pages) struct Shown<'a> {
    /// Whether they are those of this instance.
    pub(in crate::pages) of_instance: bool,
    /// End of the newest point.
    pub(in crate::pages) until: Option<Timestamp>,
    /// Instances of the points.
    pub(in crate::pages) coverage: &'a PointsCoverage,
    /// Whether instances are shown.
    pub(in crate::pages) has_instances: bool,
    /// Name of the store.
    pub(in crate::pages) store: &'a str,
}

impl Shown<'_> {
    /// Links to what all instances, and this one, have decided; nothing if they are the same.
    pub(in crate::pages) fn scopes(&self, link: impl Fn(bool) -> Link) -> Markup {
        let scopes = [(false, "All instances"), (true, "This instance")];
        html! {
            @if self.has_instances && self.store != "memory" {
                nav.tabs aria-label="Instances" {
                    ul {
                        @for (of_instance, name) in scopes {
                            @let is_chosen = of_instance == self.of_instance;
                            li { a href=(link(of_instance)) aria-current=[is_chosen.then_some("true")] { (name) } }
                        }
                    }
                }
            }
        }
    }

    /// Says of when and of which instances the numbers are.
    pub(in crate::pages) fn as_of(&self, reload: &Link) -> Markup {
        let PointsCoverage { newest: Coverage { instances, missing }, incomplete } = self.coverage;
        let (counted, missing) = (instances.len() as u64, missing.len() as u64);
        html! {
            p.hint.as-of {
                @match self.until {
                    Some(until) => { "As of " (time(Some(&until))) },
                    None => "The first numbers come within 10 s",
                }
                @if !self.has_instances {}
                @else if self.store == "memory" { ", of this instance only: the store is its memory" }
                @else if self.of_instance { ", of this instance only" }
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

/// Returns the value of the field for the decisions of this instance; that of all is left out.
pub(in crate::pages) const fn of_field(of_instance: bool) -> &'static str {
    if of_instance { "instance" } else { "" }
}

/// Reads the field.
pub(in crate::pages) fn of_instance(field: &str) -> Result<bool, PageError> {
    match field {
        "" | "fleet" => Ok(false),
        "instance" => Ok(true),
        _ => Err(PageError::invalid("of must be fleet or instance")),
    }
}
