//! `Explain` and `ExplainDescriptors`. The command line calls the same functions without a server.

use std::sync::Arc;

use rlaas_auth::run_blocking;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::rule_explanation::Applies;
use rlaas_proto::ratelimit::v1::CheckResult;
use rlaas_proto::rule_messages::{calendar_window, grant, hold_share, mode, window_from};
use rlaas_proto::status::{invalid, invalid_field, no_rule, unknown_project};
use rlaas_proto::values::{check_request, duration};
use rlaas_proto::verdict_messages::{error, result, rule_decision};
use tonic::Status;

use super::messages::{grant_from, key_ref, key_state};
use super::{MAX_TIME, refusals};
use rlaas_core::algorithm::Cost;
use rlaas_core::clock::{Deadline, Micros};
use rlaas_core::plan::{Plan, RuleIndex, SelectedKey};
use rlaas_core::rules::descriptors::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, RequestDescriptor,
};
use rlaas_core::rules::{InvalidRequest, Request, RuleSet, Share};
use rlaas_limiter::explain::{AppliedRule, ExplainedRule, Mismatch};
use rlaas_limiter::rules::Unmatched;
use rlaas_limiter::store::StoreError;
use rlaas_limiter::{CheckError, Limiter, Preview, Snapshot, explain as core};

/// Explains a request by the rules of its project. One that is not valid for `Check` is a result.
///
/// # Errors
///
/// `INVALID_ARGUMENT` without a request, `NOT_FOUND` if there is no such project.
pub async fn explain(
    limiter: &Limiter,
    message: proto::ExplainRequest,
    deadline: Deadline,
) -> Result<proto::ExplainResponse, Status> {
    let proto::ExplainRequest { request, project_id, rule: asked } = message;
    let snapshot = limiter.project_snapshot(&project_id);
    let snapshot = snapshot.ok_or_else(|| unknown_project("project_id"))?;
    if !asked.is_empty() && !snapshot.rules.has_rule(&asked) {
        return Err(refusals::unknown_rule());
    }
    let request = request.ok_or_else(|| invalid_field("request", "must be set"))?;
    if let Err(problem) = check_request(&request) {
        let result = Some(result(Err(&invalid(problem))));
        let revision = snapshot.revision;
        return Ok(proto::ExplainResponse { result, revision, ..Default::default() });
    }
    let explain = move |rules: &RuleSet| {
        let request = check_request(&request)?.in_project(&project_id);
        let mut explained = rules.explain(&request);
        if asked.is_empty() {
            return Ok::<_, InvalidRequest>((explained, None));
        }
        explained.left_out = 0;
        explained.rules.retain(|rule| **rules.rule(rule.rule).name == *asked);
        let is_far = explained.rules.is_empty();
        Ok((explained, is_far.then(|| unmet_alone(rules, &asked, &request)).flatten()))
    };
    let (snapshot, explained) = by_rules(snapshot, explain).await;
    let (explained, far) = explained.map_err(invalid)?;
    let core::Explanation { plan, keys, rules, left_out } = explained;
    let outlook = outlook(limiter, &snapshot, &plan, &keys, deadline).await;
    let is_denied = plan.is_unmatched && snapshot.rules.unmatched() == Unmatched::Deny;
    let messages = RuleMessages { limiter, rules: &snapshot.rules, keys: &keys, outlook: &outlook };
    Ok(proto::ExplainResponse {
        result: check_result(&snapshot.rules, &plan, &outlook, is_denied),
        rules: rules.iter().map(|rule| messages.rule(rule)).chain(far).collect(),
        rules_left_out: u32::try_from(left_out).unwrap_or(u32::MAX),
        revision: snapshot.revision,
        catalogue_revision: 0,
        store_error: store_error(&outlook),
    })
}

/// Explains a rule that is none of the nearest: why it does not apply does not depend on others.
fn unmet_alone(
    rules: &RuleSet,
    name: &str,
    request: &Request<'_>,
) -> Option<proto::RuleExplanation> {
    let named = rules.iter().filter(|rule| *rule.name == *name).cloned().collect();
    let alone = RuleSet::new(rules.default_rule().clone(), named);
    let explained = alone.explain(request).rules;
    let of_rule = explained.into_iter().find(|rule| **alone.rule(rule.rule).name == *name);
    Some(without_state(name, &of_rule?.applies))
}

