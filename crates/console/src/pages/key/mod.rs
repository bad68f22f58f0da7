//! Look up: what refuses one id, what it has used of each rule that it meets, and changes of that.
//!
//! | file | subject |
//! | --- | --- |
//! | `render` | the page |
//! | `choices` | the form of a search |
//! | `recent_top_keys` | the answer for an id alone, and the keys that it rests on |
//! | `change` | the forms of changes, and from a form to the change |
//!
//! An id is looked for by itself, by a request that has it, or by the id of a key: the fields of the query.

mod change;
pub(super) mod choices;
mod recent_top_keys;
mod render;

pub(crate) use change::change;

use axum::http::StatusCode;
use axum::response::Response;
use rlaas_proto::ratelimit::admin::v1::rule_explanation::Applies;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_proto::ratelimit::admin::v1::{
    AuditEntry, ExplainRequest, GetRuleRequest, InspectRequest, KeyRef, KeyState, ListAuditRequest,
    RuleExplanation, Selector,
};
use rlaas_proto::ratelimit::v1::check_result::Result as Checked;
use rlaas_proto::ratelimit::v1::{CheckResult, GetConfigRequest, GetConfigResponse, Rule};

use crate::calls::{READ_TIME, configuration, id_of, within};
use crate::fields::{FormFields, Link};
use crate::form::RefusedForm;
use crate::moved_to;
use crate::page_error::PageError;
use crate::pages::search::typed_key;
use crate::request_fields::{REQUEST_FIELDS, request};
use crate::visit::{Visit, Visitor};

/// Most changes that are shown.
const MAX_CHANGES: i32 = 10;

/// Shows the keys of an id.
pub(crate) async fn show(visit: Visit) -> Response {
    let search = visit.fields.clone();
    let id = search.get("user_id");
    // The secret of an API key that was typed here is in no other address.
    if let Some((key, _)) = typed_key(&visit.visitor, id).await
        && key.beginning != id
    {
        return moved_to(link(&search.clone().with("user_id", key.beginning)).as_str());
    }
    let search = search.check().map(|()| search).map_err(PageError::from);
    page(&visit, search, None).await
}

