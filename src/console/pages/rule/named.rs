//! A rule of either kind, and where it comes from.

use std::sync::Arc;

use maud::{Markup, html};

use crate::console::ConsoleContext;
use crate::console::fields::{Link, UNNAMED};
use crate::console::text::foreign;
use crate::projects::ProjectId;
use crate::rules::descriptors::DescriptorRule;
use crate::rules::{Candidate, Grant, Rule, RuleInfo, RuleSet};

/// A rule of either kind.
#[derive(Clone, Copy, Debug)]
pub(in crate::console::pages) enum NamedRule<'a> {
    /// For requests by user, resource and attributes.
    Flat(&'a Rule),
    /// For requests of Envoy.
    Descriptor(&'a DescriptorRule),
}

/// The source of a rule.
#[derive(Clone, Debug)]
pub(in crate::console::pages) enum RuleSource {
    BuiltIn,
    File(Arc<str>),
    /// A project, by an administrator.
    RunTime(ProjectId),
}

impl<'a> NamedRule<'a> {
    /// Returns the rule with this name.
    pub(super) fn find(rules: &'a RuleSet, name: &str) -> Option<Self> {
        let flat = rules.iter().find(|rule| *rule.name == *name).map(Self::Flat);
        let every = || rules.descriptors().every().find(|rule| *rule.name == *name);
        flat.or_else(|| every().map(Self::Descriptor))
    }

    pub(in crate::console::pages) fn info(self) -> RuleInfo<'a> {
        match self {
            Self::Flat(rule) => rule.info(),
            Self::Descriptor(rule) => rule.info(),
        }
    }

    pub(in crate::console::pages) fn grant(self) -> Grant {
        match self {
            Self::Flat(rule) => rule.grant,
            Self::Descriptor(rule) => rule.grant,
        }
    }

    pub(super) fn candidates(self) -> &'a [Candidate] {
        match self {
            Self::Flat(rule) => &rule.candidates,
            Self::Descriptor(_) => &[],
        }
    }
}

impl RuleSource {
    pub(in crate::console::pages) fn new(
        console: &ConsoleContext,
        project: &ProjectId,
        rule: NamedRule<'_>,
    ) -> Self {
        let rule = match rule {
            NamedRule::Flat(rule) => rule,
            NamedRule::Descriptor(rule) => return Self::File(Arc::clone(&rule.file)),
        };
        let files = console.projects.files_beside(project);
        if &*rule.name == Rule::DEFAULT {
            Self::BuiltIn
        } else if files.is_some_and(|files| files.has_rule(&rule.name)) {
            Self::File(Arc::clone(&rule.file))
        } else {
            Self::RunTime(project.clone())
        }
    }

    pub(in crate::console::pages) fn render(&self) -> Markup {
        html! {
            @match self {
                Self::BuiltIn => "built in",
                Self::File(file) if file.is_empty() => "the configuration",
                Self::File(file) => (foreign(file)),
                Self::RunTime(project) => {
                    @let id = if project.is_unnamed() { UNNAMED } else { project.as_str() };
                    "run time, " a href=(Link::to("change").with("project", id)) { "change" }
                }
            }
        }
    }
}
