//! Events of thresholds: each part of a limit that a key has used is told once, in a log of the fleet.
//!
//! The entry and a mark of project, rule, key, window, threshold and limit are written in one step, so that a
//! repeated attempt, another instance, and a key that reaches the threshold again tell nothing.

use std::time::Duration;

use prost::Message;
use rlaas_auth::deadline;
use rlaas_core::clock::Deadline;
use rlaas_limiter::fleet::{EntryId, LogRange, NewEntry, ProjectLog};
use rlaas_limiter::observer::Reached;
use rlaas_limiter::store::StoreError;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::status::invalid_field;
use rlaas_proto::values::{int64, micros, timestamp};
use rlaas_telemetry::decisions::WatchError;
use tokio::time::sleep;
use tonic::{Request, Status};
use tracing::warn;

use super::messages::key_ref;
use super::projects::{OPERATE, admitted};
use super::{Administrator, MAX_TIME, Service, caller, decisions, page_count, refusals};

/// Name of the log.
const LOG: &str = "thresholds";
/// Events that are kept of each project.
const MAX_PROJECT_EVENTS: u64 = 1_000;
/// Events that memory keeps of all projects.
const MAX_EVENTS: u64 = 10_000;
/// Times that an event is offered to the store, and the time from one to the next: together 10 s.
const TRIES: u32 = 8;
const TRY_INTERVAL: Duration = Duration::from_millis(1_250);
const TRY_TIMEOUT: Duration = Duration::from_millis(850);
/// Longest time that a call waits for events.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Pause between two looks of a call that waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the log of the events of a project. Memory would read those of all for an empty id.
fn log(project: &str) -> ProjectLog<'_> {
    ProjectLog { log: LOG, project: if project.is_empty() { "_" } else { project } }
}

impl Administrator {
    /// Writes what keys reach into the log, for ever.
    pub(super) async fn record_thresholds(&self) {
        let thresholds = &self.shared.metrics.thresholds;
        let Some(mut reached) = thresholds.read() else { return std::future::pending().await };
        while let Some(reached) = reached.recv().await {
            match self.record_threshold(&reached).await {
                Ok(true) => thresholds.count_told(&reached),
                Ok(false) => {}
                Err(error) => {
                    thresholds.lost.inc();
                    warn!(rule = &*reached.rule, %error, "an event of a threshold is lost");
                }
            }
            thresholds.count_ended();
        }
    }

    async fn record_threshold(&self, reached: &Reached) -> Result<bool, StoreError> {
        let event = self.event(reached).encode_to_vec();
        let mut tries = 0;
        loop {
            let (deadline, next) = (Deadline::within(TRY_TIMEOUT), Deadline::within(TRY_INTERVAL));
            let recorded = async {
                let mark = self.hasher().hasher(deadline).await?.shown(&mark(reached));
                let entry = NewEntry {
                    content: &event,
                    max_entries: MAX_EVENTS,
                    max_project_entries: MAX_PROJECT_EVENTS,
                    ttl: None,
                };
                let (log, until) = (log(&reached.project), reached.window_ends_at);
                self.fleet().append_once(log, &mark, until, entry, deadline).await
            };
            tries += 1;
            let recorded = recorded.await;
            match recorded {
                // A memory store that is full of marks stays full for now: more tries would only delay other events.
                Err(StoreError::Custom { .. }) | Ok(_) => return recorded,
                Err(_) if tries == TRIES => return recorded,
                Err(_) => pause(next.remaining()).await,
            }
        }
    }

    fn event(&self, reached: &Reached) -> proto::ThresholdEvent {
        let Reached { project, rule, key, threshold, count, limit, .. } = reached;
        let snapshot = self.limiter.project_snapshot(project);
        let (_, parts) = snapshot.map(|snapshot| snapshot.rules.describe(key)).unwrap_or_default();
        proto::ThresholdEvent {
            id: String::new(),
            time: Some(timestamp(reached.at)),
            project_id: project.clone(),
            rule: rule.to_string(),
            key: Some(key_ref(parts, key, String::new())),
            threshold_ppm: threshold.millionths(),
            count: *count,
            limit: int64(*limit),
            window_ends_at: Some(timestamp(reached.window_ends_at)),
            shadow: reached.is_shadow,
        }
    }
}

/// Returns a text that only the same threshold of the same window has.
fn mark(reached: &Reached) -> String {
    let Reached { project, rule, key, threshold, limit, window_ends_at, .. } = reached;
    let (ends, ppm) = (window_ends_at.as_micros(), threshold.millionths());
    format!("{project}:{rule}:{ends}:{ppm}:{limit}:{}", key.id())
}

impl Service {
    /// Returns the events of a project after one of them, and waits for the first.
    pub(super) async fn threshold_events(
        &self,
        request: &Request<proto::ListThresholdEventsRequest>,
    ) -> Result<proto::ListThresholdEventsResponse, Status> {
        let proto::ListThresholdEventsRequest { project_id, after, wait, page_size } =
            request.get_ref();
        let project = admitted(caller(request)?, project_id, OPERATE)?;
        if self.administrator.limiter().project_snapshot(project.as_str()).is_none() {
            return Err(refusals::no_project());
        }
        let from = match after.as_str() {
            "" => EntryId::default(),
            id => id
                .parse::<EntryId>()
                .map_err(|error| invalid_field("after", &error.to_string()))?
                .next(),
        };
        let is_wait = |wait: &Duration| *wait <= MAX_WAIT;
        let wait = match wait {
            None => Duration::ZERO,
            Some(wait) => (micros(wait).map(Duration::from).filter(is_wait))
                .ok_or_else(|| invalid_field("wait", "must be 0s to 30s"))?,
        };
        let page_size = page_count(*page_size)?;
        let caller_deadline = deadline(request.metadata());
        let watch = if wait == Duration::ZERO {
            None
        } else {
            let holder = caller(request)?.watch_holder(project_id);
            Some(self.administrator.stats().watch(holder).map_err(decisions::refused)?)
        };
        let until = Deadline::within(wait);
        loop {
            let range = LogRange { from, before: EntryId::MAX };
            let deadline = caller_deadline.or_within(MAX_TIME);
            let log = log(project.as_str());
            let most = usize::try_from(MAX_PROJECT_EVENTS).unwrap_or(usize::MAX);
            let newest = self.administrator.fleet().read_of_project(log, range, most, deadline);
            let newest = newest.await.map_err(|error| refusals::store(&error))?;
            let Some(watch) = watch.as_ref().filter(|_| newest.is_empty() && !until.has_passed())
            else {
                let oldest = newest.into_iter().rev().take(page_size);
                let events = oldest.filter_map(|entry| {
                    let event = proto::ThresholdEvent::decode(&*entry.content).ok()?;
                    Some(proto::ThresholdEvent { id: entry.id.to_string(), ..event })
                });
                let events: Vec<_> = events.collect();
                let last = events.last().map_or_else(|| after.clone(), |event| event.id.clone());
                let dropped = self.metrics.thresholds.dropped(project.as_str());
                return Ok(proto::ListThresholdEventsResponse { events, last, dropped });
            };
            tokio::select! {
                () = pause(until.remaining().min(LOOK_INTERVAL)) => {}
                () = watch.drained() => return Err(decisions::refused(WatchError::Draining)),
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "neither the store nor another instance wakes this one"
)]
async fn pause(time: Duration) {
    sleep(time).await;
}