/// Responds with the page: with the keys if there is an id, and with the form of a change that was
/// refused.
async fn page(
    visit: &Visit,
    search: Result<FormFields, PageError>,
    refused: Option<RefusedForm>,
) -> Response {
    let (search, invalid) = match search {
        Ok(search) => (search, None),
        Err(error) => (FormFields::default(), Some(error)),
    };
    let visitor = &visit.visitor;
    let asked = with_own_project(visitor, &search);
    let choices = choices::read(visit, search.get("project"));
    let recent = async {
        let is_of_user = !search.get("user_id").is_empty();
        // Beside a key all others of its user are of interest.
        let is_of_key = !search.get("id").is_empty();
        let wanted = if is_of_key { &FormFields::default() } else { &search };
        let wanted = wanted.clone().with("user_id", search.get("user_id"));
        if is_of_user { Some(recent_top_keys::read(visitor, &wanted).await) } else { None }
    };
    let find_asked = async || match invalid {
        Some(error) => Some(Err(error)),
        None if is_given(&search) => Some(find(visitor, &asked).await),
        None => None,
    };
    // Of an id alone its keys say more than a request without a resource.
    let others = REQUEST_FIELDS[1..].iter().chain(&["rule", "id"]);
    let (recent, choices, found) = if others.into_iter().all(|name| search.get(name).is_empty()) {
        let (recent, choices) = tokio::join!(recent, choices);
        let is_enough = matches!(&recent, Some(Ok(recent)) if recent.is_enough());
        (recent, choices, if is_enough { None } else { find_asked().await })
    } else {
        tokio::join!(recent, choices, find_asked())
    };
    let status = match (&refused, &found) {
        (Some(refused), _) => refused.error.status,
        (None, Some(Err(error))) => error.status,
        (None, Some(Ok(found))) if found.store_problem.is_some() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    let frame = visit.frame("key");
    let page = render::KeyPage { frame, search, choices, recent, asked, found, refused };
    visit.console.page(status, move || page.render()).await
}

/// Returns `true` if keys of an id are in use, of any rule.
pub(super) async fn is_in_use(visitor: &Visitor, user_id: &str) -> bool {
    let search = FormFields::default().with("user_id", user_id);
    recent_top_keys::read(visitor, &search).await.is_ok_and(|recent| recent.has_keys())
}

/// Returns `true` if there is something to look for.
fn is_given(search: &FormFields) -> bool {
    REQUEST_FIELDS.iter().chain(&["id"]).any(|name| !search.get(name).is_empty())
}

/// Returns the search with the project of its request: without a choice the unnamed one, or else a project
/// of the visitor.
fn with_own_project(visitor: &Visitor, search: &FormFields) -> FormFields {
    let own = visitor.first_project().filter(|_| !visitor.sees_instances());
    match own {
        Some(own) if search.get("project").is_empty() => search.clone().with("project", &own),
        _ => search.clone(),
    }
}

/// Returns the keys that are looked for: of one rule, or of every rule that the request meets.
fn selector(search: &FormFields, rule: &str) -> Result<Selector, PageError> {
    let target = match search.get("id") {
        "" => Target::Request(request(search)?),
        id => Target::Key(KeyRef { id: id.to_owned(), ..KeyRef::default() }),
    };
    let project_id = id_of(search.get("project")).to_owned();
    Ok(Selector { target: Some(target), rule: rule.to_owned(), project_id })
}

/// Returns the link to what is found.
fn link(search: &FormFields) -> Link {
    let names = [&["project"][..], &REQUEST_FIELDS, &["rule", "id"]].concat();
    Link::like("key", search, &names)
}

/// The keys of an id.
#[derive(Debug, Default)]
struct FoundKeys {
    /// Id of the project.
    project: String,
    /// Its configuration, of which the rules are left out.
    config: GetConfigResponse,
    keys: Vec<MatchingKey>,
    /// Rules that the request does not meet, the nearest first.
    unmet: Vec<RuleExplanation>,
    /// Number of further ones.
    left_out: u32,
    /// The decision that a check of the request would get; `None` for an id of a key, if the store is
    /// away, or if the visitor may not see it.
    outlook: Option<Checked>,
    /// Why the states are not known.
    store_problem: Option<String>,
    /// The last changes; `None` if the visitor may not see them, or there are no keys.
    changes: Option<Result<Vec<AuditEntry>, String>>,
    /// Whether the visitor may set overrides and bans.
    is_admin: bool,
    /// Whether the visitor may see what is used, and reset it.
    is_operator: bool,
}

/// A key with its state.
#[derive(Debug)]
struct MatchingKey {
    /// The search that finds it, for its forms.
    search: FormFields,
    /// The rule as it is written.
    rule: Rule,
    /// What is in force of it for the key. Without a state while the store is away, or if the visitor may
    /// not see it.
    met: RuleExplanation,
}

/// Finds the keys that a visitor looks for.
///
/// # Errors
///
/// [`PageError`] if a field is not valid, or the visitor lacks the role.
async fn find(visitor: &Visitor, search: &FormFields) -> Result<FoundKeys, PageError> {
    let project = id_of(search.get("project"));
    let config = GetConfigRequest { page_size: 1, ..GetConfigRequest::default() };
    let config = configuration(visitor, project, config).await?;
    let mut found = FoundKeys {
        project: project.to_owned(),
        config,
        is_admin: visitor.is_admin(project),
        is_operator: visitor.is_operator(project),
        ..FoundKeys::default()
    };
    if search.get("id").is_empty() {
        by_request(visitor, search, &mut found).await?;
    } else {
        by_id(visitor, search, &mut found).await?;
    }
    if found.is_admin && !found.keys.is_empty() {
        found.changes = Some(match found.store_problem {
            Some(_) => Err("the audit is in the store".to_owned()),
            None => changes(visitor, search).await.map_err(|error| error.problem),
        });
    }
    Ok(found)
}

async fn by_request(
    visitor: &Visitor,
    search: &FormFields,
    found: &mut FoundKeys,
) -> Result<(), PageError> {
    let explain = ExplainRequest {
        request: Some(request(search)?),
        project_id: found.project.clone(),
        rule: search.get("rule").to_owned(),
    };
    let explained = visitor.admin().explain(within(READ_TIME, explain)).await?.into_inner();
    if let Some(CheckResult { result: Some(Checked::Error(error)) }) = &explained.result
        && explained.rules.is_empty()
        && error.code == tonic::Code::InvalidArgument as i32
    {
        return Err(PageError::invalid(&error.message));
    }
    found.store_problem = explained.store_error.map(|error| error.message);
    found.left_out = explained.rules_left_out;
    found.outlook = explained.result.and_then(|result| result.result);
    for rule in explained.rules {
        if rule.applies() != Applies::Yes {
            if rule.applies() != Applies::Replaced && found.is_operator {
                found.unmet.push(rule);
            }
            continue;
        }
        let written = written(visitor, &found.project, &rule.rule).await;
        found.keys.push(MatchingKey { search: search.clone(), rule: written, met: rule });
    }
    Ok(())
}

async fn by_id(
    visitor: &Visitor,
    search: &FormFields,
    found: &mut FoundKeys,
) -> Result<(), PageError> {
    if !found.is_operator {
        let rule = written(visitor, &found.project, search.get("rule")).await;
        let key = KeyRef { id: search.get("id").to_owned(), ..KeyRef::default() };
        let met = RuleExplanation { key: Some(key), ..RuleExplanation::default() };
        found.keys = vec![MatchingKey { search: search.clone(), rule, met }];
        return Ok(());
    }
    let request = InspectRequest { selector: Some(selector(search, search.get("rule"))?) };
    let inspected = visitor.admin().inspect(within(READ_TIME, request)).await?.into_inner();
    for state in inspected.keys {
        let rule = written(visitor, &found.project, &state.rule).await;
        found.keys.push(MatchingKey::of_state(search.clone(), rule, state));
    }
    Ok(())
}

impl MatchingKey {
    /// Returns the key of a search, whose request is not known.
    fn of_state(search: FormFields, rule: Rule, state: KeyState) -> Self {
        let met = RuleExplanation {
            mode: state.mode,
            key: state.key.clone(),
            grant_from: state.grant_from,
            state: Some(state),
            ..RuleExplanation::default()
        };
        Self { search, rule, met }
    }
}

/// Returns a rule as it is written; of one that no project has the name alone.
async fn written(visitor: &Visitor, project: &str, name: &str) -> Rule {
    let request = GetRuleRequest { project_id: project.to_owned(), rule_name: name.to_owned() };
    let written = visitor.projects().get_rule(within(READ_TIME, request)).await.ok();
    if let Some(rule) = written.and_then(|written| written.into_inner().rule?.rule) {
        return rule;
    }
    let config = GetConfigRequest { page_size: 1, ..GetConfigRequest::default() };
    let config = configuration(visitor, project, config).await.unwrap_or_default();
    let default = config.default_rule.filter(|rule| rule.name == name);
    default.unwrap_or_else(|| Rule { name: name.to_owned(), ..Rule::default() })
}

/// Returns the last changes of the keys.
async fn changes(visitor: &Visitor, search: &FormFields) -> Result<Vec<AuditEntry>, PageError> {
    let request = ListAuditRequest {
        project_id: id_of(search.get("project")).to_owned(),
        page_size: MAX_CHANGES,
        selector: Some(selector(search, search.get("rule"))?),
        ..ListAuditRequest::default()
    };
    Ok(visitor.admin().list_audit(within(READ_TIME, request)).await?.into_inner().entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_id_survives_a_form() {
        let id = "\0\r\n\u{202e}%&=";
        let shown = Link::to("key").with("project", "shop").with("id", id);
        let search = FormFields::parse(shown.query().as_bytes()).expect("fields");
        assert_eq!((search.get("id"), link(&search).query()), (id, shown.query()));
        assert_eq!(link(&FormFields::default()).query(), "");
    }
}
