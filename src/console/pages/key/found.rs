//! The keys of an id: those that `Explain` and `Inspect` would show, by the same operations.

use std::sync::Arc;
use std::time::Duration;

use rlaas_limiter::explain::{Applies, ExplainedRule, Explanation, Mismatch};
use rlaas_limiter::rules::Unmatched;
use rlaas_limiter::{KeyState, Snapshot};
use rlaas_proto::ratelimit::admin::v1::AuditEntry;

use super::search::KeySearch;
use super::{ADMIN, OPERATE, OPERATORS};
use crate::admin::{AdminError, AuditFilter, AuditedProjects, explain, outlook};
use crate::api::auth::{Caller, Role};
use crate::clock::{Deadline, Micros, Timestamp};
use crate::console::ConsoleContext;
use crate::console::page_error::{PageError, admitted};
use crate::plan::{SelectedKey, Selector, SelectorTarget};
use crate::projects::ProjectId;
use crate::rules::{RuleSet, Share};
use crate::store::StoreError;
use crate::verdict::Verdict;

/// Longest wait for the store.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Most changes that are shown.
const MAX_CHANGES: usize = 10;

/// The keys of an id.
#[derive(Debug)]
pub(super) struct FoundKeys {
    pub(super) project: ProjectId,
    pub(super) keys: Vec<MetKey>,
    /// Rules that the request does not meet, the nearest first.
    pub(super) unmet: Vec<UnmetRule>,
    /// Number of further ones.
    pub(super) left_out: usize,
    /// The decision that a check of the request would get; `None` for an id of a key, if the store is
    /// away, or if the visitor may not see it.
    pub(super) outlook: Option<RequestOutlook>,
    /// Why the states are not known.
    pub(super) store_problem: Option<String>,
    /// The last changes; `None` if the visitor may not see them, or there are no keys.
    pub(super) changes: Option<Result<Vec<AuditEntry>, String>>,
    /// Whether the visitor may set overrides and bans.
    pub(super) is_admin: bool,
    /// Whether the visitor may see what is used, and reset it.
    pub(super) is_operator: bool,
}

/// A key with its state.
#[derive(Debug)]
pub(super) struct MetKey {
    pub(super) key: SelectedKey,
    /// Part of the limit from which the key is near it.
    pub(super) near_limit: Option<Share>,
    /// `None` while the store is away, or if the visitor may not see it.
    pub(super) state: Option<KeyState>,
    /// For how long this instance goes on to refuse without asking the store.
    pub(super) deny_cached_for: Option<Micros>,
}

/// A rule that a request does not meet.
#[derive(Debug)]
pub(super) struct UnmetRule {
    pub(super) rule: Arc<str>,
    pub(super) why: Unmet,
}

/// The reason why a request does not meet a rule.
#[derive(Debug)]
pub(super) enum Unmet {
    Mismatch(Mismatch),
    Off,
    /// The default rule where others are enforced, or this policy decides in its place.
    NotDefault(Unmatched),
}

/// The decision that a check would get.
#[derive(Debug)]
pub(super) struct RequestOutlook {
    pub(super) is_allowed: bool,
    /// The rule that decides; empty if none does.
    pub(super) rule: Arc<str>,
}

/// Finds the keys that a visitor looks for.
///
/// # Errors
///
/// [`PageError`] if a field is not valid, or the visitor lacks the role. A store that does not answer
/// is none.
pub(super) async fn find(
    console: &ConsoleContext,
    caller: &Caller,
    search: &KeySearch,
) -> Result<FoundKeys, PageError> {
    let project = admitted(caller, &search.project, OPERATORS)?;
    let roles = caller.roles_in(&project);
    let is_operator = roles.intersects(OPERATE);
    let mut found = if search.id.is_empty() {
        by_request(console, &project, search, is_operator).await?
    } else {
        by_id(console, &project, search, is_operator).await?
    };
    found.is_admin = roles.intersects(ADMIN);
    found.is_operator = is_operator;
    if found.is_admin && !found.keys.is_empty() {
        found.changes = Some(changes(console, caller, &found).await);
    }
    Ok(found)
}

