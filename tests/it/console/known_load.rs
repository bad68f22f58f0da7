//! A known load on two instances, with an outage of Redis in it, and one of them killed near its end: every table
//! adds up to the answers that clients were given, less what the killed instance had not told.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::admin_service_client::AdminServiceClient;
use rlaas_proto::ratelimit::v1::check_response::Source;
use rlaas_proto::ratelimit::v1::reservation_service_client::ReservationServiceClient;
use rlaas_proto::ratelimit::v1::{CheckRequest, CheckResponse, CommitRequest, ReserveRequest};
use rlaas_testkit::process::{Client, Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::CONSOLE;
use super::browser::{Browser, row};
use crate::admin::watch_stats::TimedServers;
use crate::http::client::send_with;
use crate::projects::usage_by_protocol::{create_shop, usage};

const TIMEOUT: Duration = Duration::from_mins(1);
const RULES: &str = "\
unmatched: deny
auth: {api-keys: accepted}
telemetry: {top-keys: true}
rules:
  - {name: single, endpoint: /one, limit: 7, window: 1h}
  - {name: pair, endpoint: /two, limit: 10, window: 1h, near-limit: 0.5}
  - {name: wide, match: {resource: /t*}, limit: 25, window: 1h}
  - {name: deep, endpoint: /three, limit: 12, window: 1h}
  - {name: trial, endpoint: /three, limit: 5, window: 1h, mode: shadow}
  - {name: open, endpoint: /open, limit: 8, window: 1h, on-store-failure: allow}
  - {name: gorl, endpoint: /gorl, limit: 2, window: 1h}
  - {name: quota, endpoint: /quota, algorithm: fixed-window, limit: 40, calendar: {unit: year}, reservable: true}
  - {name: place, match: {attributes: {place: '*'}}, key-by: [place], limit: 3, window: 1h}
";
const ENVOY: &str =
    "{domain: web, descriptors: [{key: client, rate_limit: {unit: year, requests_per_unit: 1}}]}";
const OF_ENVOY: &str = "web.client";
/// The rules of the project `shop`.
const SHOP: [&str; 1] = ["pay"];
/// Calls at a time to each instance.
const WORKERS: usize = 8;
/// Users who are looked up.
const USERS: [&str; 2] = [" user-0", " user-3"];

/// Of a project, its requests: allowed, denied, failed, rejected, and those allowed because the store failed. Of a
/// rule, its decisions: they allow, allow near the limit, deny, and deny in shadow mode; and requests on which it was
/// not asked. Of a key, refusals and units used.
type OutcomeCounts = [u64; 5];

/// What answers say: by `project ID`, `rule NAME` and `key RULE USER`.
#[derive(Clone, Debug, Default)]
struct AnswerCounts(BTreeMap<String, OutcomeCounts>);

/// Figures by what they are of.
#[derive(Debug, Default, PartialEq)]
struct Figures(BTreeMap<String, u64>);

impl Figures {
    fn put<const N: usize>(&mut self, name: &str, counts: [u64; N]) {
        let named = counts.into_iter().enumerate();
        self.0.extend(named.map(|(at, count)| (format!("{name} {at}"), count)));
    }
}

impl AnswerCounts {
    fn add(&mut self, name: String, more: OutcomeCounts) {
        let sum = self.0.entry(name).or_default();
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }

    fn count(&mut self, name: String, at: usize) {
        self.0.entry(name).or_default()[at] += 1;
    }

    fn plus(mut self, other: &Self) -> Self {
        other.0.iter().for_each(|(name, more)| self.add(name.clone(), *more));
        self
    }

    /// Returns the counts whose names begin so, by the rest of the name.
    fn named(&self, kind: &str) -> BTreeMap<&str, OutcomeCounts> {
        let all = self.0.iter();
        all.filter_map(|(name, counts)| Some((name.strip_prefix(kind)?, *counts))).collect()
    }

    /// Returns all requests together.
    fn all(&self) -> OutcomeCounts {
        let projects = self.named("project ").into_values();
        projects.fold([0; 5], |sum, more| std::array::from_fn(|at| sum[at] + more[at]))
    }

    /// Counts the answer to a request of a user that meets these rules.
    fn answer(&mut self, rules: &[&str], user: &str, answer: Result<CheckResponse, Status>) {
        let project = if rules == SHOP { "project shop" } else { "project " }.to_owned();
        let answer = match answer.map_err(|status| status.code()) {
            Ok(answer) => answer,
            Err(Code::Unavailable | Code::ResourceExhausted) => return self.count(project, 2),
            Err(Code::InvalidArgument) => return self.count(project, 3),
            Err(Code::PermissionDenied) => {
                self.count("no rule".to_owned(), 1);
                return self.count(project, 1);
            }
            Err(code) => panic!("{code:?}"),
        };
        self.count(project.clone(), usize::from(!answer.allowed));
        let by_policy = answer.source() == Source::FailOpen;
        if by_policy {
            self.count(project, 4);
        }
        for rule in rules {
            let decided = answer.decisions.iter().find(|decided| decided.rule == **rule);
            let outcome = decided.map_or(4, |decided| {
                let by_detail = if decided.allowed { decided.near_limit } else { decided.shadow };
                2 * usize::from(!decided.allowed) + usize::from(by_detail)
            });
            self.count(format!("rule {rule}"), outcome);
            let is_allowed = decided.is_some_and(|decided| decided.allowed);
            let refused = u64::from(decided.is_some() && !is_allowed);
            let granted = u64::from(is_allowed && answer.allowed && !by_policy);
            self.add(format!("key {rule} {user}"), [refused, granted, 0, 0, 0]);
        }
    }

    /// Returns the figures that must be shown, with the keys that `counted` has and so many instances missing.
    fn figures(&self, counted: &Self, missing: u64) -> Figures {
        let mut figures = Figures::default();
        let [allowed, denied, failed, rejected, fail_open] = self.all();
        figures.put("Now: tiles", [allowed + denied + failed, denied, failed, fail_open]);
        figures.put("Now: not valid", [rejected]);
        figures.put("Now: in no row", [self.0["no rule"][1], failed]);
        figures.put("Now: chart", [allowed - fail_open, fail_open, denied, failed]);
        figures.put("missing", [missing]);
        for (project, counts) in self.named("project ") {
            let [allowed, denied, failed, ..] = counts;
            figures.put(&format!("WatchStats: project {project}"), counts);
            figures.put(&format!("Now: project {project}"), [denied, allowed + denied + failed]);
        }
        for (rule, counts) in self.named("rule ") {
            let [allowed, near, denied, shadow, not_asked] = counts;
            let all = allowed + near + denied + shadow;
            figures.put(&format!("WatchStats: rule {rule}"), counts);
            figures.put(&format!("Now: rule {rule}"), [denied, all, near, shadow]);
            figures.put(&format!("tiles of {rule}"), [all, denied, shadow, near, not_asked]);
            figures.put(&format!("chart of {rule}"), [allowed, near, shadow, denied]);
            let keys = || counted.named(&format!("key {rule} ")).into_values();
            let refused = keys().map(|[refused, ..]| refused).sum();
            let used = keys().map(|[_, used, ..]| used).sum();
            figures.put(&format!("keys of {rule}"), [refused, missing, used]);
        }
        figures.put("Look up: keyed otherwise", [self.named("rule ")["place"][2]]);
        for (key, [_, charged, ..]) in self.named("key quota ") {
            if counted.0.contains_key(&format!("key quota {key}")) {
                figures.put(&format!("use of the quota: user_id={key}"), [charged]);
            }
        }
        for (key, [refused, granted, ..]) in counted.named("key ") {
            if refused > 0 {
                figures.put(&format!("key {key}"), [refused]);
            }
            if USERS.iter().any(|user| key.ends_with(user)) && !key.starts_with(OF_ENVOY) {
                figures.put(&format!("Look up: {key}"), [refused, granted]);
            }
        }
        figures
    }
}

/// A load in parts.
struct KnownLoad {
    secret: String,
    /// Number of users.
    users: usize,
    /// Answers so far.
    answers: Cell<usize>,
}

impl KnownLoad {
    /// Sends requests to an instance, several at a time.
    async fn send(&self, server: &Rlaas, numbers: Range<usize>) -> AnswerCounts {
        let channel = server.channel().await;
        let workers = (0..WORKERS).map(async |worker| {
            let (mut client, mut tally) = (Client::new(channel.clone()), AnswerCounts::default());
            for number in numbers.clone().skip(worker).step_by(WORKERS) {
                let user = &format!("user-{}", number / 10 % self.users);
                if number % 10 == 9 {
                    send_over_http(server, number / 10, user, &mut tally).await;
                } else {
                    self.call(&mut client, number, user, &mut tally).await;
                }
                self.answers.set(self.answers.get() + 1);
            }
            tally
        });
        join_all(workers).await.iter().fold(AnswerCounts::default(), AnswerCounts::plus)
    }

    async fn call(&self, client: &mut Client, number: usize, user: &str, tally: &mut AnswerCounts) {
        let (resource, rules): (_, &[&str]) = match number % 10 {
            0 => ("/one", &["single"]),
            1 | 2 => ("/two", &["pair", "wide"]),
            3..=5 => ("/three", &["wide", "deep", "trial"]),
            6 => ("/open", &["open"]),
            7 => ("/pay", &SHOP),
            _ => ("/three", &[]),
        };
        // Dry runs count nothing, and requests without a user are not valid.
        let (dry_run, is_invalid) = (number % 20 == 18, number % 20 == 8);
        let (resource, user_id) = (resource.to_owned(), if is_invalid { "" } else { user });
        let mut request = Request::new(CheckRequest { resource, dry_run, ..request(user_id) });
        if rules == SHOP {
            request.metadata_mut().insert("x-api-key", self.secret.parse().expect("a header"));
        }
        let answer = client.check(request).await.map(tonic::Response::into_inner);
        if !dry_run {
            tally.answer(rules, user, answer);
        }
    }
}

async fn send_over_http(server: &Rlaas, number: usize, user: &str, tally: &mut AnswerCounts) {
    let (path, body, rule) = if number.is_multiple_of(3) {
        let entries = json!([{ "key": "client", "value": user }]);
        let descriptors = json!([{ "entries": entries }]);
        ("/json", json!({ "domain": "web", "descriptors": descriptors }), OF_ENVOY)
    } else {
        ("/check", json!({ "endpoint": "/gorl", "key": user }), "gorl")
    };
    let (header, body) = ("Content-Type: application/json\r\n", body.to_string());
    let answer = send_with(server, "POST", path, header, Some(&body)).await;
    let (outcome, of_rule, of_key) = match answer.status {
        200 => (0, 0, [0, 1, 0, 0, 0]),
        429 => (1, 2, [1, 0, 0, 0, 0]),
        500 | 503 => return tally.count("project ".to_owned(), 2),
        _ => panic!("{answer:?}"),
    };
    tally.count("project ".to_owned(), outcome);
    tally.count(format!("rule {rule}"), of_rule);
    tally.add(format!("key {rule} {user}"), of_key);
}

/// Reserves for users who are looked up, and charges another cost; and asks for somebody else, by a rule that is not
/// keyed by users, and without a rule.
async fn reserve(server: &Rlaas, tally: &mut AnswerCounts) {
    let mut client = ReservationServiceClient::new(server.channel().await);
    for (charged, user) in (1..=8).zip(USERS.into_iter().cycle()) {
        let (resource, cost, user) = ("/quota".to_owned(), Some(10), user.trim());
        let request = Some(CheckRequest { resource, cost, ..request(user) });
        let reserved = client.reserve(ReserveRequest { request, ttl: None }).await;
        let reserved = reserved.expect("an answer").into_inner();
        let is_denied = !reserved.verdict.expect("a verdict").allowed;
        tally.count("project ".to_owned(), is_denied.into());
        tally.count("rule quota".to_owned(), 2 * usize::from(is_denied));
        let charged = if is_denied { 0 } else { charged };
        tally.add(format!("key quota {user}"), [is_denied.into(), charged, 0, 0, 0]);
        if !is_denied {
            let (reservation_id, actual) = (reserved.reservation_id, Some(charged));
            let commit = CommitRequest { reservation_id, actual, ..Default::default() };
            client.commit(commit).await.expect("a settlement");
        }
    }
    let unknown = CheckRequest { resource: "/none".to_owned(), ..request("somebody") };
    let answer = server.client().await.check(unknown).await;
    tally.answer(&[], "", answer.map(tonic::Response::into_inner));
    let attributes = [("place".to_owned(), "x".to_owned())].into();
    let of_place = CheckRequest { attributes, ..request("somebody") };
    for _ in 0..5 {
        let answer = server.client().await.check(of_place.clone()).await;
        tally.answer(&["place"], "x", answer.map(tonic::Response::into_inner));
    }
}

/// The instances, and what they show.
struct Shown {
    timed: TimedServers,
    browser: Browser,
    admin: AdminServiceClient<Channel>,
}

impl Shown {
    /// Moves time until every figure is as it must be; returns the newest coverage.
    async fn settle(
        &mut self,
        told: &AnswerCounts,
        counted: &AnswerCounts,
        missing: u64,
    ) -> proto::Coverage {
        let expected = told.figures(counted, missing);
        let mut found = Figures::default();
        for _ in 0..8 {
            let before = self.points(&mut Figures::default()).await;
            self.timed.advance(10);
            eventually("a point", TIMEOUT, async || {
                self.points(&mut Figures::default()).await.1 != before.1
            })
            .await;
            found = Figures::default();
            let coverage = self.points(&mut found).await.0;
            self.pages(told, &mut found).await;
            self.keys(told, counted, &mut found).await;
            if found == expected {
                return coverage;
            }
        }
        let wrong = found.0.iter().filter(|(name, count)| expected.0.get(*name) != Some(count));
        let right = expected.0.iter().filter(|(name, count)| found.0.get(*name) != Some(count));
        panic!("{:?} in place of {:?}", wrong.collect::<Vec<_>>(), right.collect::<Vec<_>>());
    }

    /// Adds the figures of statistics; returns the coverage of the newest point, and its end.
    async fn points(
        &self,
        figures: &mut Figures,
    ) -> (proto::Coverage, Option<prost_types::Timestamp>) {
        let request = proto::WatchStatsRequest {
            project_id: "-".to_owned(),
            history: Some(prost_types::Duration { seconds: 900, nanos: 0 }),
            past_only: true,
            ..Default::default()
        };
        let points = self.admin.clone().watch_stats(request).await.expect("a stream");
        let (mut points, mut tally) = (points.into_inner(), AnswerCounts::default());
        let (mut coverage, mut until) = (proto::Coverage::default(), None);
        while let Some(point) = points.message().await.expect("a point") {
            for of_project in point.requests {
                let proto::RequestStats { allowed, denied, failed, rejected, fail_open, .. } =
                    of_project;
                let counts = [allowed, denied, failed, rejected, fail_open];
                tally.add(format!("project {}", of_project.project_id), counts);
            }
            for of_rule in point.rules {
                let proto::RuleStats { allowed, near_limit, denied, shadow_denied, .. } = of_rule;
                let counts = [allowed, near_limit, denied, shadow_denied, of_rule.not_asked];
                tally.add(format!("rule {}", of_rule.rule), counts);
            }
            (coverage, until) = (point.coverage.unwrap_or_default(), point.until);
        }
        tally
            .0
            .iter()
            .for_each(|(name, counts)| figures.put(&format!("WatchStats: {name}"), *counts));
        figures.put("missing", [coverage.missing.len() as u64]);
        (coverage, until)
    }

    /// Adds the figures of the page Now, and of those of rules.
    async fn pages(&self, told: &AnswerCounts, figures: &mut Figures) {
        let page = self.browser.get("now").await.body;
        let tiles = ["Requests", "Refused", "Failed", "Let through (fail-open)"];
        figures.put("Now: tiles", tiles.map(|name| tile(&page, name)));
        let not_valid = page.split("</data> more not valid").next();
        figures.put("Now: not valid", [last_value(not_valid)]);
        let in_no_row = page.split_once("</data> requests refused without a rule, ");
        let (no_rule, rest) = in_no_row.expect("requests without a rule");
        let in_no_row = [no_rule, rest.split("</data> failed").next().unwrap_or_default()];
        figures.put("Now: in no row", in_no_row.map(|part| last_value(Some(part))));
        figures.put("Now: chart", chart(&page, "requests"));
        for project in told.named("project ").into_keys() {
            let cells = cells(&page, if project.is_empty() { "none" } else { project });
            figures.put(&format!("Now: project {project}"), [cells[0], cells[2]]);
        }
        for rule in told.named("rule ").into_keys() {
            let of_rule = cells(&page, rule);
            let counts = [of_rule[0], of_rule[2], of_rule[3], of_rule[4]];
            figures.put(&format!("Now: rule {rule}"), counts);
            let project = if SHOP.contains(&rule) { "shop" } else { "_" };
            let page = self.browser.get(&format!("rule?project={project}&name={rule}")).await.body;
            let tiles =
                ["Decisions", "Refused", "Refused in shadow mode", "Near the limit", "Not asked"];
            figures.put(&format!("tiles of {rule}"), tiles.map(|name| tile(&page, name)));
            figures.put(&format!("chart of {rule}"), chart(&page, "decisions"));
        }
    }

    /// Adds the figures of keys and users.
    async fn keys(&self, told: &AnswerCounts, counted: &AnswerCounts, figures: &mut Figures) {
        for (rule, [_, _, denied, shadow, _]) in told.named("rule ") {
            let project_id = if SHOP.contains(&rule) { "shop" } else { "" }.to_owned();
            let (rule, max_keys) = (rule.to_owned(), 128);
            let request =
                proto::TopKeysRequest { project_id, rule, max_keys, ..Default::default() };
            let top = self.admin.clone().top_keys(request.clone()).await.expect("keys");
            let proto::TopKeysResponse { denied: list, used, coverage, .. } = top.into_inner();
            let (list, missing) = (list.expect("a list"), coverage.expect("a coverage").missing);
            // Of the same time as the rule.
            assert!(list.total <= denied + shadow, "{}: {list:?}", request.rule);
            let units = used.expect("a list").total;
            let counts = [list.total, missing.len() as u64, units];
            figures.put(&format!("keys of {}", request.rule), counts);
            for key in list.keys {
                assert!(key.count <= list.total && key.error == 0, "{key:?}");
                let user = key.key.and_then(|key| key.parts.into_iter().next()?.value);
                let user = user.expect("a user");
                figures.put(&format!("key {} {user}", request.rule), [key.count]);
            }
        }
        let quota = self.browser.get("use.csv?project=_&name=quota").await.body;
        for line in quota.lines().skip(1) {
            let mut cells = line.split(',');
            let customer = cells.next().unwrap_or_default();
            let used = cells.next().and_then(|used| used.parse().ok());
            figures.put(&format!("use of the quota: {customer}"), [used.unwrap_or_default()]);
        }
        for user in USERS {
            let page = self.browser.get(&format!("key?user_id={}", user.trim())).await.body;
            let otherwise = page.split_once("</data>. A request with its resource");
            let denied = last_value(otherwise.map(|(before, _)| before));
            figures.put("Look up: keyed otherwise", [denied]);
            for key in counted.named("key ").into_keys().filter(|key| !key.starts_with(OF_ENVOY)) {
                // Of a key that was neither granted nor refused anything there is no row.
                if let Some(rule) = key.strip_suffix(user) {
                    let cells = cells(&page, rule);
                    figures.put(&format!("Look up: {key}"), [cells[0], cells[1]]);
                }
            }
        }
    }
}

/// Returns the last number of a part of a page; 0 without one.
fn last_value(part: Option<&str>) -> u64 {
    let value = part.and_then(|part| part.rsplit("value=\"").next()?.split('"').next());
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// Returns the count of a tile in the whole time of a page; 0 without one.
fn tile(page: &str, name: &str) -> u64 {
    let tile = page.split(&format!("<dt>{name}</dt>")).nth(1);
    last_value(tile.and_then(|tile| tile.split("</data> in 15 minutes").next()))
}

/// Returns the sums of the columns of a chart.
fn chart(page: &str, id: &str) -> [u64; 4] {
    let figure = page.split(&format!("id=\"{id}\"")).nth(1).expect("a chart");
    let figure = figure.split("</figure>").next().unwrap_or_default();
    let mut sums = [0; 4];
    for row in figure.split("<tr data-at=").skip(1) {
        for (cell, sum) in row.split("<td class=\"right\">").skip(1).zip(&mut sums) {
            let cell = cell.split("</td>").next().unwrap_or_default();
            *sum += cell.parse().unwrap_or_else(|_| last_value(Some(cell)));
        }
    }
    sums
}

/// Returns the numbers of a row; 0 for a cell without one.
fn cells(page: &str, name: &str) -> [u64; 8] {
    let row = row(page, &format!(">{name}<")).unwrap_or_default();
    let mut cells = row.iter().map(|cell| cell.replace(',', "").parse().unwrap_or_default());
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

/// Sends so many requests, and compares every figure with their answers.
async fn every_table_adds_up(requests: usize) {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes"]);
    let dir = TempDir::new();
    let envoy = format!("envoy.files={}", dir.write("envoy.yaml", ENVOY).display());
    let url = format!("store.redis.url={}", redis.url());
    let settings =
        [CONSOLE, "http.hosts=test", "store.backend=redis", &url, "store.redis.timeout=5s", &envoy];
    let timed = TimedServers::start_from(RULES, 2, &settings);
    let (secret, answers) = (create_shop(&timed.servers[0]).await, Cell::new(0));
    let load = KnownLoad { secret, users: requests / 100, answers };
    eventually("the key is known", TIMEOUT, async || {
        let mut look = Request::new(CheckRequest { dry_run: true, ..request("look") });
        look.metadata_mut().insert("x-api-key", load.secret.parse().expect("a header"));
        let looked = timed.servers[1].client().await.check(look).await;
        !looked.is_err_and(|status| status.code() == Code::Unauthenticated)
    })
    .await;
    let admin = AdminServiceClient::new(timed.servers[0].channel().await);
    let mut shown = Shown { browser: Browser::new(&timed.servers[0]), timed, admin };

    // As usual.
    let part = requests / 10;
    let [first, second] = &shown.timed.servers[..] else { panic!("two") };
    let (mut of_first, mut of_second) =
        tokio::join!(load.send(first, 0..2 * part), load.send(second, 2 * part..4 * part));
    reserve(first, &mut of_first).await;
    reserve(second, &mut of_second).await;
    let mut all = of_first.clone().plus(&of_second);
    let ids = shown.settle(&all, &all, 0).await.instances;

    // With an outage in it.
    let [first, second] = &shown.timed.servers[..] else { panic!("two") };
    let sent = load.answers.get();
    let outage = async {
        let is_begun = async || load.answers.get() >= sent + part;
        eventually("a third", TIMEOUT, is_begun).await;
        redis.kill();
        let is_over = async || load.answers.get() >= sent + 2 * part;
        eventually("two thirds", TIMEOUT, is_over).await;
        redis.restart();
    };
    let middle = 4 * part + 3 * part / 2;
    let (more_of_first, more_of_second, ()) = tokio::join!(
        load.send(first, 4 * part..middle),
        load.send(second, middle..7 * part),
        outage
    );
    (all, of_first) = (all.plus(&more_of_first), of_first.plus(&more_of_first));
    all = all.plus(&more_of_second);
    for server in [first, second] {
        let is_ready = async || server.get("/readyz").await.0 == 200;
        eventually("Redis is back", TIMEOUT, is_ready).await;
    }
    let [_, _, failed, _, fail_open] = all.all();
    assert!(failed > 0 && fail_open > 0, "no outage: {all:?}");
    assert_eq!(shown.settle(&all, &all, 0).await.instances, ids);
    let [allowed, denied, ..] = all.named("project ")["shop"];
    let is_counted =
        async || usage(&shown.timed.servers[0]).await["shop"][..2] == [allowed, denied];
    eventually("the usage of both", TIMEOUT, is_counted).await;

    // One is killed before it has told what it has counted.
    let [first, second] = &shown.timed.servers[..] else { panic!("two") };
    let (more, lost) = tokio::join!(load.send(first, 7 * part..9 * part), async {
        let lost = load.send(second, 9 * part..requests).await;
        second.signal("KILL");
        lost
    });
    assert!(lost.all()[0] > 0, "{lost:?}");
    (all, of_first) = (all.plus(&more), of_first.plus(&more));
    let missing = shown.settle(&all, &of_first, 1).await.missing;
    assert!(ids.len() == 2 && ids.contains(&missing[0]), "{missing:?}");
    assert!(shown.browser.get("now").await.body.contains("1</data> missing"));
}

#[tokio::test]
async fn every_table_adds_up_for_a_thousand_requests() {
    every_table_adds_up(1_000).await;
}

#[tokio::test]
async fn ten_thousand_requests_add_up_in_every_table() {
    every_table_adds_up(10_000).await;
}
