//! The id that a visitor looks for: by a request that has it, or by the id of a key.

use rlaas_proto::ratelimit::admin::v1::selector::Whose;
use rlaas_proto::ratelimit::admin::v1::{KeyRef, Selector};

use crate::calls::id_of;
use crate::fields::{FieldError, FormFields, Link};
use crate::page_error::PageError;
use crate::request_fields::TypedRequest;
use crate::visit::Visitor;

/// A search for a key: the fields of the form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeySearch {
    /// Empty or `_`: that of the rules in files.
    pub(super) project: String,
    /// Empty: every rule that the request meets.
    pub(super) rule: String,
    /// Id of a key of the rule, in place of a request.
    pub(super) id: String,
    pub(super) request: TypedRequest,
}

impl KeySearch {
    pub(super) fn parse(fields: &FormFields) -> Result<Self, FieldError> {
        let field = |name| fields.one(name).map(str::to_owned);
        Ok(Self {
            project: field("project")?,
            rule: field("rule")?,
            id: field("id")?,
            request: TypedRequest::parse(fields)?,
        })
    }

    /// Returns `true` if there is something to look for.
    pub(super) fn is_given(&self) -> bool {
        !self.id.is_empty() || !self.request.is_empty()
    }

    /// Fills in the project of a visitor who has a role for some projects only.
    pub(super) fn with_project_of(self, visitor: &Visitor) -> Self {
        let is_chosen = !self.project.is_empty() || visitor.sees_instances();
        let first = visitor.first_project().filter(|_| !is_chosen);
        Self { project: first.unwrap_or(self.project), ..self }
    }

    /// Returns the id of the project.
    pub(super) fn project_id(&self) -> &str {
        id_of(&self.project)
    }

    /// Returns the keys that are looked for.
    pub(super) fn selector(&self) -> Result<Selector, PageError> {
        let whose = if self.id.is_empty() {
            Whose::Request(self.request.message()?)
        } else {
            Whose::Key(KeyRef { id: self.id.clone(), ..KeyRef::default() })
        };
        let project_id = self.project_id().to_owned();
        Ok(Selector { whose: Some(whose), rule: self.rule.clone(), project_id })
    }

    /// Returns the link to what is found.
    pub(super) fn link(&self) -> Link {
        let link = Link::to("key").with("project", &self.project);
        let link = self.request.added_to(link);
        link.with("rule", &self.rule).with("id", &self.id)
    }

    /// Returns the fields in visible characters. A text field of a browser would change line ends and
    /// NUL.
    pub(super) fn encoded(&self) -> String {
        let link = self.link();
        link.as_str().split_once('?').map(|(_, query)| query.to_owned()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_id_survives_a_form() {
        let search = KeySearch {
            project: "shop".to_owned(),
            id: "\0\r\n\u{202e}%&=".to_owned(),
            ..KeySearch::default()
        };
        let fields = FormFields::parse(search.encoded().as_bytes()).expect("fields");
        assert_eq!(KeySearch::parse(&fields), Ok(search));
        assert_eq!(KeySearch::default().encoded(), "");
    }
}
