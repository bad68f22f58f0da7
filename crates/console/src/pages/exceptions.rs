//! Exceptions: the bans and other limits of keys in force, and their end.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::admin::v1::{
    ClearOverrideRequest, KeyOverride, KeyRef, ListOverridesRequest, OverrideKind, Selector,
};

use super::key::choices::{self, Choices};
use crate::calls::{
    CHANGE_TIME, EVERY_PROJECT, READ_TIME, everywhere, field_of, id_of, warning, within,
};
use crate::fields::{FormFields, Link};
use crate::form::{Field, Form, FormPlace, RefusedForm};
use crate::layout::{Frame, failure};
use crate::page_error::PageError;
use crate::rule_words::{key_text, project_name, rule_link, units};
use crate::table::Table;
use crate::text::{folded, foreign, grouped, number, time};
use crate::visit::{Visit, Visitor};

/// Overrides after which a page ends.
const PAGE_SIZE: usize = 100;
/// Most calls for a page.
const MAX_CALLS: usize = 20;
/// The fields of a search. Empty ones limit nothing.
const SEARCH: [&str; 2] = ["project", "kind"];
const BAN: &str = "ban";
const GRANT: &str = "limit";
/// The button of an exception, whose value names it.
const END_IT: &str = "end";
const REASON: Field = Field::NEEDED_REASON;
static END: Form = Form::new("exceptions", "ClearOverrideRequest", &[REASON], "");

/// An override, or the bans of one key on several rules of a project.
type Exception = Vec<KeyOverride>;

/// A page of exceptions, and the token of the next one.
struct Exceptions {
    frame: Frame,
    search: FormFields,
    choices: Choices,
    found: Result<(Vec<Exception>, String), PageError>,
    refused: Option<RefusedForm>,
}

/// Shows the exceptions that a visitor looks for.
pub(crate) async fn show(visit: Visit) -> Response {
    let search = visit.fields.clone();
    respond(&visit, search, None).await
}

/// Ends an exception.
pub(crate) async fn end(visit: Visit) -> Response {
    let Visit { visitor, fields, .. } = &visit;
    let search = FormFields::parse(fields.get("search").as_bytes()).unwrap_or_default();
    match try_end(visitor, fields).await {
        Ok(outcome) => visitor.done(Link::like("exceptions", &search, &SEARCH), &outcome),
        Err(error) => {
            let refused = END.refused(fields.clone(), error);
            respond(&visit, search, Some(refused)).await
        }
    }
}

async fn respond(visit: &Visit, search: FormFields, refused: Option<RefusedForm>) -> Response {
    let choices = choices::read(visit, "");
    let (choices, found) = tokio::join!(choices, list(&visit.visitor, &search));
    let problem = refused.as_ref().map(|refused| &refused.error).or(found.as_ref().err());
    let status = problem.map_or(StatusCode::OK, |error| error.status);
    let frame = visit.frame("exceptions");
    let page = Exceptions { frame, search, choices, found, refused };
    visit.console.page(status, move || page.render()).await
}

async fn list(
    visitor: &Visitor,
    search: &FormFields,
) -> Result<(Vec<Exception>, String), PageError> {
    search.check()?;
    if !visitor.is_admin_of_all() && visitor.admin.projects.is_empty() {
        return Err(PageError::forbidden("admin"));
    }
    let kind = match search.get("kind") {
        "" => OverrideKind::Unspecified,
        BAN => OverrideKind::Ban,
        GRANT => OverrideKind::Grant,
        _ => return Err(PageError::invalid(format!("kind must be {BAN} or {GRANT}"))),
    };
    let project = search.get("project");
    let request = ListOverridesRequest {
        project_id: if project.is_empty() { EVERY_PROJECT } else { id_of(project) }.to_owned(),
        page_size: i32::try_from(PAGE_SIZE).unwrap_or_default(),
        page_token: search.get("page").to_owned(),
        kind: kind.into(),
        ..ListOverridesRequest::default()
    };
    let (found, next) = read(visitor, request, PAGE_SIZE).await?;
    Ok((by_key(found), next))
}

/// Reads overrides until there are enough: pages of the service may be empty. Returns the token of the
/// next page too.
async fn read(
    visitor: &Visitor,
    mut request: ListOverridesRequest,
    enough: usize,
) -> Result<(Vec<KeyOverride>, String), PageError> {
    let mut found = Vec::new();
    for _ in 0..MAX_CALLS {
        let page = visitor.admin().list_overrides(within(READ_TIME, request.clone())).await?;
        let page = page.into_inner();
        found.extend(page.overrides);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() || found.len() >= enough {
            break;
        }
    }
    Ok((found, request.page_token))
}

/// Returns the bans of a project.
async fn bans(visitor: &Visitor, project: &str) -> Result<Vec<KeyOverride>, PageError> {
    let request = ListOverridesRequest {
        project_id: project.to_owned(),
        page_size: 1_000,
        kind: OverrideKind::Ban.into(),
        ..ListOverridesRequest::default()
    };
    Ok(read(visitor, request, usize::MAX).await?.0)
}

