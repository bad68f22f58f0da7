//! An instance: a limiter and a registry on a store, with their background work.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rlaas::clock::{Clock, Deadline, Timestamp};
use rlaas::rules::Rule;
use rlaas::rules::spec::{RuleSpec, RulesSpec};
use rlaas::store::{RedisSettings, RedisStore, Store};
use rlaas_auth::ProjectId;
use rlaas_limiter::Limiter;
use rlaas_limiter::fleet::Fleet;
use rlaas_projects::registry::{
    Change, ChangeError, ChangeRank, ChangeRequest, Changed, ProjectState, Registry,
};
use rlaas_projects::{Etag, Others, Project, ProjectRules, Revision, RuleWriteError, WriteStamp};
use rlaas_telemetry::metrics::Metrics;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// A running registry.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) registry: Registry,
    pub(super) metrics: Arc<Metrics>,
    background: [AbortHandle; 2],
}

/// The outcome of a write of rules.
pub(super) type RulesWritten = Result<Changed<usize>, ChangeError<RuleWriteError>>;

impl Running {
    pub(super) fn on_redis(settings: &RedisSettings) -> Self {
        let store = RedisStore::new(settings, Arc::new(Metrics::new())).expect("valid settings");
        Self::on(Store::Redis(Arc::new(store)))
    }

    pub(super) fn on(store: Store) -> Self {
        let metrics = Arc::new(Metrics::new());
        let rules = RulesSpec { rules: vec![rule("file", 7)], ..RulesSpec::default() };
        let limiter = Limiter::new(rules.build().expect("rules"), store, metrics.clone());
        let fleet = Fleet::new(limiter.store());
        let registry = Registry::new(limiter.clone(), fleet, metrics.clone());
        registry.set_new_catalogue_delay(Duration::ZERO);
        let background =
            [tokio::spawn(async move { limiter.run().await }).abort_handle(), follow(&registry)];
        Self { registry, metrics, background }
    }

    /// Ends the looks at the catalogue, but for those of writes.
    pub(super) fn stop_following(&self) {
        self.background[1].abort();
    }

    /// Begins to look at the catalogue again.
    pub(super) fn resume_following(&mut self) {
        self.background[1] = follow(&self.registry);
    }

    /// Creates a project, or renames it.
    pub(super) async fn put(
        &self,
        id: &str,
        name: &str,
    ) -> Result<Changed<()>, ChangeError<Infallible>> {
        let (project_id, name) = (project_id(id), name.to_owned());
        let id = project_id.clone();
        let change = move |before: Option<&ProjectState>| {
            let project = before.map(|before| before.project.clone());
            let mut project =
                project.unwrap_or_else(|| Project::new(id.clone(), "", now()).expect("a project"));
            project.rename(&name, now()).expect("a short name");
            let rules = before.map(|before| before.rules.clone()).unwrap_or_default();
            Ok(Change { after: Some((project, rules)), revision: None, result: () })
        };
        make_change(&self.registry, project_id, ChangeRank::default(), change).await
    }

    /// Writes rules, all or none; returns how many changed.
    pub(super) async fn apply(&self, id: &str, specs: &[RuleSpec], others: Others) -> RulesWritten {
        let specs = specs.to_vec();
        let change = move |rules: &mut ProjectRules, by| {
            let changes = rules.apply(specs.clone(), others, by)?;
            Ok((changes.len(), changes))
        };
        self.change_rules(id, change).await
    }

    /// Changes the rules of a project that exists.
    pub(super) async fn change_rules(
        &self,
        id: &str,
        change: impl Fn(
            &mut ProjectRules,
            WriteStamp,
        ) -> Result<(usize, Vec<rlaas_projects::RuleChange>), RuleWriteError>
        + Send
        + 'static,
    ) -> RulesWritten {
        let change = move |before: Option<&ProjectState>| {
            let before = before.ok_or(RuleWriteError::NotFound)?;
            let mut rules = before.rules.clone();
            let by = WriteStamp { at: now(), etag: Etag(before.revision) };
            let (result, changes) = change(&mut rules, by)?;
            let revision = (!changes.is_empty()).then(|| Revision {
                number: 0,
                at: by.at,
                actor: "test".to_owned(),
                action: "ApplyRules".to_owned(),
                reason: String::new(),
                changes,
            });
            Ok(Change { after: Some((before.project.clone(), rules)), revision, result })
        };
        make_change(&self.registry, project_id(id), ChangeRank::default(), change).await
    }

    pub(super) async fn delete(&self, id: &str) -> Result<Changed<()>, ChangeError<Infallible>> {
        let change =
            |_: Option<&ProjectState>| Ok(Change { after: None, revision: None, result: () });
        make_change(&self.registry, project_id(id), ChangeRank::default(), change).await
    }

    /// Returns the revision of a project; 0 if there is none.
    pub(super) fn revision(&self, id: &str) -> u64 {
        self.registry.project(&project_id(id)).map_or(0, |state| state.revision)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.background.iter().for_each(AbortHandle::abort);
    }
}

fn follow(registry: &Registry) -> AbortHandle {
    let registry = registry.clone();
    tokio::spawn(async move { registry.run(&Notify::new()).await }).abort_handle()
}

/// Returns the id of a project; `_` is the unnamed one.
pub(super) fn project_id(text: &str) -> ProjectId {
    if text == "_" { ProjectId::UNNAMED } else { text.parse().expect("an id") }
}

pub(super) fn rule(name: &str, units: u64) -> RuleSpec {
    Rule::gcra(name).limit(units).per(Duration::from_mins(1))
}

/// Makes a change that nothing is done before.
pub(super) async fn make_change<T: Send + 'static, E: Send + 'static>(
    registry: &Registry,
    id: ProjectId,
    rank: ChangeRank,
    change: impl FnMut(Option<&ProjectState>) -> Result<Change<T>, E> + Send + 'static,
) -> Result<Changed<T>, ChangeError<E>> {
    let request = ChangeRequest { id: &id, rank, deadline: soon() };
    registry.change(request, change).await
}

pub(super) fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(10))
}

pub(super) fn now() -> Timestamp {
    Clock::default().now()
}
