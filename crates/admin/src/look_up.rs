//! `LookUp`: what refuses a user or a customer under the rules of projects, in a sentence and key by key; of an
//! API key its project and state.
//!
//! The keys are those that consist of the user id, or of an attribute with this value, those that a request of
//! the user without anything else meets, those with an override, and those that were refused in the last hour.

mod sentence;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use prost_types::Duration;
use rlaas_auth::{ProjectId, deadline};
use rlaas_limiter::KeyState;
use rlaas_limiter::store::StoreError;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::project_service_server::ProjectService;
use rlaas_proto::ratelimit::v1::RuleMode;
use rlaas_proto::rule_messages::calendar_window;
use rlaas_proto::values::timestamp;
use rlaas_proto::{API_KEY_ID_LEN, TypedApiKey};
use tonic::{Code, Request, Status};

use self::sentence::{Effect, sentence};
use super::messages::key_state;
use super::projects::OPERATE;
use super::{MAX_TIME, Service, caller, refusals};
use rlaas_core::clock::{Clock, Deadline};
use rlaas_core::plan::{KeyPart, SelectedKey, Selector, SelectorTarget};
use rlaas_core::rules::Key;
use rlaas_proto::status::invalid_field;

/// Most keys that are looked at, and most of an answer.
const MAX_KEYS: usize = 1_000;
const MAX_SHOWN: usize = 100;
/// Most pages of overrides, and keys of each.
const MAX_PAGES: usize = 20;
const PAGE_SIZE: usize = 1_000;
/// Time of the counts, and most keys with counts.
const HOUR: Duration = Duration { seconds: 3_600, nanos: 0 };
const MAX_COUNTED: i32 = 128;

impl Service {
    /// Answers `LookUp`.
    pub(super) async fn looked_up(
        &self,
        request: &Request<proto::LookUpRequest>,
    ) -> Result<proto::LookUpResponse, Status> {
        let proto::LookUpRequest { user_id, project_id } = request.get_ref();
        let projects = self.projects_of(caller(request)?, project_id, OPERATE)?;
        let typed = TypedApiKey::whole(user_id);
        let api_key = self.api_key(request, typed.map_or(&**user_id, |typed| typed.id())).await;
        if let Some(typed) = typed {
            // A secret that is not known is still no user id.
            let secret = || typed.is_secret().then(|| no_api_key(typed));
            if let Some(answer) = api_key.clone().or_else(secret) {
                return Ok(proto::LookUpResponse { answer, ..Default::default() });
            }
        }
        let of_caller = deadline(request.metadata());
        let deadline = of_caller.or_within(MAX_TIME);
        let mut own = Vec::new();
        for project in &projects {
            let snapshot = self.administrator.limiter().project_snapshot(project.as_str());
            let Some(snapshot) = snapshot else { continue };
            let keys = snapshot.rules.select_user(user_id);
            own.extend(keys.map_err(|_| invalid_field("user_id", "must be 1 to 1024 bytes"))?);
            own.extend(snapshot.rules.select_attribute(user_id));
        }
        // Half of the time is for the states.
        let until = Deadline::within(deadline.remaining() / 2);
        let (mut found, is_complete) = self.keys_with_overrides(user_id, &projects, until).await;
        let (counted, are_counts_complete) = self.counts_of(request).await;
        let mut counts = HashMap::<Key, [u64; 2]>::new();
        for (at, list) in [counted.denied, counted.used].into_iter().enumerate() {
            for proto::TopKey { project_id, rule, key, count, .. } in list.unwrap_or_default().keys
            {
                let id = key.unwrap_or_default().id;
                if let Some(key) = self.key_by_id(&project_id, &rule, &id) {
                    counts.entry(key.hit.key.clone()).or_default()[at] = count;
                    found.push(key);
                }
            }
        }
        // Of too many, those with an override and those that were refused are looked at.
        found.extend(own);
        let mut known = HashSet::new();
        found.retain(|key| known.insert(key.hit.key.clone()));
        let left_out = found.len().saturating_sub(MAX_KEYS);
        let incomplete = !is_complete || !are_counts_complete || left_out > 0;
        found.truncate(MAX_KEYS);
        let states = self.with_states(found, &counts, deadline).await;
        let mut keys = states.map_err(|error| match error {
            // The time that a look-up has was over before: the store did not answer until then.
            StoreError::Expired if !of_caller.has_passed() => {
                refusals::store(&StoreError::Unreachable)
            }
            error => refusals::store(&error),
        })?;
        keys.sort_by_cached_key(|key| {
            let rule = key.state.as_ref().map(|state| state.rule.clone());
            (Effect::from(key), Reverse(key.refused), key.project_id.clone(), rule)
        });
        let mut keyed_otherwise = counted.keyed_otherwise;
        let rules =
            keys.iter().filter_map(|key| Some((&*key.project_id, &*key.state.as_ref()?.rule)));
        let rules: HashSet<_> = rules.collect();
        keyed_otherwise.retain(|rule| !rules.contains(&(&*rule.project_id, &*rule.rule)));
        let mut answer = sentence(user_id, &keys, timestamp(Clock::default().now()));
        if let Some(typed) = typed.filter(|_| keys.is_empty()) {
            answer = format!("{answer}; {}", no_api_key(typed));
        }
        if let Some(api_key) = api_key {
            answer = if keys.is_empty() { api_key } else { format!("{api_key}; {answer}") };
        }
        if incomplete {
            answer.push_str("; not all keys were looked at");
        }
        let left_out = left_out + keys.len().saturating_sub(MAX_SHOWN);
        keys.truncate(MAX_SHOWN);
        Ok(proto::LookUpResponse {
            answer,
            keys,
            keys_left_out: u32::try_from(left_out).unwrap_or(u32::MAX),
            keyed_otherwise,
            keyed_otherwise_left_out: counted.keyed_otherwise_left_out,
            coverage: counted.coverage,
            incomplete,
        })
    }