/// Returns overrides by project and key, the bans of one key together, that which ends last first.
fn by_key(found: Vec<KeyOverride>) -> Vec<Exception> {
    let mut exceptions = BTreeMap::<_, Exception>::new();
    for entry in found {
        let parts = parts(&entry);
        let is_alone = !entry.is_ban() || parts.is_empty();
        let alone = is_alone.then(|| (entry.rule.clone(), id(&entry).to_owned(), entry.is_ban()));
        exceptions.entry((entry.project_id.clone(), parts, alone)).or_default().push(entry);
    }
    for bans in exceptions.values_mut() {
        let end = |ban: &KeyOverride| ban.expires_at.map(|at| at.seconds);
        bans.sort_by(|a, b| end(b).cmp(&end(a)).then_with(|| a.rule.cmp(&b.rule)));
    }
    exceptions.into_values().collect()
}

/// Returns the parts of a key by name: rules may have them in another order.
fn parts(entry: &KeyOverride) -> Vec<(String, Option<String>)> {
    let parts = entry.key.iter().flat_map(|key| &key.parts);
    let mut parts: Vec<_> = parts.map(|part| (part.name.clone(), part.value.clone())).collect();
    parts.sort_unstable();
    parts
}

fn id(entry: &KeyOverride) -> &str {
    entry.key.as_ref().map_or("", |key| &key.id)
}

/// Ends the exception of a button, on each of its rules, and returns what was done.
async fn try_end(visitor: &Visitor, fields: &FormFields) -> Result<String, PageError> {
    let button = FormFields::parse(fields.get(END_IT).as_bytes())?;
    let project = visitor.admin_in(&button)?;
    let typed: ClearOverrideRequest = END.message(fields)?;
    let kind = if button.get("kind") == BAN { OverrideKind::Ban } else { OverrideKind::Grant };
    let (rule, key) = (button.get("rule"), button.get("id"));
    let mut keys = vec![(rule.to_owned(), key.to_owned())];
    if !button.get("all").is_empty() {
        // By rule, since one call for all has a bound, and is for rules without the ban too.
        let all = by_key(bans(visitor, project).await?);
        let same =
            all.into_iter().find(|bans| bans.iter().any(|ban| ban.rule == rule && id(ban) == key));
        let gone = || PageError::not_found("the ban has ended by now: look at the list again");
        let same = same.ok_or_else(gone)?;
        keys = same.iter().map(|ban| (ban.rule.clone(), id(ban).to_owned())).collect();
    }
    let (mut said, mut failed, all) = (String::new(), None, keys.len());
    let mut ended = 0_usize;
    for (rule, id) in keys {
        let target = Some(Target::Key(KeyRef { id, ..KeyRef::default() }));
        let selector = Some(Selector { target, rule, project_id: project.to_owned() });
        let request = ClearOverrideRequest { selector, kind: kind.into(), ..typed.clone() };
        match visitor.admin().clear_override(within(CHANGE_TIME, request)).await {
            Ok(cleared) => {
                ended += 1;
                let change = cleared.get_ref().change.as_ref();
                let by = everywhere(change.and_then(|change| change.everywhere_by.as_ref()));
                let both = change.and_then(|change| {
                    change.after.first()?.change_words(change.before.first()?, units)
                });
                // Of several each has its own.
                let both = both.filter(|_| all == 1).map(|both| format!(": {both}"));
                let warning = warning(visitor, cleared.metadata());
                said = format!("{}.{by}{warning}", both.unwrap_or_default());
            }
            Err(status) => {
                let error = PageError::from(status);
                let is_away = error.status.is_server_error();
                failed = Some(error);
                if is_away {
                    break;
                }
            }
        }
    }
    match failed {
        None if all == 1 => Ok(format!("The exception of rule {rule} is ended{said}")),
        None => Ok(format!("The bans on {} rules are ended{said}", grouped(all as u64))),
        Some(error) if ended == 0 => Err(error),
        Some(error) => {
            Ok(format!("{ended} of {all} bans are ended; the others are not: {}", error.sentence()))
        }
    }
}

impl Exceptions {
    fn render(&self) -> Markup {
        let kinds = [("", "Bans and other limits"), (BAN, "Bans"), (GRANT, "Other limits")];
        let link = |page: &str| Link::like("exceptions", &self.search, &SEARCH).with("page", page);
        let content = html! {
            @if let Some(refused) = &self.refused { (refused.notice()) }
            form.row method="get" action="exceptions" role="search" {
                (self.choices.project(self.search.get("project")))
                div {
                    label for="kind" { "Kind" }
                    select id="kind" name="kind" {
                        @for (value, text) in kinds {
                            option value=(value) selected[value == self.search.get("kind")] { (text) }
                        }
                    }
                }
                button.primary { "Show" }
            }
            @match &self.found {
                Err(error) => (failure(&error.sentence())),
                Ok((found, next)) => {
                    @if found.is_empty() {
                        p.notice { @if next.is_empty() { "No ban or other limit is in force." } @else { "None on this page." } }
                    } @else { (self.form(found)) }
                    @if !next.is_empty() { p { a rel="next" href=(link(next)) { "More exceptions" } } }
                    @if !self.search.get("page").is_empty() { p { a href=(link("")) { "First page" } } }
                }
            }
        };
        self.frame.page("Exceptions", &content)
    }

