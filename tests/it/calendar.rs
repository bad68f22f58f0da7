//! Windows of a calendar: their boundaries, and random histories, on both stores.

use std::collections::HashMap;
use std::sync::Arc;

use rlaas::algorithm::{Algorithm, Cost, Limit, TakenUnits};
use rlaas::calendar::{Calendar, CalendarUnit};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas::plan::Plan;
use rlaas::rules::spec::RuleSpec;
use rlaas::rules::{
    Coupling, Grant, HashedParts, HoldTerms, KeyHasher, Part, Request, Rule, RuleSet,
};
use rlaas_limiter::operation::{Action, Reply, StoreHit, StoreRequest};
use rlaas_limiter::reservation::{Reservation, ReservationUse};
use rlaas_proto::ratelimit::v1::{CheckRequest, GetConfigRequest};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, request, run};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;

use crate::admin::journal::wait_for_snapshot;
use crate::http::client::post;

/// Of all kinds: north and south, half hours, days that are left out, clocks that change at midnight, a year
/// with a fast of its own, and none that changes.
const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Apia",
];

const HOUR: u64 = 3_600_000_000;
/// 1995-01-01, and 30 years.
const FROM: u64 = 788_918_400_000_000;
const UNTIL: u64 = FROM + 30 * 8_766 * HOUR;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn rules(calendar: &'static Calendar, units: u64, holds: bool) -> RuleSet {
    let limit = Limit::new(units, calendar).expect("a limit");
    let terms = HoldTerms { longest: Micros::from_secs(86_400), most: 6, share: None };
    let limit = if holds { limit.with_max_debt(50).expect("a debt") } else { limit };
    let holds = holds.then_some(terms);
    let rule =
        Rule { holds, overridable: true, ..Rule::new_default(Algorithm::FixedWindow, limit) };
    RuleSet::new(rule, Vec::new())
}

/// Asserts that the windows of a calendar follow each other without a gap, and that each begins at the
/// first moment of a day that the calendar may begin with. Returns the boundaries.
fn boundaries(calendar: &'static Calendar, anchor: i8) -> Vec<Timestamp> {
    let zone = jiff::tz::db().get(calendar.zone()).expect("a zone");
    let day_of = |time: u64| {
        let micros = i64::try_from(time).expect("a time");
        let time = jiff::Timestamp::from_microsecond(micros).expect("a time");
        time.to_zoned(zone.clone()).date()
    };
    let (mut window, mut all) = (calendar.window_at(at(FROM)), Vec::new());
    while window.end < at(UNTIL) {
        let [start, end] = [window.start, window.end].map(Timestamp::as_micros);
        assert_eq!(calendar.window_at(at(end - 1)), window);
        let next = calendar.window_at(window.end);
        assert_eq!((next.start, end > start), (window.end, true), "{calendar} {window}");
        // A day that a zone has left out begins with the next one.
        let (first, before) = (day_of(end), day_of(end - 1));
        let is_left_out = before.tomorrow().ok() != Some(first) && before != first;
        assert!(is_left_out || before < first, "{calendar}: {before} {first}");
        let months = first.month() - 1;
        let day = anchor.min(first.days_in_month());
        let begins = match calendar.unit() {
            CalendarUnit::Day => true,
            CalendarUnit::Week => first.weekday().to_monday_one_offset() == anchor,
            CalendarUnit::Month => first.day() == day,
            CalendarUnit::Quarter => first.day() == day && months % 3 == 0,
            CalendarUnit::Year => first.day() == day && months == 0,
        };
        assert!(begins || is_left_out, "{calendar}: {first}");
        assert!(next.to_string().ends_with(&first.to_string()) || is_left_out, "{next} {first}");
        all.push(window.end);
        window = next;
    }
    all
}

/// Every unit, with two anchors where it has any.
const UNITS: [(CalendarUnit, u8); 9] = [
    (CalendarUnit::Day, 1),
    (CalendarUnit::Week, 1),
    (CalendarUnit::Week, 6),
    (CalendarUnit::Month, 1),
    (CalendarUnit::Month, 31),
    (CalendarUnit::Quarter, 1),
    (CalendarUnit::Quarter, 30),
    (CalendarUnit::Year, 1),
    (CalendarUnit::Year, 15),
];