/// Returns the explanation of a rule without what only one that applies has.
fn without_state(name: &str, applies: &core::Applies) -> proto::RuleExplanation {
    let (applies, mismatch) = match applies {
        core::Applies::Yes(_) => (Applies::Yes, None),
        core::Applies::Mismatch(Mismatch { part, wanted, got }) => {
            let (part, wanted, got) = (part.clone(), wanted.clone(), got.clone());
            (Applies::Mismatch, Some(proto::Mismatch { part, wanted, got }))
        }
        core::Applies::Off => (Applies::Off, None),
        core::Applies::NotDefault => (Applies::NotDefault, None),
        core::Applies::Replaced => (Applies::Replaced, None),
    };
    let (rule, applies) = (name.to_owned(), applies.into());
    proto::RuleExplanation { rule, applies, mismatch, ..proto::RuleExplanation::default() }
}

/// Explains a request of Envoy.
///
/// # Errors
///
/// `INVALID_ARGUMENT` if a field is not valid.
pub async fn explain_descriptors(
    limiter: &Limiter,
    message: proto::ExplainDescriptorsRequest,
    deadline: Deadline,
) -> Result<proto::ExplainDescriptorsResponse, Status> {
    check_entries(&message)?;
    let (snapshot, explained) = by_rules(limiter.snapshot(), move |rules| {
        let request = descriptor_request(&message)?;
        rules.explain_descriptors(&request, strsim::jaro_winkler)
    })
    .await;
    let core::ExplainedDescriptors { plan, keys, descriptors } =
        explained.map_err(invalid_descriptor)?;
    let outlook = outlook(limiter, &snapshot, &plan.plan, &keys, deadline).await;
    let messages = RuleMessages { limiter, rules: &snapshot.rules, keys: &keys, outlook: &outlook };
    let over_limit = outlook.preview.as_ref().ok().map(|preview| !preview.verdict.is_allowed());
    let explanation = |explained: core::ExplainedDescriptor| proto::DescriptorExplanation {
        rule: explained.rule.as_ref().map(|rule| messages.rule(rule)),
        matched_entries: u32::try_from(explained.matched_entries).unwrap_or(u32::MAX),
        nearest: explained.nearest,
    };
    Ok(proto::ExplainDescriptorsResponse {
        over_limit,
        descriptors: descriptors.into_iter().map(explanation).collect(),
        revision: snapshot.revision,
        store_error: store_error(&outlook),
    })
}

/// Number of rules up to which they are looked at in place: more of them would delay the decisions of
/// the same worker.
const MAX_RULES_IN_PLACE: usize = 500;

/// What the store, and the deny cache of this instance, add to an explanation.
#[derive(Debug)]
struct Outlook {
    /// The states of keys, and the verdict; or the failure of the store.
    preview: Result<Preview, StoreError>,
    /// For each hit of the plan, the time that the deny cache goes on to refuse it.
    deny_cached_for: Vec<Option<Micros>>,
}

/// Explains by the rules in force of `snapshot`, which it returns too. `explain` may take long: with many rules it
/// runs on a thread of its own.
async fn by_rules<T: Send + 'static>(
    snapshot: Arc<Snapshot>,
    explain: impl FnOnce(&RuleSet) -> T + Send + 'static,
) -> (Arc<Snapshot>, T) {
    let rules = snapshot.rules.iter().count() + snapshot.rules.descriptors().count();
    if rules <= MAX_RULES_IN_PLACE {
        let explained = explain(&snapshot.rules);
        return (snapshot, explained);
    }
    run_blocking(move || {
        let explained = explain(&snapshot.rules);
        (snapshot, explained)
    })
    .await
}

/// Returns what a check of `plan` would decide at this moment.
async fn outlook(
    limiter: &Limiter,
    snapshot: &Snapshot,
    plan: &Plan,
    keys: &[SelectedKey],
    deadline: Deadline,
) -> Outlook {
    let deny_cached_for = limiter.deny_cached_for(snapshot, plan);
    let preview = limiter.preview(snapshot, plan, keys, deadline.or_within(MAX_TIME)).await;
    Outlook { preview, deny_cached_for }
}

/// The answer of `Check`; none while the store is away.
fn check_result(
    rules: &RuleSet,
    plan: &Plan,
    outlook: &Outlook,
    is_denied: bool,
) -> Option<CheckResult> {
    let preview = outlook.preview.as_ref().ok()?;
    if let Some(rule) = plan.clone().without_slots() {
        let name = Arc::clone(rules.rule(rule).name);
        let refusal = CheckError::NeedsReservation(name).to_string();
        return Some(result(Err(&Status::failed_precondition(refusal))));
    }
    if is_denied {
        return Some(result(Err(&no_rule())));
    }
    Some(result(Ok(&preview.verdict)))
}

