//! `hold-share`: a reservation holds a part of the budget at most, however high its estimate is.

use rlaas_limiter::plan::{Selector, SelectorTarget};
use rlaas_limiter::rules::{Costs, Request, Share};
use rlaas_limiter::{CheckError, KeyChange, Reserved, Settled, Settling};

use super::*;

const BUDGET: u64 = 30_000;
const LONG: Micros = Micros::from_secs(86_400);

fn rule_with(share_ppm: Option<u32>) -> Rule {
    let limit = Limit::new(BUDGET, Limit::MAX_WINDOW).expect("a limit");
    let limit = limit.with_max_debt(BUDGET).expect("a debt");
    let share = share_ppm.and_then(Share::new);
    let holds = Some(HoldTerms { longest: LONG, most: 1_000, share });
    Rule { holds, overridable: true, ..Rule::new_default(Algorithm::TokenBucket, limit) }
}

fn services_with(share_ppm: Option<u32>, server: &Arc<RedisServer>) -> [Service; 2] {
    let _flushed: String = server.query(&["FLUSHALL"]);
    let rules = || rules(rule_with(share_ppm));
    [Service::on_memory(rules()), Service::on_redis(rules(), Arc::clone(server))]
}

async fn reserve(on: &Service, cost: u32) -> Reserved {
    let request = Request::user("alice").cost(cost).build().expect("a request");
    on.limiter.reserve(&request, None, Deadline::NEVER).await.expect("a verdict")
}

/// Returns what a verdict says that is held, and whether it allows.
fn held(reserved: &Reserved) -> (u64, bool) {
    (reserved.verdict.deciding().held, reserved.verdict.is_allowed())
}

async fn commit(
    on: &Service,
    reserved: &Reserved,
    actual: Option<u32>,
) -> Result<Settled, CheckError> {
    let open = reserved.reservation.as_ref().expect("a reservation");
    let settling = Settling { actual: actual.map(Cost::new), actuals: Costs::NONE };
    on.limiter.settle(open, settling, Deadline::NEVER).await
}

/// Sets an override of the key of alice.
async fn grant(on: &Service, grant: KeyGrant) {
    let request = Request::user("alice").build().expect("a request");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: None };
    let keys = on.limiter.snapshot().rules.select(&selector).expect("a key");
    let change = OverrideChange::new(grant, LONG, b"why").expect("a change");
    on.limiter
        .change(&keys, &KeyChange::SetOverride(change), Deadline::NEVER)
        .await
        .expect("a change");
}

#[tokio::test]
async fn a_cost_is_held_by_the_share_of_its_grant() {
    let server = Arc::new(RedisServer::start());
    for service in services_with(Some(200_000), &server) {
        let name = service.limiter.store().name();
        // 20 % of 30,000; a cost above the limit too.
        let first = reserve(&service, 12_000).await;
        assert_eq!(held(&first), (6_000, true), "{name}");
        let large = reserve(&service, 50_000).await;
        assert_eq!(held(&large), (6_000, true), "{name}");
        assert_eq!(held(&reserve(&service, 5_000).await), (5_000, true), "{name}");
        let dry = Request::user("alice").cost(50_000).dry_run().build().expect("a request");
        let dry = service.limiter.reserve(&dry, None, Deadline::NEVER).await.expect("a verdict");
        assert_eq!((held(&dry), dry.reservation), ((0, true), None), "{name}");
        // A Check takes all of its cost, and holds nothing.
        let check = Request::user("alice").cost(50_000).build().expect("a request");
        let checked = service.limiter.check(&check, Deadline::NEVER).await.expect("a verdict");
        let decided = checked.deciding();
        assert_eq!((decided.held, decided.decision.outcome), (0, Outcome::Impossible), "{name}");

        // An extension adds what is asked, and a settlement charges it all.
        let open = first.reservation.as_ref().expect("a reservation");
        let (cost, costs) = (Cost::new(9_000), Costs::NONE);
        let extended = service.limiter.extend(open, cost, costs, None, Deadline::NEVER).await;
        let (verdict, _) = extended.expect("an extension");
        assert_eq!(
            (verdict.deciding().held, verdict.deciding().decision.remaining),
            (15_000, 4_000)
        );
        let denied = reserve(&service, 12_000).await;
        assert_eq!(
            (held(&denied), denied.verdict.deciding().is_held),
            ((0, false), true),
            "{name}"
        );
        let settled = commit(&service, &first, None).await.expect("a settlement");
        assert_eq!(settled.settlements[0].1.charged, 15_000, "{name}");
        let settled = commit(&service, &large, Some(50_000)).await.expect("a settlement");
        let (charged, debt) = (settled.settlements[0].1.charged, settled.settlements[0].1.debt);
        assert_eq!((charged, debt), (45_000, 30_000), "{name}: the debt ends at its most");
    }
}

