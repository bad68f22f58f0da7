//! An instance: a Redis store with its background work, and its fleet.

use std::sync::Arc;
use std::time::Duration;

use rlaas_limiter::fleet::Fleet;
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::store::{
    Credentials, Health, RedisSettings, RedisStore, RedisUrl, Secret, Servers, Store,
};
use rlaas_testkit::eventually;
use tokio::task::AbortHandle;

/// A running store and its fleet.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(super) store: Store,
    pub(crate) fleet: Fleet,
    background: AbortHandle,
}

impl Instance {
    /// Starts an instance, and waits for its store.
    pub(crate) async fn start(settings: RedisSettings) -> Self {
        let instance = Self::begin(&settings);
        let health = instance.store.health();
        let is_up = async || *health.borrow() == Health::Up;
        eventually("the store answers", Duration::from_secs(10), is_up).await;
        instance
    }

    /// Starts an instance.
    pub(super) fn begin(settings: &RedisSettings) -> Self {
        let store = RedisStore::new(settings, Arc::new(NoObserver)).expect("valid settings");
        let store = Store::Redis(Arc::new(store));
        let kept = store.clone();
        let background = tokio::spawn(async move { kept.run().await }).abort_handle();
        Self { fleet: Fleet::new(&store), store, background }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// Returns settings for one server.
pub(crate) fn standalone(url: &str) -> RedisSettings {
    RedisSettings::new(Servers::Standalone(Box::new(parsed(url))))
}

/// Returns settings for a cluster.
pub(crate) fn cluster(urls: &[String]) -> RedisSettings {
    RedisSettings::new(Servers::Cluster { seeds: urls.iter().map(|url| parsed(url)).collect() })
}

/// Returns settings for sentinels.
pub(crate) fn sentinel(urls: &[String]) -> RedisSettings {
    let sentinels = urls.iter().map(|url| parsed(url)).collect();
    RedisSettings::new(Servers::Sentinel { sentinels, master_name: "mymaster".to_owned() })
}

/// Returns settings for one server with the credentials of an ACL user.
pub(crate) fn as_user(url: &str, name: &str, password: &str) -> RedisSettings {
    let credentials = Credentials {
        username: Some(name.to_owned()),
        password: Some(Secret(password.to_owned())),
    };
    RedisSettings { credentials, ..standalone(url) }
}

fn parsed(url: &str) -> RedisUrl {
    url.parse().expect("a valid url")
}