    /// Shows the table in the form of its buttons: one reason for whichever is used.
    fn form(&self, found: &[Exception]) -> Markup {
        let link = Link::like("exceptions", &self.search, &SEARCH);
        let values = [(REASON.name, "ended in the console")];
        let refused = self.refused.as_ref();
        let place = FormPlace { frame: &self.frame, prefix: "end-", values: &values, refused };
        html! {
            form method="post" action="exceptions" {
                (self.frame.secret())
                // The return key in the field must not use the first button of the table.
                button disabled hidden {}
                input type="hidden" name="search" value=(link.query());
                div.narrow-form { (REASON.render(&place)) }
                (table(found))
            }
        }
    }
}

fn table(found: &[Exception]) -> Markup {
    let caption = "Bans and other limits in force, by project and key";
    let table = Table::<Exception>::new("exceptions", caption)
        .text("Key", |exception| key_link(&exception[0]))
        .text("Rule", rules)
        .text("Project", |exception| project_name(&exception[0].project_id))
        .text("What", |exception| what(&exception[0]))
        .text("Ends", |exception| html! { span.until { (time(exception[0].expires_at.as_ref())) } })
        .wide("Why", |exception| folded(&exception[0].reason))
        .text("Who", |exception| foreign(&exception[0].actor))
        .text("End", end_button);
    table.rows(found)
}

fn key_link(entry: &KeyOverride) -> Markup {
    let link = Link::to("key").with("project", field_of(&entry.project_id));
    html! {
        a href=(link.with("rule", &entry.rule).with("id", id(entry))) {
            (key_text(&entry.key.clone().unwrap_or_default()))
        }
    }
}

fn rules(exception: &Exception) -> Markup {
    let link = |entry: &KeyOverride| rule_link(&entry.project_id, &entry.rule);
    html! {
        @if let [entry] = &**exception { (link(entry)) } @else {
            details {
                summary { (number(exception.len() as u64)) " rules" }
                @for entry in exception { div { (link(entry)) " until " (time(entry.expires_at.as_ref())) } }
            }
        }
    }
}

fn what(entry: &KeyOverride) -> Markup {
    let words = entry.grant.unwrap_or_default().words(units);
    html! { @if entry.is_ban() { span.bad { (words) } } @else { (words) } }
}

fn end_button(exception: &Exception) -> Markup {
    let (first, is_group) = (&exception[0], exception.len() > 1);
    let kind = if first.is_ban() { BAN } else { GRANT };
    let value = Link::to("").with("project", field_of(&first.project_id)).with("rule", &first.rule);
    let value = value.with("id", id(first)).with("kind", kind);
    let value = value.with("all", if is_group { "1" } else { "" });
    html! {
        button.nowrap name=(END_IT) value=(value.query()) {
            @if is_group { "End all" } @else { "End it" }
            span.hidden-text { " of key " (foreign(id(first))) " on rule " (foreign(&first.rule)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::KeyPart;
    use rlaas_proto::ratelimit::v1::Grant;
    use rlaas_proto::ratelimit::v1::grant::Kind;

    use super::*;

    fn one(rule: &str, kind: Kind, names: &[&str]) -> KeyOverride {
        let part = |name: &&str| KeyPart { name: (*name).to_owned(), value: Some("v".to_owned()) };
        let parts = names.iter().map(part).collect();
        KeyOverride {
            rule: rule.to_owned(),
            key: Some(KeyRef { parts, id: names.concat(), ..KeyRef::default() }),
            grant: Some(Grant { kind: Some(kind), burst: 0 }),
            ..KeyOverride::default()
        }
    }

    #[test]
    fn bans_of_one_key_are_together_and_all_else_is_alone() {
        let (ban, limit) = (Kind::Banned(true), Kind::Limit(5));
        let elsewhere = KeyOverride { project_id: "shop".to_owned(), ..one("a", ban, &["x", "y"]) };
        let found = by_key(vec![
            one("b", ban, &["y", "x"]),
            one("a", ban, &["x", "y"]),
            one("c", limit, &["x", "y"]),
            one("d", limit, &["x", "y"]),
            one("e", ban, &["x"]),
            one("f", ban, &[]),
            one("g", ban, &[]),
            elsewhere,
        ]);
        let rules =
            found.iter().map(|of| of.iter().map(|one| &*one.rule).collect::<Vec<_>>().concat());
        assert_eq!(rules.collect::<Vec<_>>(), ["f", "g", "e", "ab", "c", "d", "a"]);
    }
}
