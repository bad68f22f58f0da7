//! Projects: the same names of rules and the same ids in two projects share nothing, in memory, in
//! Redis and in a cluster.

use std::sync::Arc;
use std::time::Duration;

use rlaas::algorithm::{Algorithm, Limit, OnChange};
use rlaas::clock::{Deadline, Micros};
use rlaas::control::{KeyGrant, OverrideChange};
use rlaas::observer::NoObserver;
use rlaas::plan::{SelectedKey, Selector, SelectorTarget};
use rlaas::rules::{Request, Rule, RuleSet};
use rlaas::store::{RedisSettings, RedisStore, Servers, Store};
use rlaas_limiter::{CheckError, KeyChange, Limiter, Verdict};
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::eventually;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;

use super::cases;

super::on_both! { projects }

cases! {
    all, redis;
    every_key_begins_with_the_project: three;
}

/// 3 units a minute and debt, overridable, with a policy for changes of the limit.
fn three(algorithm: Algorithm) -> RuleSet {
    let limit = Limit::new(3, Micros::from_secs(60)).and_then(|limit| limit.with_max_debt(3));
    let default = Rule::new_default(algorithm, limit.expect("a limit"));
    let on_change = Some(OnChange::KeepUsed);
    let pay = Rule { name: "pay".into(), overridable: true, on_change, ..default.clone() };
    RuleSet::new(default, vec![pay])
}

async fn check(limiter: &Limiter, project: &str, user: &str) -> Result<Verdict, CheckError> {
    let request = Request::user(user).request_id("x").in_project(project);
    limiter.check(&request.build().expect("a valid request"), Deadline::NEVER).await
}

fn keys(limiter: &Limiter, project: &str, user: &str) -> Vec<SelectedKey> {
    let request = Request::user(user).build().expect("a valid request");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
    limiter.project_snapshot(project).expect("a project").rules.select(&selector).expect("keys")
}

async fn ban(limiter: &Limiter, project: &str, user: &str) {
    let ban = OverrideChange::new(KeyGrant::Banned, Micros::from_secs(60), b"why");
    let keys = keys(limiter, project, user);
    for change in [KeyChange::Reset, KeyChange::SetOverride(ban.expect("a valid change"))] {
        limiter.change(&keys, &change, Deadline::NEVER).await.expect("a change");
    }
}

async fn every_key_begins_with_the_project(on: Service) {
    on.limiter.replace_project_rules("shop", three(on.algorithm()));
    for user in ["alice", "{", "rlaas:rule:pay", ":", "\0"] {
        assert!(check(&on.limiter, "shop", user).await.expect("a verdict").is_allowed());
        ban(&on.limiter, "shop", user).await;
    }
    let stored = on.redis().expect("a service on Redis").keys();
    for kind in ["rule:pay:", "control:", "once:"] {
        let start = format!("rlaas:p:shop:{kind}alice");
        assert!(stored.iter().any(|key| key.starts_with(&start)), "{start}: {stored:?}");
    }
    let others = stored.iter().filter(|key| !key.starts_with("rlaas:p:shop:"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new());
    let listed = on.limiter.store().list_overrides("", 100, Deadline::NEVER).await;
    assert_eq!(listed.expect("a page").keys.len(), 5);
}

#[tokio::test]
async fn projects_share_nothing_in_a_cluster() {
    let cluster = RedisCluster::start(3, 0).await;
    let seeds = cluster.urls().iter().map(|url| url.parse().expect("a valid url")).collect();
    let timeout = Duration::from_secs(10);
    let settings = RedisSettings { timeout, ..RedisSettings::new(Servers::Cluster { seeds }) };
    let store = RedisStore::new(&settings, Arc::new(NoObserver)).expect("valid settings");
    let rules = three(Algorithm::Gcra);
    let limiter = Limiter::new(rules.clone(), Store::Redis(Arc::new(store)), Arc::new(NoObserver));
    let background = limiter.clone();
    let running = tokio::spawn(async move { background.run().await });
    let looks = Request::user("alice").cost(0).build().expect("a valid request");
    let up = async || limiter.check(&looks, Deadline::NEVER).await.is_ok();
    eventually("the cluster decides", timeout, up).await;
    let projects = ["", "shop", "shop-1"];
    for project in projects {
        limiter.replace_project_rules(project, rules.clone());
    }
    for number in 0..30 {
        let user = format!("id-{number}");
        for is_replay in [false, true] {
            for project in projects {
                let verdict = check(&limiter, project, &user).await.expect("a verdict");
                assert!(verdict.is_allowed() && verdict.replayed == is_replay, "{project}");
            }
        }
        ban(&limiter, "shop", &user).await;
        for project in projects {
            let request = Request::user(&user).in_project(project).build().expect("valid");
            let verdict = limiter.check(&request, Deadline::NEVER).await.expect("a verdict");
            assert_eq!(verdict.is_allowed(), project != "shop", "{project}");
            let key = &keys(&limiter, project, &user)[0].hit.key;
            let other = &keys(&limiter, "", &user)[0].hit.key;
            assert_eq!(limiter.store().shard(key), limiter.store().shard(other));
        }
    }
    let mut listed = Vec::new();
    let mut cursor = Some(String::new());
    while let Some(from) = cursor {
        let page = limiter.store().list_overrides(&from, 7, Deadline::NEVER).await;
        let page = page.expect("a page");
        listed.extend(page.keys);
        cursor = page.next;
    }
    assert!(listed.iter().all(|of| of.key.project() == "shop"), "{listed:?}");
    assert_eq!(listed.len(), 30);
    for node in 0..3 {
        let keys: Vec<String> = RedisServer::keys(cluster.node(node));
        assert!(keys.iter().any(|key| key.starts_with("rlaas:p:shop:rule:pay:{id-")), "{keys:?}");
    }
    running.abort();
}
