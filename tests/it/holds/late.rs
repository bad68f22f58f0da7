//! Commits of reservations that have ended: the clock of the store decides, and nobody pays twice.

use rlaas_limiter::rules::{Costs, Request};
use rlaas_limiter::{CheckError, OpenReservation, Settled, Settling};

use super::*;

const MINUTE: Micros = Micros::from_secs(60);

/// A budget for a year, so that nothing comes back with time.
fn budget() -> RuleSet {
    let limit = Limit::new(100, Micros::from_secs(366 * 86_400)).expect("a limit");
    let holds = Some(HoldTerms { longest: MINUTE, most: MAX_HOLDS, share: None });
    RuleSet::new(Rule { holds, ..Rule::new_default(Algorithm::FixedWindow, limit) }, Vec::new())
}

fn services() -> [Service; 2] {
    let server = Arc::new(RedisServer::start());
    [Service::on_memory(budget()), Service::on_redis(budget(), server)]
}

fn alice() -> Request<'static> {
    Request::user("alice").cost(4).build().expect("a request")
}

async fn reserve(on: &Service) -> OpenReservation {
    let reserved = on.limiter.reserve(&alice(), Some(MINUTE), Deadline::NEVER).await;
    reserved.expect("a verdict").reservation.expect("a reservation")
}

/// Commits with the request. Returns what was charged, and whether that was replayed or reported.
async fn commit(on: &Service, open: &OpenReservation) -> Result<(u64, bool, bool), String> {
    let settling = Settling { actual: None, actuals: Costs::NONE };
    let settled = on.limiter.settle_or_count(Some(open), &alice(), settling, Deadline::NEVER).await;
    let Settled { settlements, replayed, reported } =
        settled.map_err(|error: CheckError| error.to_string())?;
    Ok((settlements[0].1.charged, replayed, reported))
}

async fn used(on: &Service) -> u64 {
    peek(on).await.0.current_count
}

const FORGOTTEN: &str =
    "the reservation ended too long ago: it is not known whether it was charged";

#[tokio::test]
async fn clock_that_steps_over_the_end_makes_no_work_free() {
    for service in services() {
        let name = service.limiter.store().name();
        let open = reserve(&service).await;
        // Nobody has asked the store since.
        service.at(61.0);
        assert_eq!(commit(&service, &open).await, Ok((4, false, true)), "{name}");
        assert_eq!(commit(&service, &open).await, Ok((4, true, false)), "{name}");
        assert_eq!(used(&service).await, 4, "{name}");
    }
}

#[tokio::test]
async fn clock_that_steps_over_a_settlement_charges_nobody_twice() {
    for service in services() {
        let name = service.limiter.store().name();
        let open = reserve(&service).await;
        assert_eq!(commit(&service, &open).await, Ok((4, false, false)), "{name}");
        service.at(650.0);
        assert_eq!(used(&service).await, 4, "{name}");
        service.at(850.0);
        assert_eq!(commit(&service, &open).await, Err(FORGOTTEN.to_owned()), "{name}");
        assert_eq!(used(&service).await, 4, "{name}");
    }
}

#[tokio::test]
async fn memory_whose_clock_steps_forward_and_back_charges_nobody_twice() {
    let service = Service::on_memory(budget());
    let open = reserve(&service).await;
    assert_eq!(commit(&service, &open).await, Ok((4, false, false)));
    service.at(1_500.0);
    assert!(commit(&service, &open).await.is_err());
    for seconds in [0.0, 30.0, 61.0, 659.0] {
        service.at(seconds);
        // Known, or not known any more: the clock stood beyond it for a moment.
        let again = commit(&service, &open).await;
        assert!(matches!(again, Ok((4, true, false)) | Err(_)), "{seconds}: {again:?}");
        assert_eq!(used(&service).await, 4, "{seconds}");
    }
    // Those who reserve now pay as ever.
    service.at(660.0);
    let open = reserve(&service).await;
    service.at(721.0);
    assert_eq!(commit(&service, &open).await, Ok((4, false, true)));
}

#[tokio::test]
async fn reservation_that_was_shortened_is_charged_late() {
    for service in services() {
        let name = service.limiter.store().name();
        let open = reserve(&service).await;
        let shorter = Some(Micros::from_secs(1));
        let extended =
            service.limiter.extend(&open, Cost::NONE, Costs::NONE, shorter, Deadline::NEVER).await;
        assert_eq!(extended.expect("an extension").1, T0 + Micros::from_secs(1), "{name}");
        service.at(2.0);
        assert_eq!(commit(&service, &open).await, Ok((4, false, true)), "{name}");
        assert_eq!(commit(&service, &open).await, Ok((4, true, false)), "{name}");
        assert_eq!(used(&service).await, 4, "{name}");
    }
}

#[tokio::test]
async fn repeated_reserve_says_that_it_is_replayed() {
    for service in services() {
        let name = service.limiter.store().name();
        let once = alice().with_request_id("one").expect("an id");
        let mut ends = Vec::new();
        for replayed in [false, true, true] {
            let reserved = service.limiter.reserve(&once, None, Deadline::NEVER).await;
            let reserved = reserved.expect("a verdict");
            assert_eq!(reserved.verdict.replayed, replayed, "{name}");
            ends.push(reserved.reservation.expect("a reservation").ends_at);
            service.at(10.0);
        }
        assert_eq!(ends, [T0 + MINUTE; 3], "{name}");
    }
}