async fn by_request(
    console: &ConsoleContext,
    project: &ProjectId,
    search: &KeySearch,
    is_operator: bool,
) -> Result<FoundKeys, PageError> {
    let limiter = console.administrator.limiter();
    let snapshot = limiter.project_snapshot(project.as_str());
    let snapshot = snapshot.ok_or(AdminError::UnknownProject("project_id"))?;
    if !search.rule.is_empty() && !snapshot.rules.has_rule(&search.rule) {
        return Err(AdminError::UnknownRule.into());
    }
    let (request, of, asked) = (search.request.clone(), project.clone(), search.rule.clone());
    let explained = explain(snapshot, move |rules: &RuleSet| {
        let attributes = request.attributes()?;
        let request = request.request(&attributes)?.in_project(of.as_str());
        let Explanation { plan, keys, rules: explained, mut left_out } = rules.explain(&request);
        let policy = rules.unmatched();
        let mut unmet = unmet(rules, explained, policy);
        if !asked.is_empty() {
            left_out = 0;
            unmet.retain(|unmet| *unmet.rule == *asked);
        }
        if !asked.is_empty() && unmet.is_empty() {
            // It applies, or is none of the nearest: why it does not does not depend on others.
            let named = rules.iter().filter(|rule| *rule.name == *asked).cloned().collect();
            let alone = RuleSet::new(rules.default_rule().clone(), named);
            unmet = self::unmet(&alone, alone.explain(&request).rules, policy);
            unmet.retain(|unmet| *unmet.rule == *asked);
        }
        Ok::<_, PageError>((plan, keys, unmet, left_out))
    });
    let (snapshot, explained) = explained.await;
    let (plan, mut keys, unmet, left_out) = explained?;
    let is_asked = |rule: &str| search.rule.is_empty() || search.rule == rule;
    if !is_operator {
        keys.retain(|key| is_asked(&key.rule));
        return Ok(FoundKeys::new(project, &snapshot, keys, Ok(Vec::new())));
    }
    let outlook = outlook(limiter, &snapshot, &plan, &keys, Deadline::within(MAX_TIME)).await;
    let (states, decided) = match outlook.preview {
        Ok(preview) => {
            let is_refused = plan.is_unmatched && snapshot.rules.unmatched() == Unmatched::Deny;
            (Ok(preview.states), Some(RequestOutlook::new(&preview.verdict, is_refused)))
        }
        Err(error) => (Err(error), None),
    };
    let mut found = FoundKeys::new(project, &snapshot, keys, states);
    for (met, cached) in found.keys.iter_mut().zip(outlook.deny_cached_for) {
        met.deny_cached_for = cached;
    }
    found.keys.retain(|met| is_asked(&met.key.rule));
    (found.unmet, found.left_out) = (unmet, left_out);
    found.outlook = decided;
    Ok(found)
}

/// Returns the rules that a request does not meet, of those that were looked at.
fn unmet(rules: &RuleSet, explained: Vec<ExplainedRule>, policy: Unmatched) -> Vec<UnmetRule> {
    let unmet = explained.into_iter().filter_map(|explained| {
        let why = match explained.applies {
            Applies::Mismatch(mismatch) => Unmet::Mismatch(mismatch),
            Applies::Off => Unmet::Off,
            Applies::NotDefault => Unmet::NotDefault(policy),
            Applies::Yes(_) | Applies::Replaced => return None,
        };
        Some(UnmetRule { rule: Arc::clone(rules.rule(explained.rule).name), why })
    });
    unmet.collect()
}

async fn by_id(
    console: &ConsoleContext,
    project: &ProjectId,
    search: &KeySearch,
    is_operator: bool,
) -> Result<FoundKeys, PageError> {
    let limiter = console.administrator.limiter();
    let snapshot = limiter.project_snapshot(project.as_str());
    let snapshot = snapshot.ok_or(AdminError::UnknownProject("project_id"))?;
    let rule = Some(&*search.rule).filter(|rule| !rule.is_empty());
    let selector = Selector { target: SelectorTarget::Id(&search.id), rule };
    let keys = snapshot.rules.select(&selector).map_err(AdminError::from)?;
    let states = if is_operator {
        limiter.inspect(&keys, Deadline::within(MAX_TIME)).await
    } else {
        Ok(Vec::new())
    };
    Ok(FoundKeys::new(project, &snapshot, keys, states))
}

/// Returns the last changes of the keys.
async fn changes(
    console: &ConsoleContext,
    caller: &Caller,
    found: &FoundKeys,
) -> Result<Vec<AuditEntry>, String> {
    if found.store_problem.is_some() {
        return Err("the audit is in the store".to_owned());
    }
    let of = if caller.has(Role::Admin) {
        Some((found.project.to_string(), Timestamp::EPOCH))
    } else {
        console.projects.audited(&found.project)
    };
    let projects = AuditedProjects::from_iter(of);
    let keys: Vec<_> = found.keys.iter().map(|met| met.key.clone()).collect();
    let filter =
        AuditFilter { projects: Some(&projects), keys: Some(&keys), ..AuditFilter::default() };
    let deadline = Deadline::within(MAX_TIME);
    let listed = console.administrator.audit().list(&filter, MAX_CHANGES, None, deadline).await;
    let listed = listed.map_err(|error| AdminError::Store(error).to_string())?;
    Ok(listed.entries)
}

impl FoundKeys {
    fn new(
        project: &ProjectId,
        snapshot: &Snapshot,
        keys: Vec<SelectedKey>,
        states: Result<Vec<KeyState>, StoreError>,
    ) -> Self {
        let store_problem = states.as_ref().err().cloned();
        let store_problem = store_problem.map(|error| AdminError::Store(error).to_string());
        let mut states = states.unwrap_or_default().into_iter();
        let keys = keys.into_iter().map(|key| MetKey {
            near_limit: snapshot.rules.rule(key.hit.rule).near_limit,
            state: states.next(),
            deny_cached_for: None,
            key,
        });
        Self {
            project: project.clone(),
            keys: keys.collect(),
            unmet: Vec::new(),
            left_out: 0,
            outlook: None,
            store_problem,
            changes: None,
            is_admin: false,
            is_operator: false,
        }
    }
}

impl RequestOutlook {
    fn new(verdict: &Verdict, is_refused: bool) -> Self {
        let rule = Arc::clone(&verdict.deciding().rule);
        Self { is_allowed: !is_refused && verdict.is_allowed(), rule }
    }
}
