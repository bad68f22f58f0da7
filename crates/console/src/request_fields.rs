//! The fields of a form that describe a request: user, resource, attributes and cost.

use std::collections::HashMap;

use maud::{Markup, html};
use rlaas_proto::ratelimit::v1::CheckRequest;

use super::fields::{FormFields, search_input};
use super::page_error::PageError;

/// The names of the fields. Attributes have a line each, such as `plan=pro`; without a cost it is 1.
pub(super) const REQUEST_FIELDS: [&str; 4] = ["user_id", "resource", "attributes", "cost"];

/// Returns the message of a request as a visitor typed it. The service checks its fields.
pub(super) fn request(fields: &FormFields) -> Result<CheckRequest, PageError> {
    let mut attributes = HashMap::new();
    for line in fields.get("attributes").lines().filter(|line| !line.trim().is_empty()) {
        let line = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let (name, value) = line.ok_or_else(|| {
            PageError::invalid("attributes must be lines of a name, = and a value")
        })?;
        if attributes.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(PageError::invalid("attributes must have each name once"));
        }
    }
    let cost = Some(fields.get("cost").trim()).filter(|cost| !cost.is_empty());
    let cost = cost.map(|cost| cost.parse::<u32>().ok().map(u64::from));
    let invalid = || PageError::invalid("cost must be 0 to 4294967295");
    Ok(CheckRequest {
        user_id: fields.get("user_id").to_owned(),
        resource: fields.get("resource").to_owned(),
        attributes,
        cost: cost.map(|cost| cost.ok_or_else(invalid)).transpose()?,
        ..CheckRequest::default()
    })
}

/// Shows the inputs but for the user id.
pub(super) fn further_inputs(fields: &FormFields) -> Markup {
    html! {
        (search_input("resource", "Resource", "text", fields.get("resource")))
        div {
            label for="attributes" { "Attributes (name=value)" }
            textarea id="attributes" name="attributes" rows="1" spellcheck="false"
                placeholder="a line each" {
                // The first line end of a text area is dropped.
                "\n" (fields.get("attributes"))
            }
        }
        (search_input("cost", "Cost (empty: 1)", "text", fields.get("cost")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Result<CheckRequest, PageError> {
        request(&FormFields::parse(text.as_bytes()).expect("fields"))
    }

    #[test]
    fn attributes_are_lines() {
        let text = "user_id=alice&cost=7&attributes=plan%3Dpro%0D%0A%0D%0A ip = 10.0.0.1%3Dx %0A";
        let request = typed(text).expect("a request");
        let expected = [("plan", "pro"), ("ip", "10.0.0.1=x")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(request.attributes, HashMap::from(expected));
        assert_eq!((&*request.user_id, request.cost), ("alice", Some(7)));
    }

    #[test]
    fn problems_name_their_field() {
        for (text, problem) in [
            ("attributes=plan", "attributes must be lines"),
            ("attributes=a%3D1%0Aa%3D2", "attributes must have each name once"),
            ("cost=-1", "cost must be"),
            ("cost=4294967296", "cost must be"),
        ] {
            let error = typed(text).expect_err(problem);
            assert!(error.problem.starts_with(problem), "{}", error.problem);
        }
    }
}
