//! The builder of a limiter.

use std::sync::Arc;

use thiserror::Error;

use super::{DenyCache, DenyCacheSettings, Limiter};
use crate::clock::Clock;
use crate::observer::{NoObserver, Observer};
use crate::rules::Unmatched;
use crate::rules::spec::{Field, Problem, RuleSpec, RulesSpec};
use crate::store::{CustomStore, MemorySettings, MemoryStore, Store};
#[cfg(feature = "redis")]
use crate::store::{RedisSettings, RedisStore, SettingError};
#[cfg(feature = "yaml")]
use crate::yaml::{YamlError, read_specs};

/// Builds a [`Limiter`]; created by [`Limiter::builder`].
#[derive(Debug)]
#[must_use]
pub struct LimiterBuilder {
    rules: RulesSpec,
    store: StoreChoice,
    deny_cache: Option<DenyCacheSettings>,
    clock: Clock,
    observer: Arc<dyn Observer>,
}

#[derive(Debug)]
enum StoreChoice {
    Memory(MemorySettings),
    #[cfg(feature = "redis")]
    Redis(Box<RedisSettings>),
    Custom(Arc<dyn CustomStore>),
}

/// Error of [`LimiterBuilder::build`].
#[derive(Debug, Error)]
pub enum BuildError {
    /// Some rules are invalid; every problem is listed with the path of its field.
    #[error("{}", listed(.0))]
    Rules(Vec<Problem>),
    /// The text is not a rules file.
    #[cfg(feature = "yaml")]
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// The certificates for Redis are invalid.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] SettingError),
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Limiter {
    /// Returns a builder of a limiter that decides from memory and has no rules. Requests that no
    /// rule matches are allowed.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder {
            rules: RulesSpec { unmatched: Field::Set(Unmatched::Allow), ..RulesSpec::default() },
            store: StoreChoice::Memory(MemorySettings::default()),
            deny_cache: None,
            clock: Clock::default(),
            observer: Arc::new(NoObserver),
        }
    }
}

impl LimiterBuilder {
    /// Adds a rule, such as `Rule::gcra("login").limit(5).per(Duration::from_secs(60))`.
    pub fn rule(mut self, rule: RuleSpec) -> Self {
        self.rules.rules.push(rule);
        self
    }

    /// Replaces all rules, and the policy for requests that no rule matches.
    pub fn rules(self, rules: RulesSpec) -> Self {
        Self { rules, ..self }
    }

    /// Replaces all rules by those of a YAML text in the format of the service's rules file. In
    /// this format the default rule decides requests that no rule matches, unless `unmatched` is
    /// set.
    ///
    /// # Errors
    ///
    /// [`BuildError::Yaml`] if the text can't be read. Invalid fields are reported by
    /// [`LimiterBuilder::build`].
    #[cfg(feature = "yaml")]
    pub fn yaml(self, text: &str) -> Result<Self, BuildError> {
        Ok(self.rules(read_specs(text)?))
    }

    /// Sets the policy for requests that no rule matches.
    pub fn unmatched(mut self, policy: Unmatched) -> Self {
        self.rules.unmatched = Field::Set(policy);
        self
    }

    /// Selects the memory store, with these bounds.
    pub fn memory(self, settings: MemorySettings) -> Self {
        Self { store: StoreChoice::Memory(settings), ..self }
    }

    /// Selects the Redis store. [`Limiter::run`] connects to it.
    #[cfg(feature = "redis")]
    pub fn redis(self, settings: RedisSettings) -> Self {
        Self { store: StoreChoice::Redis(Box::new(settings)), ..self }
    }

    /// Selects a custom store.
    pub fn custom(self, store: impl CustomStore + 'static) -> Self {
        Self { store: StoreChoice::Custom(Arc::new(store)), ..self }
    }

    /// Adds a deny cache, which repeats a denial for as long as it holds, without calling the
    /// store. It pays off if each decision is a call over the network.
    pub fn deny_cache(self, settings: DenyCacheSettings) -> Self {
        Self { deny_cache: Some(settings), ..self }
    }

    /// Sets the clock of the memory store and the deny cache. Redis uses its own clock.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Sets the observer of decisions and events.
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Builds the limiter. This neither connects nor spawns tasks.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if rules, YAML or certificates are invalid.
    pub fn build(self) -> Result<Limiter, BuildError> {
        let Self { rules, store, deny_cache, clock, observer } = self;
        let rules = rules.build().map_err(BuildError::Rules)?;
        let deny_cache = deny_cache.map(|settings| DenyCache::new(settings, clock.clone()));
        let store_observer = Arc::clone(&observer);
        let store = match store {
            StoreChoice::Memory(settings) => {
                Store::Memory(MemoryStore::new(settings, clock, store_observer))
            }
            #[cfg(feature = "redis")]
            StoreChoice::Redis(settings) => {
                Store::Redis(Arc::new(RedisStore::new(&settings, store_observer)?))
            }
            StoreChoice::Custom(store) => Store::Custom(store),
        };
        Ok(Limiter::with_parts(rules, store, deny_cache, observer))
    }
}