fn calendar_of(unit: CalendarUnit, zone: &str, anchor: u8) -> &'static Calendar {
    let anchor = (unit != CalendarUnit::Day).then_some(anchor.into());
    Calendar::new(unit, zone, anchor).expect("a calendar")
}

#[tokio::test]
async fn a_count_ends_with_its_window_on_both_stores() {
    // All boundaries on both stores take a minute.
    let step = if std::env::var_os("SOAK").is_some() { 1 } else { 37 };
    let server = Arc::new(RedisServer::start());
    let take = [Action::Take(Cost::new(3))];
    let mut checked = 0;
    for zone in ZONES {
        for (unit, anchor) in UNITS {
            let calendar = calendar_of(unit, zone, anchor);
            let ends = boundaries(calendar, i8::try_from(anchor).expect("small"));
            let services = [
                Service::on_memory(rules(calendar, 5, false)),
                Service::on_redis(rules(calendar, 5, false), Arc::clone(&server)),
            ];
            let _flushed: String = server.query(&["FLUSHALL"]);
            for end in ends.into_iter().step_by(step) {
                checked += 1;
                let user = format!("user-{checked}");
                for service in &services {
                    service.set_clock(at(end.as_micros() - 1));
                    for (allowed, left) in [(true, 2), (false, 2)] {
                        let replies = service.reply_to(&user, &take, Coupling::AllOrNothing);
                        let decision = replies.await[0].decision;
                        assert_eq!((decision.is_allowed(), decision.remaining), (allowed, left));
                        assert_eq!(decision.reset_after, Micros::from_micros(1), "{calendar}");
                    }
                    service.set_clock(end);
                    let replies = service.reply_to(&user, &take, Coupling::AllOrNothing).await;
                    let decision = replies[0].decision;
                    assert_eq!((decision.is_allowed(), decision.remaining), (true, 2));
                    let window = calendar.window_at(end);
                    assert_eq!(decision.reset_after, window.end.since(end), "{calendar}");
                    assert_eq!(decision.ttl, window.end.since(end), "{calendar}");
                }
            }
        }
    }
    assert!(checked > 800, "{checked}");
}

#[tokio::test]
async fn a_count_goes_on_in_another_zone_where_the_first_day_is_the_same() {
    let server = Arc::new(RedisServer::start());
    let [utc, berlin] =
        ["UTC", "Europe/Berlin"].map(|zone| calendar_of(CalendarUnit::Month, zone, 1));
    let new_york = calendar_of(CalendarUnit::Month, "America/New_York", 1);
    // 2026-11-15, and 23:30 on the last day of November in UTC.
    let (middle, late) = (at(1_794_700_800_000_000), at(1_796_081_400_000_000));
    for service in
        [Service::on_memory(rules(utc, 5, false)), Service::on_redis(rules(utc, 5, false), server)]
    {
        let take = async |units| {
            let action = [Action::Take(Cost::new(units))];
            let reply = &service.reply_to("alice", &action, Coupling::AllOrNothing).await[0];
            (reply.decision.remaining, reply.decision.ttl)
        };
        service.set_clock(middle);
        assert_eq!(take(2).await, (3, utc.window_at(middle).end.since(middle)));
        service.limiter.replace_rules(rules(berlin, 5, false));
        let until = berlin.window_at(middle).end.since(middle);
        assert_eq!(until + Micros::from_secs(3_600), utc.window_at(middle).end.since(middle));
        assert_eq!(take(1).await.0, 2);
        assert_eq!(take(0).await, (2, until), "the time to live follows the zone");
        // In New York it is still November, though the count was of a month that is over in UTC.
        service.limiter.replace_rules(rules(new_york, 5, false));
        service.set_clock(at(late.as_micros() + 2 * HOUR));
        assert_eq!(take(0).await.0, 2);
        service.limiter.replace_rules(rules(berlin, 5, false));
        assert_eq!(take(1).await.0, 4, "it is December in Berlin");
    }
}

struct CalendarRandom(u64);

impl CalendarRandom {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % below
    }
}

type CalendarAct = (Action, Option<Reservation>, Option<OverrideChange>);