fn store_error(outlook: &Outlook) -> Option<tonic_types::Status> {
    let failure = outlook.preview.as_ref().err()?;
    Some(error(&refusals::store(failure)))
}

/// What the messages of rules are made of.
struct RuleMessages<'a> {
    limiter: &'a Limiter,
    rules: &'a RuleSet,
    keys: &'a [SelectedKey],
    outlook: &'a Outlook,
}

impl RuleMessages<'_> {
    fn rule(&self, explained: &ExplainedRule) -> proto::RuleExplanation {
        let message = without_state(self.rules.rule(explained.rule).name, &explained.applies);
        match explained.applies {
            core::Applies::Yes(applied) => self.applied(explained.rule, applied, message),
            _ => message,
        }
    }

    /// Returns `true` if a key is inside of the share for which a rule is enforced.
    fn is_enforced(&self, rule: RuleIndex, key: &SelectedKey) -> bool {
        let RuleIndex::Flat(position) = rule else { return true };
        let rule = self.rules.iter().nth(position);
        rule.is_none_or(|rule| rule.enforce.contains(&key.hit.key))
    }

    fn applied(
        &self,
        explained_rule: RuleIndex,
        applied: AppliedRule,
        message: proto::RuleExplanation,
    ) -> proto::RuleExplanation {
        let AppliedRule { hit, cost, rule_override, headroom } = applied;
        let key = &self.keys[hit];
        let preview = self.outlook.preview.as_ref().ok();
        let state = preview.and_then(|preview| preview.states.get(hit));
        let decision = preview.and_then(|preview| preview.decisions.get(hit));
        let (granted, from) = match state {
            Some(state) => (state.grant, state.grant_from),
            None => (key.hit.grant, key.grant_from),
        };
        proto::RuleExplanation {
            mode: mode(key.hit.mode).into(),
            key: Some(key_ref(
                key.parts.clone(),
                &key.hit.key,
                self.limiter.store().key_name(&key.hit.key),
            )),
            grant: Some(grant(granted)),
            grant_from: grant_from(from).into(),
            enforced: self.is_enforced(explained_rule, key),
            rule_override: rule_override.and_then(|position| u32::try_from(position).ok()),
            cost: cost.units(),
            state: state.cloned().map(key_state),
            decision: decision.map(rule_decision),
            deny_cached_for: self.outlook.deny_cached_for[hit].map(duration),
            calendar: calendar_window(key.hit.window, None),
            window_from: window_from(key.hit.window).into(),
            hold_share_ppm: hold_share(self.rules.hold_terms(key.hit.rule)),
            headroom_ppm: headroom.map_or(0, Share::millionths),
            ..message
        }
    }
}

/// Checks that no descriptor is empty. Envoy may send such ones; a question about them is a mistake.
fn check_entries(message: &proto::ExplainDescriptorsRequest) -> Result<(), Status> {
    match message.descriptors.iter().position(|descriptor| descriptor.entries.is_empty()) {
        Some(index) => {
            let field = format!("descriptors[{index}].entries");
            Err(invalid_field(&field, "must have at least one entry"))
        }
        None => Ok(()),
    }
}

/// The text begins with the field.
fn invalid_descriptor(error: InvalidDescriptor) -> Status {
    let text = error.to_string();
    let (field, problem) = text.split_once(' ').unwrap_or((&text, ""));
    invalid_field(field, problem)
}

fn descriptor_request(
    message: &proto::ExplainDescriptorsRequest,
) -> Result<DescriptorRequest<'_>, InvalidDescriptor> {
    if message.descriptors.len() > DescriptorRequest::MAX_DESCRIPTORS {
        return Err(InvalidDescriptor::Descriptors);
    }
    let descriptor = |(index, descriptor)| {
        let proto::Descriptor { entries, hits_addend }: &proto::Descriptor = descriptor;
        let units = u32::try_from(hits_addend.unwrap_or(1));
        let cost = Cost::new(units.map_err(|_| InvalidDescriptor::Hits { index })?);
        Ok(RequestDescriptor {
            entries: entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect(),
            limit: None,
            hits: HitsAddend::Take(cost),
        })
    };
    let descriptors = message.descriptors.iter().enumerate().map(descriptor);
    DescriptorRequest::new(&message.domain, descriptors.collect::<Result<_, _>>()?)
}
