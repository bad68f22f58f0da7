//! Metrics have their documented names, and their series are bounded by the configuration.

use std::collections::{BTreeSet, HashMap};

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Deadline, Micros};
use rlaas::rules::{Matcher, Part, Pattern, Request, Rule, RuleSet, TextPattern, Unmatched};
use rlaas_limiter::CheckError;
use rlaas_proto::ratelimit::v1::{CheckBatchRequest, CheckRequest};
use rlaas_telemetry::exposition::Exposition;

use rlaas_testkit::process::{Rlaas, check, request};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use rlaas_testkit::{TempDir, rules};

/// Returns the series without their values.
fn series(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.rsplit_once(' ').expect("a value").0.to_owned()).collect()
}

/// Returns the names of metrics with the names of their labels.
fn shapes(text: &str) -> BTreeSet<String> {
    let shape = |series: String| {
        let (name, labels) = series.split_once('{').unwrap_or((&series, ""));
        let labels = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
        let labels: Vec<&str> = labels.filter(|label| *label != "le").collect();
        format!("{name}{{{}}}", labels.join(","))
    };
    series(text).into_iter().map(shape).collect()
}

#[tokio::test]
async fn metrics_have_their_documented_names_and_labels() {
    let mut redis = RedisServer::start();
    let open = "rate-limiter.fail-open=true";
    let server = Rlaas::on_redis(&redis, &[open, "store.redis.timeout=200ms"]);
    let mut client = server.client().await;
    for _ in 0..7 {
        check(&mut client, "alice").await.expect("an answer");
    }
    check(&mut client, "").await.expect_err("an empty id is rejected");
    redis.kill();
    check(&mut client, "bob").await.expect("an answer by policy");
    let (_, text) = server.get("/metrics").await;
    assert_listed(&text);
    let first_bound = "rlaas_check_duration_seconds_bucket{le=\"0.00001\",api=\"grpc\"}";
    assert!(text.contains(first_bound), "{text}");
}

/// Asserts that the documented names, types and labels are the exposed ones.
fn assert_listed(text: &str) {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut exposed: BTreeSet<(&str, &str)> =
        types.filter(|(name, _)| !name.starts_with("process_")).collect();
    // Only servers with certificates have this metric.
    exposed.insert(("rlaas_tls_certificate_expiry_timestamp_seconds", "gauge"));
    // Only servers with projects have this one.
    exposed.insert(("rlaas_project_decisions_total", "counter"));
    // Only servers that have told something, or ignored a limit, have these.
    exposed.insert(("rlaas_limit_from_ignored_total", "counter"));
    exposed.insert(("rlaas_threshold_events_total", "counter"));
    exposed.insert(("rlaas_threshold_events_dropped_total", "counter"));
    // Only servers whose rules have a ceiling of the debt have this one.
    exposed.insert(("rlaas_uncounted_units_total", "counter"));
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, kind) = (cells.next()?.strip_suffix('`')?, cells.next()?);
        ["counter", "gauge", "histogram"].contains(&kind).then_some((name, kind))
    };
    let book = include_str!("../../../docs/reference/metrics.md");
    let rows = book.lines().filter_map(row).filter(|(name, _)| !name.starts_with("process_"));
    let listed: BTreeSet<(&str, &str)> = rows.collect();
    assert_eq!(listed, exposed);
    let mut seen = 0;
    for row in book.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let labels = cells[3].split("; ").filter_map(|label| label.split('`').nth(1));
        let labels = labels.collect::<Vec<_>>().join(",");
        let name = cells[0].trim_matches(['|', ' ', '`']);
        for end in ["", "_bucket", "_sum", "_count"] {
            let of_name =
                |shape: &&String| shape.split('{').next() == Some(&format!("{name}{end}"));
            for shape in shapes(text).iter().filter(of_name) {
                assert_eq!(*shape, format!("{name}{end}{{{labels}}}"));
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen}");
}

#[tokio::test]
async fn documented_store_error_kinds_match_the_exposed_ones() {
    let server = Rlaas::start(&[]);
    let (_, text) = server.get("/metrics").await;
    let kinds = text.lines().filter_map(|line| {
        line.strip_prefix("rlaas_store_errors_total{kind=\"")?.split('"').next()
    });
    let rows = include_str!("../../../docs/failures.md")
        .lines()
        .skip_while(|line| !line.starts_with("| what fails |"))
        .take_while(|line| line.starts_with('|'));
    let last_cells = rows.skip(2).filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let listed = last_cells.flat_map(|cell| cell.split(", ")).filter(|kind| *kind != "–");
    let listed: BTreeSet<&str> = listed.map(|kind| kind.trim_matches('`')).collect();
    assert_eq!(listed, kinds.collect());
}

