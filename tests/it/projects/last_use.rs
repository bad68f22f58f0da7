//! The last use of API keys: the latest of all instances, to the hour.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rlaas::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_auth::KnownApiKeys;
use rlaas_limiter::fleet::Fleet;
use rlaas_projects::usage::UsageRecorder;
use rlaas_projects::{ApiKeySecret, Environment, Keyring, NewKey, Project};
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::eventually;
use rlaas_testkit::redis::RedisServer;

use super::instance::{project_id, soon};
use crate::fleet::instance::{Instance, standalone};

const HOUR: Micros = Micros::from_secs(3_600);
/// A full hour, 2023-11-14, 22:00 UTC.
const T0: Timestamp = Timestamp::from_millis(1_699_999_200_000);

/// The keys of an instance, and what it reports of them.
struct ReportedKeys {
    keyring: Keyring,
    usage: UsageRecorder,
}

impl ReportedKeys {
    fn new(fleet: &Fleet, name: &str, shop: &Project) -> Self {
        let keyring = Keyring::default();
        keyring.replace(&shop.id, &shop.keys);
        keyring.confirm();
        let clock = Clock::Manual(ManualClock::new(T0));
        let metrics = Arc::new(Metrics::new());
        let usage = UsageRecorder::new(fleet.clone(), metrics, keyring.clone(), name, clock);
        Self { keyring, usage }
    }

    fn show(&self, key: &ApiKeySecret, at: Timestamp) {
        self.keyring.find(key.expose(), at).expect("a valid key");
    }

    async fn last_uses(&self) -> HashMap<String, Timestamp> {
        self.usage.last_uses(&project_id("shop"), soon()).await
    }
}

#[tokio::test]
async fn last_use_is_the_latest_of_all_instances() {
    let mut redis = RedisServer::start();
    let store = Instance::start(standalone(&redis.url())).await;
    let mut shop = Project::new(project_id("shop"), "", T0).expect("a project");
    let secret = || ApiKeySecret::generate(&Environment::default()).expect("random numbers");
    let (first, second) = (secret(), secret());
    for key in [&first, &second] {
        shop.create_key(NewKey::default(), key, T0).expect("a key");
    }
    let [one, other] = ["one", "other"].map(|name| ReportedKeys::new(&store.fleet, name, &shop));
    let used = |times: &[(&ApiKeySecret, Micros)]| -> HashMap<String, Timestamp> {
        times.iter().map(|(key, after)| (key.id().to_owned(), T0 + *after)).collect()
    };
    one.usage.write().await;
    assert_eq!((one.last_uses().await, other.last_uses().await), (used(&[]), used(&[])));

    one.show(&first, T0 + Micros::from_secs(3_599));
    let at_first = used(&[(&first, Micros::ZERO)]);
    assert_eq!((one.last_uses().await, other.last_uses().await), (at_first.clone(), used(&[])));
    one.usage.write().await;
    assert_eq!(other.last_uses().await, at_first);

    other.show(&first, T0 + HOUR + HOUR);
    other.show(&second, T0 + HOUR);
    other.usage.write().await;
    // A clock that is behind, or an earlier use that is reported late, brings nothing back.
    one.show(&first, T0 + HOUR);
    one.usage.write().await;
    let latest = used(&[(&first, HOUR + HOUR), (&second, HOUR)]);
    assert_eq!((one.last_uses().await, other.last_uses().await), (latest.clone(), latest.clone()));

    // While the store is away, each instance shows what it knows.
    redis.query::<()>(&["SAVE"]);
    redis.kill();
    assert_eq!(one.last_uses().await, used(&[(&first, HOUR)]));
    assert_eq!(other.last_uses().await, latest);
    redis.restart();
    eventually("the store is back", Duration::from_secs(10), async || {
        one.last_uses().await == latest
    })
    .await;
    one.usage.remove("shop", soon()).await.expect("removed");
    assert_eq!(one.last_uses().await, used(&[(&first, HOUR)]));
}
