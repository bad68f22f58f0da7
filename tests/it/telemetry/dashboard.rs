//! The files of the dashboard and of the alerts.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use rlaas_testkit::process::{Rlaas, check};
use rlaas_testkit::prometheus::{config_file, promtool};

pub(super) fn dashboard() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/grafana/rlaas.json");
    let text = std::fs::read_to_string(file).expect("a dashboard");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns every query of the dashboard with the title of its panel.
pub(super) fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = list(&dashboard["panels"]).iter().map(|panel| (&panel["title"], panel));
    let targets = panels.flat_map(|(title, panel)| {
        list(&panel["targets"]).iter().map(move |target| (text(title), text(&target["expr"])))
    });
    let notes = list(&dashboard["annotations"]["list"]).iter();
    let notes = notes.filter_map(|note| Some((text(&note["name"]), note["expr"].as_str()?.into())));
    targets.chain(notes).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

#[test]
fn panels_have_a_position_a_description_and_the_selected_datasource() {
    let dashboard = dashboard();
    assert_eq!(dashboard["uid"], "rlaas");
    assert_eq!(dashboard["id"], Value::Null, "Grafana assigns the id");
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard["panels"]) {
        let title = &panel["title"];
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: the id is not unique");
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        let (left, top) = (place("x"), place("y"));
        assert!(left + place("w") <= 24, "{title}: the panel exceeds the right edge");
        for x in left..left + place("w") {
            for y in top..top + place("h") {
                assert!(cells.insert((x, y)), "{title}: the panel overlaps another");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(!text(&panel["description"]).is_empty(), "{title}: the description is missing");
        for part in [panel].into_iter().chain(list(&panel["targets"])) {
            assert_eq!(part["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

#[test]
fn queries_filter_by_the_dashboard_variables() {
    let dashboard = dashboard();
    let variables = list(&dashboard["templating"]["list"]).iter();
    let variables: Vec<String> = variables.map(|variable| text(&variable["name"])).collect();
    assert_eq!(variables, ["datasource", "job", "instance", "rule"]);
    let queries = queries(&dashboard);
    assert!(queries.len() > 30, "only {} queries were found", queries.len());
    for (title, query) in queries {
        let selectors = query.matches("{job=~\"$job\", instance=~\"$instance\"").count();
        assert_eq!(selectors, query.matches('{').count(), "{title}: {query}");
        let known = ["$job", "$instance", "$rule", "$__rate_interval"];
        let used = known.iter().map(|name| query.matches(name).count()).sum::<usize>();
        assert_eq!(used, query.matches('$').count(), "{title}: {query}");
    }
}

#[test]
fn promtool_accepts_the_configuration_and_the_alert_tests() {
    let path = |name| config_file(name).display().to_string();
    promtool(&["check", "config", &path("prometheus.yaml")], Stdio::null());
    promtool(&["check", "rules", &path("alerts.yaml")], Stdio::null());
    promtool(&["test", "rules", &path("alerts.test.yaml")], Stdio::null());
}

#[test]
fn alerts_have_tests_a_severity_and_a_description() {
    let [alerts, tests] = ["alerts.yaml", "alerts.test.yaml"]
        .map(|name| std::fs::read_to_string(config_file(name)).expect("a file"));
    let names: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 10, "only {names:?} were found");
    for part in ["severity: ", "summary: ", "description: "] {
        assert_eq!(alerts.matches(part).count(), names.len(), "{part}");
    }
    for name in names {
        let raised = format!("alertname: {name}\n        exp_alerts:");
        assert!(tests.contains(&raised), "no test raises {name}");
        assert!(tests.contains(&format!("alertname: {name} }}")), "no test leaves {name} inactive");
    }
}

#[tokio::test]
async fn promtool_accepts_the_exposed_metrics() {
    let server = Rlaas::start(&[]);
    check(&mut server.client().await, "alice").await.expect("an answer");
    let (_, metrics) = server.get("/metrics").await;
    let dir = rlaas_testkit::TempDir::new();
    let file = dir.write("metrics", &metrics);
    promtool(&["check", "metrics"], std::fs::File::open(file).expect("a file").into());
}
