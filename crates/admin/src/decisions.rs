//! `WatchDecisions`: a stream of decisions.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use rlaas_auth::{Caller, ProjectId, Role, Roles};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::values::timestamp;
use rlaas_telemetry::decisions::{
    DecisionEvent, DecisionFilter, DecisionWatch, EventOutcome, WatchError,
};
use tokio::task::yield_now;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Code, Status};

use super::projects::admitted;
use super::refusals::no_project;
use super::{EVERY_PROJECT, KeyView, SharedHasher};
use rlaas_limiter::Limiter;
use rlaas_proto::status::{invalid_field, with_reason};
use rlaas_proto::verdict_messages::response;

/// Pause between two responses while few events come.
const INTERVAL: Duration = Duration::from_millis(50);
/// Most events of a response. Making it takes less than half a millisecond, for which other calls
/// of the thread wait.
const MAX_BATCH: usize = 128;

/// The responses of a watch.
pub(super) type Responses =
    Pin<Box<dyn Stream<Item = Result<proto::WatchDecisionsResponse, Status>> + Send>>;

/// The projects that a caller watches.
#[derive(Debug)]
pub(super) struct WatchedProjects {
    /// `None`: all.
    ids: Option<BTreeSet<ProjectId>>,
}

impl WatchedProjects {
    /// Returns the projects of a request, if the caller has one of the roles in them.
    ///
    /// # Errors
    ///
    /// As [`admitted`].
    pub(super) fn new(
        limiter: &Limiter,
        caller: &Caller,
        id: &str,
        required: Roles,
    ) -> Result<Self, Status> {
        if id != EVERY_PROJECT {
            let id = admitted(caller, id, required)?;
            if limiter.project_snapshot(id.as_str()).is_none() {
                return Err(no_project());
            }
            return Ok(Self { ids: Some(BTreeSet::from([id])) });
        }
        if Role::ALL.into_iter().any(|role| required.contains(role) && caller.has(role)) {
            return Ok(Self { ids: None });
        }
        Ok(Self { ids: Some(caller.projects_with(required).cloned().collect()) })
    }

    /// Returns the ids of the projects; `None` if they are all.
    pub(super) fn ids(&self) -> Option<&BTreeSet<ProjectId>> {
        self.ids.as_ref()
    }

    /// Returns `true` if the caller may see the keys of all of them in clear.
    pub(super) fn are_in_clear(&self, caller: &Caller) -> bool {
        let is_in_clear = |id| caller.roles_in(id).contains(Role::Operate);
        self.ids.as_ref().map_or(caller.has(Role::Operate), |ids| ids.iter().all(is_in_clear))
    }
}

/// Parses a filter.
///
/// # Errors
///
/// `INVALID_ARGUMENT`, with the field.
pub(super) fn filter(
    request: proto::WatchDecisionsRequest,
    projects: WatchedProjects,
) -> Result<DecisionFilter, Status> {
    let proto::WatchDecisionsRequest { project_id: _, rule, outcomes, user_id, sample_ppm } =
        request;
    let outcome = |value: i32| match proto::Outcome::try_from(value) {
        Ok(proto::Outcome::Allowed) => Ok(EventOutcome::Allowed),
        Ok(proto::Outcome::NearLimit) => Ok(EventOutcome::NearLimit),
        Ok(proto::Outcome::Denied) => Ok(EventOutcome::Denied),
        Ok(proto::Outcome::ShadowDenied) => Ok(EventOutcome::ShadowDenied),
        Ok(proto::Outcome::Degraded) => Ok(EventOutcome::Degraded),
        Ok(proto::Outcome::Unspecified) | Err(_) => {
            Err(invalid_field("outcomes", "must be outcomes other than OUTCOME_UNSPECIFIED"))
        }
    };
    let mut unique = Vec::new();
    for value in outcomes {
        let outcome = outcome(value)?;
        if !unique.contains(&outcome) {
            unique.push(outcome);
        }
    }
    let sample_ppm = match sample_ppm {
        0 => DecisionFilter::WHOLE,
        ppm if ppm <= DecisionFilter::WHOLE => ppm,
        _ => return Err(invalid_field("sample_ppm", "must be 1 to 1000000")),
    };
    let set = |text: String| Some(text).filter(|text| !text.is_empty());
    let projects = projects.ids.map(|ids| ids.into_iter().map(String::from).collect());
    let (rule, user_id) = (set(rule), set(user_id));
    Ok(DecisionFilter { projects, rule, outcomes: unique, user_id, sample_ppm })
}

/// Returns the status of a watch that does not begin.
pub(super) fn refused(error: WatchError) -> Status {
    match error {
        WatchError::Full(_) => {
            with_reason(Code::ResourceExhausted, "TOO_MANY_WATCHERS", error.to_string())
        }
        WatchError::Draining => Status::unavailable(error.to_string()),
    }
}

/// Returns the responses with the events of a watch. They end when the server drains.
pub(super) fn responses(watch: DecisionWatch, view: KeyView, hasher: SharedHasher) -> Responses {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watching = Watching { watch, view, hasher, ticks };
    Box::pin(stream::unfold(Some(watching), |watching| async move {
        let mut watching = watching?;
        let response = watching.next().await;
        let goes_on = response.is_ok();
        Some((response, goes_on.then_some(watching)))
    }))
}

/// A watch and the pauses between its responses.
struct Watching {
    watch: DecisionWatch,
    view: KeyView,
    hasher: SharedHasher,
    ticks: Interval,
}

impl Watching {
    /// Waits for events.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if the server drains, or the key by which ids are hashed is not known.
    async fn next(&mut self) -> Result<proto::WatchDecisionsResponse, Status> {
        loop {
            // Other calls of the thread come first.
            yield_now().await;
            let (events, dropped) = self.watch.take(MAX_BATCH);
            if !events.is_empty() || dropped > 0 {
                self.view.follow(&self.hasher).await?;
                let events = events.iter().map(|event| self.event(event)).collect();
                return Ok(proto::WatchDecisionsResponse { events, dropped });
            }
            let drained = self.watch.drained();
            tokio::select! {
                _at = self.ticks.tick() => {}
                () = drained => return Err(refused(WatchError::Draining)),
            }
        }
    }

    fn event(&self, event: &DecisionEvent) -> proto::DecisionEvent {
        let DecisionEvent { decided_at, project, api, method, key, cost, verdict } = event;
        proto::DecisionEvent {
            decided_at: Some(timestamp(*decided_at)),
            project_id: project.clone(),
            api: (*api).to_owned(),
            method: (*method).to_owned(),
            key: key.as_ref().map(|key| self.view.key(key.parts.clone(), &key.id)),
            cost: *cost,
            verdict: Some(response(verdict)),
        }
    }
}
