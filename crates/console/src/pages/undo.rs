//! The way back from the last change of the rules of a project: a link to the revision before it, which
//! shows what would change, and rolls back.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{Project, Revision};

use crate::action_words::revision_words;
use crate::calls::{field_of, last_revisions, project};
use crate::fields::{FormFields, Link};
use crate::text::foreign;
use crate::visit::Visitor;

/// The field of a query with the revision that a visitor has just made.
pub(super) const MADE: &str = "made";

/// The last change of the rules of a project, and what is before it.
#[derive(Debug)]
pub(super) struct Undo {
    project: String,
    newest: Revision,
    before: u64,
}

impl Undo {
    /// Returns the way back from the newest of these revisions, which are the last ones. `None` for
    /// visitors who may not go it, and before a second revision.
    pub(super) fn from_revisions(
        visitor: &Visitor,
        project: &Project,
        last: &[Revision],
    ) -> Option<Self> {
        let [newest, before, ..] = last else { return None };
        visitor.is_admin(&project.id).then(|| Self {
            project: project.id.clone(),
            newest: newest.clone(),
            before: before.revision,
        })
    }

    /// Returns the way back from the last change of a project.
    pub(super) async fn of_last(visitor: &Visitor, project: &Project) -> Option<Self> {
        let last = last_revisions(visitor, &project.id, 2).await.ok()?;
        Self::from_revisions(visitor, project, &last)
    }

    /// Returns the way back from the change that led to a page, unless another one has followed.
    pub(super) async fn of_made(visitor: &Visitor, id: &str, query: &FormFields) -> Option<Self> {
        let made = query.get(MADE).parse::<u64>().ok()?;
        let undo = Self::of_last(visitor, &project(visitor, id).await.ok()?).await?;
        (undo.newest.revision == made).then_some(undo)
    }

    /// Shows the link, and where it leads to.
    pub(super) fn render(&self) -> Markup {
        let Self { project, newest, before } = self;
        let back = Link::to("history").with("project", field_of(project));
        let back = back.with("revision", &before.to_string());
        let reason = format!("Undo of revision {}", newest.revision);
        html! {
            div.undo {
                a.button href=(back.with("reason", &reason)) { "Undo the last change" }
                p.hint {
                    "Revision " (newest.revision) " (" (revision_words(newest)) " by " (foreign(&newest.actor))
                    "). You see first what is in force afterwards: the rules of revision " (before) "."
                }
            }
        }
    }
}
