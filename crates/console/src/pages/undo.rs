//! The way back from the last change of the rules of a project, in one step.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{Project, Revision};

use crate::action_words::revision_words;
use crate::calls::{field_of, last_revisions, project};
use crate::fields::FormFields;
use crate::form::{Field, FieldKind, Form, FormPlace};
use crate::layout::Frame;
use crate::text::foreign;
use crate::visit::Visitor;

/// The field of a query with the revision that a visitor has just made.
pub(super) const MADE: &str = "made";
const UNDO: Form = Form::new(
    "roll-back",
    "RollbackRequest",
    &[
        Field::PROJECT,
        Field::new("revision", "revision", FieldKind::HiddenNumber),
        // It lets a form be sent once, and undoes nothing that others have made since.
        Field::new("expected", "expected_revision", FieldKind::HiddenNumber),
        Field::new("reason", "reason", FieldKind::Hidden),
    ],
    "Undo the last change",
);

/// The last change of the rules of a project, and what is before it.
#[derive(Debug)]
pub(super) struct Undo {
    project: String,
    /// Revision of the project that the visitor has seen.
    seen: u64,
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
            seen: project.revision,
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

    /// Shows the button, and what it does.
    pub(super) fn render(&self, frame: &Frame) -> Markup {
        let Self { project, seen, newest, before } = self;
        let [seen, before_text] = [seen, before].map(u64::to_string);
        let reason = format!("Undo of revision {}", newest.revision);
        let values = [
            ("project", field_of(project)),
            ("revision", &before_text),
            ("expected", &seen),
            ("reason", &reason),
        ];
        let place = FormPlace { frame, prefix: "undo-", values: &values, refused: None };
        html! {
            div.undo {
                (UNDO.render("", &place))
                p.hint {
                    "Revision " (newest.revision) " (" (revision_words(newest)) " by " (foreign(&newest.actor))
                    ") is undone: the rules of revision " (before)
                    " come into force again, as a new revision."
                }
            }
        }
    }
}
