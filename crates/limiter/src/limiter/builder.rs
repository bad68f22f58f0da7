//! Makes a limiter step by step.

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

/// Makes a [`Limiter`]; begun by [`Limiter::builder`].
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

/// Why there is no limiter.
#[derive(Debug, Error)]
pub enum BuildError {
    /// Rules are not valid: every problem, with the path of its field.
    #[error("{}", listed(.0))]
    Rules(Vec<Problem>),
    /// A text is not a rules file.
    #[cfg(feature = "yaml")]
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// The certificates for Redis can't be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] SettingError),
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Limiter {
    /// Begins a limiter that decides from memory, by no rules yet: requests that no rule matches
    /// pass.
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

    /// Takes all rules, and the policy for requests that none of them matches, from here. Rules
    /// that were added before are replaced.
    pub fn rules(self, rules: RulesSpec) -> Self {
        Self { rules, ..self }
    }

    /// Takes all rules from YAML in the format of the service's rules file. There the default rule
    /// decides on requests that no rule matches, unless `unmatched` says otherwise.
    ///
    /// # Errors
    ///
    /// [`BuildError::Yaml`] if the text can't be read. What is not valid in it is reported by
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

    /// Decides from memory, within these bounds.
    pub fn memory(self, settings: MemorySettings) -> Self {
        Self { store: StoreChoice::Memory(settings), ..self }
    }

    /// Decides in Redis. [`Limiter::run`] connects.
    #[cfg(feature = "redis")]
    pub fn redis(self, settings: RedisSettings) -> Self {
        Self { store: StoreChoice::Redis(Box::new(settings)), ..self }
    }

    /// Decides in a store of one's own.
    pub fn custom(self, store: impl CustomStore + 'static) -> Self {
        Self { store: StoreChoice::Custom(Arc::new(store)), ..self }
    }

    /// Answers denials that still hold without the store; worth it where a decision is a
    /// call over the network.
    pub fn deny_cache(self, settings: DenyCacheSettings) -> Self {
        Self { deny_cache: Some(settings), ..self }
    }

    /// Takes the time from here, for memory and the deny cache; Redis has a clock of its own.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Reports to `observer`.
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Makes the limiter. Nothing is connected or spawned.
    ///
    /// # Errors
    ///
    /// [`BuildError`].
    pub fn build(self) -> Result<Limiter, BuildError> {
        let Self { rules, store, deny_cache, clock, observer } = self;
        let rules = rules.build().map_err(BuildError::Rules)?;
        let deny_cache = deny_cache.map(|settings| DenyCache::new(settings, clock.clone()));
        let of_store = Arc::clone(&observer);
        let store = match store {
            StoreChoice::Memory(settings) => {
                Store::Memory(MemoryStore::new(settings, clock, of_store))
            }
            #[cfg(feature = "redis")]
            StoreChoice::Redis(settings) => {
                Store::Redis(Arc::new(RedisStore::new(&settings, of_store)?))
            }
            StoreChoice::Custom(store) => Store::Custom(store),
        };
        Ok(Limiter::with_parts(rules, store, deny_cache, observer))
    }
}
