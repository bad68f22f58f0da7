//! The fields of a form that describe a request: user, resource and attributes.

use std::collections::HashMap;

use maud::{Markup, html};
use rlaas_proto::ratelimit::v1::CheckRequest;

use super::fields::{FieldError, FormFields, Link};
use super::page_error::PageError;

/// A request as a visitor typed it. Not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TypedRequest {
    pub(super) user_id: String,
    pub(super) resource: String,
    /// A line for each attribute, such as `plan=pro`.
    pub(super) attributes: String,
    /// Units; empty for one.
    pub(super) cost: String,
}

/// The attributes of a request by name.
type TypedAttributes = HashMap<String, String>;

impl TypedRequest {
    pub(super) fn parse(fields: &FormFields) -> Result<Self, FieldError> {
        let field = |name| fields.one(name).map(str::to_owned);
        Ok(Self {
            user_id: field("user_id")?,
            resource: field("resource")?,
            attributes: field("attributes")?,
            cost: field("cost")?,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the fields to a link.
    pub(super) fn added_to(&self, link: Link) -> Link {
        let link = link.with("user_id", &self.user_id).with("resource", &self.resource);
        link.with("attributes", &self.attributes).with("cost", &self.cost)
    }

    /// Reads the attributes.
    fn attributes(&self) -> Result<TypedAttributes, PageError> {
        let mut attributes = TypedAttributes::new();
        for line in self.attributes.lines().filter(|line| !line.trim().is_empty()) {
            let line = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
            let (name, value) = line.ok_or_else(|| {
                PageError::invalid("attributes must be lines of a name, = and a value")
            })?;
            if attributes.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(PageError::invalid("attributes must have each name once"));
            }
        }
        Ok(attributes)
    }

    /// Returns the message of the request. The service checks its fields.
    pub(super) fn message(&self) -> Result<CheckRequest, PageError> {
        let cost = Some(self.cost.trim()).filter(|cost| !cost.is_empty());
        let cost = cost.map(|cost| cost.parse::<u32>().ok().map(u64::from));
        let invalid = || PageError::invalid("cost must be 0 to 4294967295");
        Ok(CheckRequest {
            user_id: self.user_id.clone(),
            resource: self.resource.clone(),
            attributes: self.attributes()?,
            cost: cost.map(|cost| cost.ok_or_else(invalid)).transpose()?,
            ..CheckRequest::default()
        })
    }

    /// Shows the inputs.
    pub(super) fn inputs(&self) -> Markup {
        html! {
            div {
                label for="user_id" { "User id" }
                input id="user_id" name="user_id" value=(self.user_id) autocomplete="off" spellcheck="false";
            }
            div {
                label for="resource" { "Resource" }
                input id="resource" name="resource" value=(self.resource) autocomplete="off" spellcheck="false";
            }
            div {
                label for="attributes" { "Attributes (name=value)" }
                textarea id="attributes" name="attributes" rows="1" spellcheck="false"
                    placeholder="a line each" {
                    // The first line end of a text area is dropped.
                    "\n" (self.attributes)
                }
            }
            div {
                label for="cost" { "Cost" }
                input id="cost" name="cost" value=(self.cost) placeholder="1" inputmode="numeric" autocomplete="off";
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(attributes: &str, cost: &str) -> TypedRequest {
        let (attributes, cost) = (attributes.to_owned(), cost.to_owned());
        TypedRequest { user_id: "alice".to_owned(), attributes, cost, ..TypedRequest::default() }
    }

    #[test]
    fn attributes_are_lines() {
        let typed = typed("plan=pro\r\n\r\n ip = 10.0.0.1=x \n", "7");
        let attributes = typed.attributes().expect("attributes");
        let expected = [("plan", "pro"), ("ip", "10.0.0.1=x")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(attributes, HashMap::from(expected));
        let request = typed.message().expect("a request");
        assert_eq!((&*request.user_id, request.cost), ("alice", Some(7)));
    }

    #[test]
    fn problems_name_their_field() {
        for (attributes, cost, problem) in [
            ("plan", "", "attributes must be lines"),
            ("a=1\na=2", "", "attributes must have each name once"),
            ("", "-1", "cost must be"),
            ("", "4294967296", "cost must be"),
        ] {
            let typed = typed(attributes, cost);
            let error = typed.message().expect_err(problem);
            assert!(error.problem.starts_with(problem), "{}", error.problem);
        }
    }
}