fn random_act(random: &mut CalendarRandom, taken: &[TakenUnits], holds: bool) -> CalendarAct {
    let cost = Cost::new(u32::try_from(random.below(8)).expect("small"));
    let number = u128::from(random.below(6));
    let reservation = |purpose| Some(Reservation { number, purpose });
    let hold_for = Micros::from_micros(random.below(24) * HOUR + HOUR);
    match random.below(16) {
        0..=4 => (Action::Take(cost), None, None),
        5 => (Action::Peek(cost), None, None),
        6 => (Action::Report(cost), None, None),
        7 => (Action::Credit(cost), None, None),
        8 if random.below(3) == 0 => (Action::Reset, None, None),
        9 if !taken.is_empty() => {
            let which = random.below(taken.len() as u64);
            (Action::Refund(taken[usize::try_from(which).expect("small")]), None, None)
        }
        10 if random.below(2) == 0 => {
            let grant = match random.below(3) {
                0 => KeyGrant::Banned,
                1 => KeyGrant::Unlimited,
                _ => KeyGrant::Limited { units: 30, burst: 30 },
            };
            let change = OverrideChange::new(grant, hold_for, b"why").expect("a change");
            (Action::SetOverride, None, Some(change))
        }
        11 => (Action::ClearOverride(OverrideKind::Both), None, None),
        12 | 13 if holds => {
            (Action::Hold(cost), reservation(ReservationUse::Reserve { hold_for }), None)
        }
        14 if holds => {
            let memory = Micros::from_secs(600);
            // No time is too late.
            let (ends_at, counts_ended) = (Timestamp::from_micros(1 << 52), number % 2 == 0);
            let settle = ReservationUse::Settle { memory, ends_at, counts_ended };
            (Action::Settle(Some(cost)), reservation(settle), None)
        }
        _ => (Action::Peek(Cost::NONE), None, None),
    }
}

async fn execute(on: &Service, (action, reservation, change): &CalendarAct) -> Reply {
    let plan = on.plan("alice", 1);
    let hit = plan.hits[0].for_store().expect("a limit");
    let hits = [StoreHit { action: *action, change: change.as_ref(), ..hit }];
    let (coupling, shard) = (Coupling::AllOrNothing, on.limiter.store().shard(hit.key));
    let reservation = reservation.as_ref();
    let request = StoreRequest { hits: &hits, coupling, shard, once: None, reservation };
    let mut reply = on.limiter.store().execute(request, Deadline::NEVER).await.expect("a reply");
    if reply.reservation.is_some() && reservation.is_some_and(|one| settles(one.purpose)) {
        // Nothing was decided.
        reply.hits.clear();
    }
    reply
}

fn settles(purpose: ReservationUse) -> bool {
    matches!(purpose, ReservationUse::Settle { .. })
}

#[tokio::test]
async fn both_stores_answer_alike_in_random_histories() {
    let histories = if std::env::var_os("SOAK").is_some() { 5_000 } else { 150 };
    let server = Arc::new(RedisServer::start());
    let mut denied = 0;
    for seed in 0..histories {
        let mut random = CalendarRandom(seed);
        let pick = |random: &mut CalendarRandom| {
            let zone = ZONES[usize::try_from(random.below(10)).expect("small")];
            let (unit, anchor) = UNITS[usize::try_from(random.below(9)).expect("small")];
            calendar_of(unit, zone, anchor)
        };
        let (mut calendar, holds) = (pick(&mut random), random.below(2) == 0);
        let memory = Service::on_memory(rules(calendar, 12, holds));
        let redis = Service::on_redis(rules(calendar, 12, holds), Arc::clone(&server));
        let _flushed: String = server.query(&["FLUSHALL"]);
        let mut now = at(FROM + random.below(20 * 8_766) * HOUR + random.below(HOUR));
        let mut taken = Vec::new();
        for step in 0..50 {
            let wait =
                [0, random.below(HOUR), random.below(40 * HOUR), random.below(40 * 24 * HOUR)];
            let wait = wait[[0, 1, 2, 0, 1, 3][step % 6]];
            now = now + Micros::from_micros(wait);
            // Of another day Redis keeps the count until its end, and memory has one count.
            let (other, name) = (pick(&mut random), calendar.window_at(now).to_string());
            if other.window_at(now).to_string() == name {
                calendar = other;
                for service in [&memory, &redis] {
                    service.limiter.replace_rules(rules(calendar, 12, holds));
                }
            }
            memory.set_clock(now);
            redis.set_clock(now);
            let act = random_act(&mut random, &taken, holds);
            let reply = execute(&memory, &act).await;
            let context = format!("seed {seed}, step {step}, {calendar} at {now:?}: {act:?}");
            assert_eq!(execute(&redis, &act).await, reply, "{context}");
            let Some(hit) = reply.hits.first() else { continue };
            denied += usize::from(!hit.decision.is_allowed());
            if let (Action::Take(cost), true) = (act.0, hit.taken > 0) {
                let (at, reset_after) = (hit.decision.at, hit.decision.reset_after);
                taken.push(TakenUnits { cost, at, reset_after });
            }
        }
    }
    assert!(denied > 300, "{denied}");
}