    /// Returns the answer for an API key, given by its id; `None` if no project that the caller may see has it.
    async fn api_key(&self, request: &Request<proto::LookUpRequest>, id: &str) -> Option<String> {
        if id.len() != API_KEY_ID_LEN {
            return None;
        }
        let (project_id, key_id) = (request.get_ref().project_id.clone(), id.to_owned());
        let list = proto::ListKeysRequest { project_id, key_id, ..Default::default() };
        let (metadata, extensions) = (request.metadata().clone(), request.extensions().clone());
        let keys = self.projects.list_keys(Request::from_parts(metadata, extensions, list)).await;
        let key = keys.ok()?.into_inner().keys.into_iter().next()?;
        Some(format!("API key {id} of the project {} is {}", key.project_id, key.state_word()))
    }

    /// Returns the key of a rule with this id, if there still is one.
    pub(super) fn key_by_id(&self, project: &str, rule: &str, id: &str) -> Option<SelectedKey> {
        let selector = Selector { target: SelectorTarget::Id(id), rule: Some(rule) };
        self.administrator.select(project, &selector).ok()?.pop()
    }

    /// Returns the keys with overrides that have the user id as a part, and `false` if there was no time to
    /// look at all.
    async fn keys_with_overrides(
        &self,
        user: &str,
        projects: &[ProjectId],
        until: Deadline,
    ) -> (Vec<SelectedKey>, bool) {
        let limiter = self.administrator.limiter();
        let hashed = self.administrator.key_hasher().map(|hasher| hasher.shown(user));
        let is_user = |part: &KeyPart| {
            part.value.as_ref().is_some_and(|value| value == user || Some(value) == hashed.as_ref())
        };
        let own: HashSet<&str> = projects.iter().map(ProjectId::as_str).collect();
        let (mut found, mut token) = (Vec::new(), String::new());
        for _ in 0..MAX_PAGES {
            // Of a store that is away the states say so.
            let page = limiter.store().list_overrides(&token, PAGE_SIZE, until).await;
            let Ok(page) = page else { break };
            for entry in page.keys {
                let Some(snapshot) = limiter.snapshot_of_key(&entry.key) else { continue };
                let (rule, parts) = snapshot.rules.describe(&entry.key);
                let project = entry.key.project_name().unwrap_or_default();
                let is_found = own.contains(&*project) && parts.iter().any(is_user);
                let rule = rule.filter(|_| is_found);
                found.extend(rule.and_then(|rule| self.key_by_id(&project, &rule, entry.key.id())));
            }
            let Some(next) = page.next else { return (found, true) };
            token = next;
        }
        (found, false)
    }

    /// Returns the keys of the user with their counts in the last hour, none if they are not counted; and `false` if
    /// they could not be read.
    async fn counts_of(
        &self,
        request: &Request<proto::LookUpRequest>,
    ) -> (proto::TopKeysResponse, bool) {
        let proto::LookUpRequest { user_id, project_id } = request.get_ref().clone();
        let counts = proto::TopKeysRequest {
            project_id,
            window: Some(HOUR),
            max_keys: MAX_COUNTED,
            value: user_id,
            ..proto::TopKeysRequest::default()
        };
        let (metadata, extensions) = (request.metadata(), request.extensions());
        let counts = Request::from_parts(metadata.clone(), extensions.clone(), counts);
        let counted = self.highest_counts(&counts).await;
        match counted.map_err(|status| status.code()) {
            Ok(counted) => (counted.into_inner(), true),
            // They are not counted, or the user id is longer than those that are found there.
            Err(Code::FailedPrecondition | Code::InvalidArgument) => {
                (proto::TopKeysResponse::default(), true)
            }
            Err(_) => (proto::TopKeysResponse::default(), false),
        }
    }

    /// Reads the states of keys.
    pub(super) async fn states(
        &self,
        keys: &[SelectedKey],
        deadline: Deadline,
    ) -> Result<Vec<KeyState>, StoreError> {
        let mut states = Vec::new();
        for chunk in keys.chunks(Selector::MAX_KEYS) {
            // Boxed because it is large.
            let read = Box::pin(self.administrator.limiter().inspect(chunk, deadline));
            states.extend(read.await?);
        }
        Ok(states)
    }

    /// Reads the states of keys. Returns those that were used, refused, banned or granted something else.
    async fn with_states(
        &self,
        keys: Vec<SelectedKey>,
        counts: &HashMap<Key, [u64; 2]>,
        deadline: Deadline,
    ) -> Result<Vec<proto::UserKey>, StoreError> {
        let states = self.states(&keys, deadline).await?;
        let user_key = |(key, state): (SelectedKey, KeyState)| {
            let state = key_state(state);
            let [refused, taken] = counts.get(&key.hit.key).copied().unwrap_or_default();
            let is_used = state.used > 0 || refused > 0 || state.limit == 0;
            let is_shown = is_used || !state.overrides.is_empty();
            (is_shown && state.mode() != RuleMode::Off).then(|| proto::UserKey {
                project_id: key.hit.key.project_name().unwrap_or_default(),
                state: Some(state),
                overridable: key.hit.overridable,
                refused,
                taken,
                calendar: calendar_window(key.hit.window, None),
            })
        };
        Ok(keys.into_iter().zip(states).filter_map(user_key).collect())
    }
}

/// Returns the answer for an API key that was not found.
fn no_api_key(typed: TypedApiKey<'_>) -> String {
    format!("no project that you may see has an API key {}", typed.id())
}