#[tokio::test]
async fn the_share_is_that_of_the_override_in_force() {
    let server = Arc::new(RedisServer::start());
    for service in services_with(Some(200_000), &server) {
        let name = service.limiter.store().name();
        grant(&service, KeyGrant::Limited { units: 60_000, burst: 100 }).await;
        assert_eq!(held(&reserve(&service, 12_000).await), (20, true), "{name}");
        grant(&service, KeyGrant::Limited { units: 60_000, burst: 3 }).await;
        // At least one unit: three are left of the override beside 20 that are held.
        let denied = reserve(&service, 12_000).await;
        assert_eq!(held(&denied), (0, false), "{name}");
        grant(&service, KeyGrant::Unlimited).await;
        let unlimited = reserve(&service, 12_000).await;
        assert_eq!(held(&unlimited), (0, true), "{name}");
        assert!(unlimited.reservation.is_some(), "{name}");
        grant(&service, KeyGrant::Banned).await;
        assert_eq!(held(&reserve(&service, 12_000).await), (0, false), "{name}");
    }
}

#[tokio::test]
async fn the_same_request_id_holds_the_same() {
    let server = Arc::new(RedisServer::start());
    for service in services_with(Some(100_000), &server) {
        let request = Request::user("alice").cost(12_000).request_id("a").build();
        let request = request.expect("a request");
        for replayed in [false, true] {
            let reserved = service.limiter.reserve(&request, None, Deadline::NEVER).await;
            let reserved = reserved.expect("a verdict");
            assert_eq!((held(&reserved), reserved.verdict.replayed), ((3_000, true), replayed));
            assert_eq!(reserved.verdict.deciding().decision.remaining, 27_000);
        }
    }
}

/// What callers have come to, who hold 12,000 and use 600 until no more is left for one that holds alone.
#[derive(Debug, Default)]
struct Race {
    used: u64,
    refused: u64,
}

/// Races 20 callers.
async fn race(service: &Service) -> Race {
    let caller = async || {
        let mut race = Race::default();
        loop {
            let reserved = reserve(service, 12_000).await;
            if reserved.reservation.is_none() {
                if !reserved.verdict.deciding().is_held {
                    return race;
                }
                race.refused += 1;
                tokio::task::yield_now().await;
                continue;
            }
            // The others come while it works.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let settled = commit(service, &reserved, Some(600)).await.expect("a settlement");
            race.used += settled.settlements[0].1.charged;
        }
    };
    let races = futures_util::future::join_all((0..20).map(|_| caller())).await;
    races.into_iter().fold(Race::default(), |all, own| Race {
        used: all.used + own.used,
        refused: all.refused + own.refused,
    })
}

#[tokio::test]
async fn callers_use_nearly_all_of_a_budget() {
    let server = Arc::new(RedisServer::start());
    for (share_ppm, least, most) in [
        (None, 18_000, 20_000),
        (Some(50_000), 28_000, 30_000),
        // 300 are held for 600 that are used: 20 at once overspend 300 each at most.
        (Some(10_000), 29_700, 36_000),
    ] {
        for service in services_with(share_ppm, &server) {
            let race = race(&service).await;
            let (name, percent) = (service.limiter.store().name(), race.used * 100 / BUDGET);
            eprintln!("{share_ppm:?} on {name}: {percent} % used, {} refusals", race.refused);
            assert!((least..=most).contains(&race.used), "{share_ppm:?} on {name}: {race:?}");
        }
    }
}