#[test]
fn the_anchor_of_a_request_is_that_of_all_its_limits() {
    let spec = "{name: quota, algorithm: fixed-window, limit: 10, post-paid: true, \
                calendar: {unit: month, anchor-from: day}, overrides: \
                [{match: {user-id: vip}, limit: 20}, {match: {user-id: free}, unlimited: true}]}";
    let spec: RuleSpec = serde_saphyr::from_str(spec).expect("a rule");
    let hashed = HashedParts::new(
        KeyHasher::new(|_| [7; 16]),
        [Part::UserId, Part::Attribute("day".to_owned())],
    );
    let limit = Limit::new(1, Micros::from_secs(1)).expect("a limit");
    let default = Rule::new_default(Algorithm::Gcra, limit);
    let rules = RuleSet::new(default, vec![spec.build().expect("a valid rule")]);
    let rules = rules.with_hashed_parts(hashed);
    let anchored = calendar_of(CalendarUnit::Month, "UTC", 15);
    let attributes = [("day", "15")];
    let of = |user| Request::user(user).attributes(&attributes[..]).build().expect("a request");
    let calendar = |grant: &Grant| grant.limit().and_then(|limit| limit.windows().calendar());
    for user in ["alice", "vip"] {
        let plan = Plan::for_request(&rules, &of(user));
        assert_eq!(calendar(&plan.hits[0].grant), Some(anchored), "{user}");
        // The key has the anchor, which is not hashed.
        let id = plan.hits[0].key.id();
        assert!(id.ends_with("15"), "{id}");
    }
    let plan = Plan::for_report(&rules, &of("free"));
    let counted_by = plan.hits[0].counted_by.as_deref().expect("the limit beneath");
    assert_eq!(calendar(counted_by), Some(anchored));
}

const RULES: &str = "\
rules:
  - name: quota
    match: {attributes: {customer: '*'}}
    key-by: [customer]
    algorithm: fixed-window
    limit: 10
    calendar: {unit: month, zone: europe/berlin, anchor: 15, anchor-from: billing_day}
    overridable: true
";

fn of_customer(billing_day: &str) -> CheckRequest {
    let mut attributes = HashMap::from([("customer".to_owned(), "acme".to_owned())]);
    if !billing_day.is_empty() {
        attributes.insert("billing_day".to_owned(), billing_day.to_owned());
    }
    CheckRequest { attributes, ..request("alice") }
}

/// Returns the end of the current month of an anchor in Berlin, in seconds.
fn end_of_month(anchor: u8) -> i64 {
    let calendar = calendar_of(CalendarUnit::Month, "Europe/Berlin", anchor);
    let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).expect("a time");
    let end = calendar.window_at(at(now)).end.as_micros() / 1_000_000;
    i64::try_from(end).expect("small")
}