#[tokio::test]
async fn hostile_requests_add_no_series() {
    const BATCH: usize = 1_000;
    let dir = TempDir::new();
    let file = dir.write(
        "rlaas.yaml",
        "rules:\n  - {name: tenant, key-by: [tenant], limit: 1, window: 1h, \
         match: {attributes: {tenant: '*'}}}\n",
    );
    let server = Rlaas::start_from(&file, &["rate-limiter.max-requests=1"]);
    let client = server.client().await;
    let mut client = client.max_decoding_message_size(64 * 1024 * 1024);
    let hostile = |number: usize| {
        let text = format!("{number}\",rule=\"x\"}} 1\n# TYPE evil counter\nevil {{\\\u{0}\u{85}");
        CheckRequest {
            user_id: text.clone(),
            resource: text.clone(),
            attributes: HashMap::from([("tenant".to_owned(), text.clone()), (text.clone(), text)]),
            ..request("")
        }
    };
    let mut send_batch = async |numbers: std::ops::Range<usize>| {
        let requests = numbers.clone().map(hostile).collect();
        let results =
            client.check_batch(CheckBatchRequest { requests, ..Default::default() }).await;
        assert_eq!(results.expect("answers").into_inner().results.len(), numbers.len());
    };
    // One request is allowed and one denied.
    send_batch(0..1).await;
    send_batch(0..1).await;
    let (_, before) = server.get("/metrics").await;
    for first in (0..100_000).step_by(BATCH) {
        send_batch(first..first + BATCH).await;
    }
    let (_, after) = server.get("/metrics").await;
    assert_eq!(series(&after), series(&before));
    assert!(!after.contains("evil"), "{after}");
    assert_eq!(server.metric_sum("rlaas_decisions_total", &[]).await, 100_002);
}

#[tokio::test]
async fn removed_rule_loses_its_series() {
    let named = |names: &[&str]| {
        let limit = Limit::new(1, Micros::from_secs(60)).expect("a valid limit");
        let rule = |name: &&str| Rule {
            name: (*name).into(),
            ..Rule::new_default(Algorithm::Gcra, limit)
        };
        RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), names.iter().map(rule).collect())
    };
    let service = Service::on_memory(named(&["goes", "stays"]));
    let count = |rule: &str| {
        let text = service.metrics.render(Exposition::Text);
        let start = format!("rlaas_decisions_total{{rule=\"{rule}\"");
        text.lines().filter(|line| line.starts_with(&start)).count()
    };
    service.check("alice").await;
    service.check("alice").await;
    assert_eq!([count("goes"), count("stays")], [2, 2]);
    service.limiter.replace_rules(named(&["stays", "comes"]));
    assert_eq!([count("goes"), count("stays"), count("comes")], [0, 2, 2]);
    service.check("alice").await;
    assert_eq!([count("goes"), count("stays"), count("comes")], [0, 2, 2]);
    // With another algorithm a rule has other series.
    service.limiter.replace_rules(rules(Algorithm::FixedWindow, 5, Micros::from_secs(60)));
    assert_eq!([count("stays"), count("comes"), count("default")], [0, 0, 2]);
    let text = service.metrics.render(Exposition::Text);
    assert!(!text.contains("{rule=\"default\",algorithm=\"gcra\""), "{text}");
}

