//! The API keys of a project: a list with a form for each, and a form for a new one.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::api_key::State;
use rlaas_proto::ratelimit::admin::v1::{ApiKey, ListKeysRequest, ListKeysResponse};

use super::ProjectPage;
use super::forms::{CREATE_KEY, REVOKE_KEY, ROTATE_KEY, UPDATE_KEY};
use crate::calls::{READ_TIME, within};
use crate::form::{Form, FormPlace, attributes_of_text};
use crate::page_error::PageError;
use crate::table::Table;
use crate::text::{folded, foreign, or_dash, time};
use crate::visit::Visitor;

/// The API keys of a project.
#[derive(Debug, Default)]
pub(super) struct ListedKeys {
    keys: Vec<ApiKey>,
    /// What the service warns of, such as that keys are ignored.
    warning: Option<String>,
}

/// Lists the keys of a project.
pub(super) async fn list(visitor: &Visitor, id: &str) -> Result<ListedKeys, PageError> {
    let mut listed = ListedKeys::default();
    let (project_id, page_size) = (id.to_owned(), 1_000);
    let mut request = ListKeysRequest { project_id, page_size, ..ListKeysRequest::default() };
    loop {
        let page = visitor.projects().list_keys(within(READ_TIME, request.clone())).await?;
        let warning = page.metadata().get(rlaas_proto::WARNING).and_then(|text| text.to_str().ok());
        listed.warning = warning.map(str::to_owned);
        let ListKeysResponse { keys, next_page_token } = page.into_inner();
        listed.keys.extend(keys);
        if next_page_token.is_empty() {
            return Ok(listed);
        }
        request.page_token = next_page_token;
    }
}

impl ProjectPage {
    /// Returns the part of the page.
    pub(super) fn key_part(&self) -> Markup {
        let ListedKeys { keys, warning } = &self.keys;
        html! {
            h2 #keys { "API keys" }
            @if self.is_admin && warning.is_none() {
                @let refused = self.refused(&CREATE_KEY);
                details #new-key open[refused.is_some()] {
                    summary { "Create an API key" }
                    (CREATE_KEY.render("card narrow-form", &FormPlace {
                        frame: &self.frame,
                        prefix: "key-",
                        values: &[("project", self.id()), ("environment", "live")],
                        refused,
                    }))
                }
            }
            @if let Some(warning) = warning { p.notice { (foreign(warning)) } }
            @else if keys.is_empty() {
                p.notice { "The project has no API key, so that no request is one of its own." }
            } @else { (self.key_table(keys)) }
        }
    }

    fn key_table(&self, keys: &[ApiKey]) -> Markup {
        let caption = "Newest first. Keys that have ended are listed for 40 days";
        let table = Table::<ApiKey>::new("API keys", caption)
            .text("Key", |key| html! { span id={ "key-" (key.id) } { (foreign(&key.id)) } })
            .text("State", state_text)
            .text("End", |key| or_dash(key.expires_at.as_ref().map(|end| time(Some(end)))))
            .text("Attributes", |key| folded(&key.attribute_words()))
            .text("Name", |key| folded(&key.display_name));
        let table =
            if self.is_admin { table.text("Change", |key| self.key_forms(key)) } else { table };
        let table = table
            .text("Environment", |key| foreign(&key.environment))
            .text("Created", |key| time(key.created_at.as_ref()))
            .text("Last use", |key| {
                html! {
                    @if key.last_used_at.is_some() { "in the hour from " (time(key.last_used_at.as_ref())) }
                    @else { span.muted { "never, or not known" } }
                }
            });
        table.rows(keys)
    }

    fn key_forms(&self, key: &ApiKey) -> Markup {
        let attributes = key.attribute_words();
        let refused =
            |form: &Form| self.refused(form).filter(|refused| refused.fields.get("key") == key.id);
        let render = |form: &Form, prefix: &str| {
            let prefix = format!("{prefix}-{}-", key.id);
            let values = [
                ("project", self.id()),
                ("key", &key.id),
                ("grace", "86400"),
                ("attributes", &attributes),
            ];
            let refused = refused(form);
            form.render(
                "",
                &FormPlace { frame: &self.frame, prefix: &prefix, values: &values, refused },
            )
        };
        let forms = [&UPDATE_KEY, &ROTATE_KEY, &REVOKE_KEY];
        let is_refused = forms.into_iter().any(|form| refused(form).is_some());
        let is_open = is_refused || self.shown_key == key.id;
        html! {
            @if key.state() == State::Active {
                details id={ "change-" (key.id) } open[is_open] {
                    summary { "Change, revoke or replace" span.hidden-text { " " (foreign(&key.id)) } }
                    @if attributes_of_text(&attributes).as_ref() == Some(&key.attributes) {
                        (render(&UPDATE_KEY, "update"))
                    } @else { p.hint { "Its attributes are changed by the command line: rlaas key set." } }
                    (render(&REVOKE_KEY, "revoke"))
                    @if key.replaced_by.is_empty() { (render(&ROTATE_KEY, "rotate")) }
                }
            }
        }
    }
}

/// Shows the state of a key.
pub(in crate::pages) fn state_text(key: &ApiKey) -> Markup {
    let tone = match key.state() {
        State::Active => "good",
        State::Revoked => "bad",
        State::Expired | State::Unspecified => "muted",
    };
    html! {
        span class=(tone) { (key.state_word()) }
        @if key.revoked_at.is_some() { " " (time(key.revoked_at.as_ref())) }
        @if !key.replaced_by.is_empty() { br; span.muted { "replaced by " (foreign(&key.replaced_by)) } }
    }
}