async fn assert_calendar(server: &Rlaas) {
    let mut client = server.client().await;
    // Of each anchor the windows are others; what is no anchor counts as that of the rule.
    for (billing_day, anchor) in [("", 15), ("1", 1), ("31", 31), ("0", 15), ("x", 15)] {
        for left in [9, 8] {
            let checked = client.check(of_customer(billing_day)).await.expect("a decision");
            let checked = checked.into_inner();
            assert_eq!((checked.allowed, checked.remaining), (true, left), "{billing_day}");
            let end = checked.reset_at.expect("an end");
            assert_eq!((end.seconds, end.nanos), (end_of_month(anchor), 0));
            assert_eq!(checked.decisions[0].reset_at, checked.reset_at);
        }
    }
    let config = client.get_config(GetConfigRequest::default()).await.expect("rules").into_inner();
    let quota = config.rules.iter().find(|rule| rule.name == "quota").expect("the rule");
    let calendar = quota.calendar.as_ref().expect("a calendar");
    assert_eq!(calendar.words(), "month from day attributes.billing_day, else 15 (Europe/Berlin)");
    assert_eq!(quota.window, None);
    assert_eq!(quota.key_by, ["attributes.customer", "attributes.billing_day"]);
    let body = r#"{"userId": "alice", "attributes": {"customer": "b"}}"#;
    let checked = post(server, "/v1/check", body).await;
    let policy = checked.header("ratelimit-policy").expect("a policy");
    let length = policy.split("w=").nth(1).expect("a window").parse::<i64>().expect("seconds");
    // 28 to 31 days, of which one may have an hour more or less.
    assert!((27 * 86_400..32 * 86_400).contains(&length), "{policy}");
    assert_eq!(checked.json()["decisions"][0]["window"], format!("{length}s"));
    // A rule of another kind says nothing of an end.
    let other = client.check(request("bob")).await.expect("a decision").into_inner();
    assert_eq!(other.reset_at, None);
}

#[tokio::test]
async fn a_month_is_that_of_the_customer() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    assert_calendar(&Rlaas::start_from(&rules, &[])).await;
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let server = Rlaas::start_from(&rules, &["store.backend=redis", &url]);
    assert_calendar(&server).await;
    let keys: Vec<String> = redis.query(&["KEYS", "*:month:*"]);
    assert_eq!(keys.len(), 6, "{keys:?}");
    let (status, explained, _) =
        run(&["explain", "alice", "--attribute", "customer=acme", "--addr", server.grpc()]);
    assert_eq!(status, 0);
    for text in ["2 of 10 used, resets 15 ", ", 00:00 Europe/Berlin"] {
        assert!(explained.contains(text), "{text}: {explained}");
    }
    let (_, listed, _) = run(&["rule", "list", "--in-force", "--addr", server.grpc()]);
    assert!(listed.contains("month from day attributes.billing_day"), "{listed}");
}

#[tokio::test]
async fn a_month_in_memory_outlives_a_kill() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let state_dir = format!("state-dir={}", dir.path("state").display());
    let settings = [&*state_dir, "store.memory.snapshot=1s"];
    let server = Rlaas::start_from(&rules, &settings);
    server.client().await.check(of_customer("")).await.expect("a decision");
    wait_for_snapshot(&server).await;
    server.signal("KILL");
    let server = Rlaas::start_from(&rules, &settings);
    let checked = server.client().await.check(of_customer("")).await.expect("a decision");
    assert_eq!(checked.get_ref().remaining, 8);
}

#[test]
fn what_is_no_calendar_is_named() {
    let dir = TempDir::new();
    for (limit, problem) in [
        ("unit: minute, calendar: true", "only with one day, week, month or year"),
        ("unit: month, unit_multiplier: 2, calendar: true", "only with one day"),
        ("unit: month, algorithm: gcra, calendar: true", "only with one day"),
        ("window: 30d, calendar: true", "requires unit"),
    ] {
        let limits = format!(
            "domain: a\ndescriptors: [{{key: k, rate_limit: {{requests_per_unit: 1, {limit}}}}}]\n"
        );
        let limits = dir.write("limits.yaml", &limits);
        let file = dir.write("envoy.yaml", &format!("envoy: {{files: [{}]}}\n", limits.display()));
        let (code, out, error) = run(&["check-config", &file.display().to_string()]);
        assert_eq!(code, 64, "{limit}: {out}{error}");
        assert!(format!("{out}{error}").contains(problem), "{limit}: {out}{error}");
    }
}