#[tokio::test]
async fn series_are_bounded_with_100_000_rules_and_many_projects() {
    let limit = Limit::new(1, Micros::from_secs(60)).expect("a valid limit");
    let default = Rule::new_default(Algorithm::Gcra, limit);
    let rule = |number: u32, prefix: &str| {
        let resource = Pattern::OneOf(vec![TextPattern::Exact(format!("/{number}"))]);
        let matcher = Matcher { patterns: vec![(Part::Resource, resource)] };
        let name = format!("{prefix}{number:05}").into();
        Rule { name, matcher, key_by: vec![Part::Resource], ..default.clone() }
    };
    let named = |prefix: &str| {
        let rules = (0..100_000).map(|number| rule(number, prefix));
        RuleSet::new(default.clone(), rules.collect())
    };
    let service = Service::on_memory(named("r"));
    let some = RuleSet::new(default.clone(), (0..10).map(|number| rule(number, "r")).collect());
    let check = async |project: &str, resource: u32| {
        let resource = format!("/{resource}");
        let request = Request::user("alice").resource(&resource).in_project(project);
        let request = request.build().expect("a valid request");
        service.limiter.check(&request, Deadline::NEVER).await.map(|verdict| verdict.is_allowed())
    };
    let lines = |start: &str| {
        let text = service.metrics.render(Exposition::Text);
        let lines = text.lines().filter(|line| line.starts_with(start)).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    for number in 0..3_000 {
        assert!(check("", number * 30).await.expect("a verdict"));
        let project = format!("p{number}");
        service.limiter.replace_project_rules(&project, some.clone());
        assert!(check(&project, 7).await.expect("a verdict"));
        assert!(!check(&project, 7).await.expect("a verdict"));
    }
    // Of each rule with a name allowed and denied, and allowed of all others.
    assert_eq!(lines("rlaas_decisions_total{").len(), 2 * 1_000 + 1);
    let other = "rlaas_decisions_total{rule=\"other\",algorithm=\"gcra\",outcome=\"allowed\"";
    assert!(lines(other)[0].ends_with(" 2966"), "{:?}", lines(other));
    let of =
        |project: &str| lines(&format!("rlaas_project_decisions_total{{project=\"{project}\""));
    assert_eq!(lines("rlaas_project_decisions_total{").len(), 2 * 1_000 + 2);
    assert!(of("other").iter().all(|line| line.ends_with(" 2000")), "{:?}", of("other"));
    assert!(of("p999").iter().all(|line| line.ends_with(" 1")) && of("p1000").is_empty());
    // A project that is removed makes space for another, and a rule that is renamed for others.
    assert!(service.limiter.remove_project("p0"));
    service.limiter.replace_project_rules("new", some.clone().with_unmatched(Unmatched::Deny));
    assert!(matches!(check("new", 77).await, Err(CheckError::NoRule)));
    assert!(of("p0").is_empty());
    assert!(of("new").contains(
        &"rlaas_project_decisions_total{project=\"new\",outcome=\"denied\"} 1".to_owned()
    ));
    service.limiter.replace_rules(named("s"));
    assert_eq!(lines("rlaas_decisions_total{").len(), 2 * 1_000 + 1);
    assert_eq!(lines("rlaas_project_decisions_total{").len(), 2 * 1_000 + 2);
}

#[tokio::test]
async fn redis_clock_jumps_are_counted() {
    let minute = Micros::from_secs(60);
    let service = Service::on_redis(rules(Algorithm::Gcra, 5, minute), RedisServer::start().into());
    for time in [T0 + minute, T0] {
        service.check("alice").await;
        let before = service.metrics.redis_clock_jumps.get();
        service.set_clock(time);
        service.check("alice").await;
        assert!(service.metrics.redis_clock_jumps.get() > before, "{time:?}");
    }
    let redis = RedisServer::start_without_clock_shim();
    let server = Rlaas::on_redis(&redis, &[]);
    for _ in 0..100 {
        check(&mut server.client().await, "alice").await.expect("an answer");
    }
    assert_eq!(server.metric("rlaas_redis_clock_jumps_total").await, Some(0.0));
}

#[tokio::test]
async fn metrics_format_follows_the_accept_header() {
    let server = Rlaas::start(&[]);
    let (status, head, text) = server.get_with("/metrics", "").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(text.contains("# TYPE rlaas_shed_total counter\nrlaas_shed_total 0\n"), "{text}");
    assert!(text.contains("# TYPE rlaas_build_info gauge\n"), "{text}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n";
    let (status, head, open_metrics) = server.get_with("/metrics", accept).await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(open_metrics.contains("# TYPE rlaas_shed counter\nrlaas_shed_total 0\n"));
    assert!(open_metrics.ends_with("# EOF\n"), "{open_metrics}");
    assert_eq!(series(&open_metrics), series(&text));
}

#[tokio::test]
async fn process_metrics_describe_the_running_server() {
    let server = Rlaas::start(&[]);
    let metric = async |name| server.metric(name).await.expect("a metric");
    let resident = metric("process_resident_memory_bytes").await;
    #[expect(clippy::cast_precision_loss, reason = "less than 2^53 bytes")]
    let by_the_system = (server.resident_kib() * 1024) as f64;
    assert!((0.5..2.0).contains(&(resident / by_the_system)), "{resident} of {by_the_system}");
    assert!(metric("process_threads").await >= 2.0);
    let open = metric("process_open_fds").await;
    assert!(open > 3.0 && open < metric("process_max_fds").await, "{open}");
    let started = std::time::UNIX_EPOCH
        + std::time::Duration::from_secs_f64(metric("process_start_time_seconds").await);
    let age = started.elapsed().expect("a time in the past").as_secs();
    assert!(age < 600, "{age} s old");
}
