//! Many rules and projects: 1,000 rules in 100 projects, with `SOAK=1` 10,000 in 1,000.

use std::fmt::Write;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use serde_json::json;

use super::{BrowserBench, is_set, tokens, visitors};
use crate::console::{CONSOLE, address};

/// Rules of a project at run time. A file has as many in all.
const RULES_OF_ONE: usize = 5;

#[test]
fn many_rules_and_projects_are_found_and_changed() {
    let Some(workbench) = BrowserBench::find("many.mjs") else { return };
    let projects = if is_set("SOAK") { 1_000 } else { 100 };
    let of_file = projects * RULES_OF_ONE;
    let mut rules = "rules:\n".to_owned();
    for rule in 0..of_file {
        let _infallible = writeln!(
            rules,
            "  - {{name: file-{rule:04}, endpoint: /{rule}, limit: 5, window: 1h}}"
        );
    }
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &visitors(&rules));
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = [
        CONSOLE,
        "store.backend=redis",
        &url,
        "store.redis.timeout=10s",
        "auth.api-keys=accepted",
        "telemetry.top-keys=true",
    ];
    let server = Rlaas::start_from(&file, &settings);
    let subject = json!({
        "consoles": [address(&server)],
        "https": [server.http()],
        "tokens": tokens(),
        "projects": projects,
        "rules_of_one": RULES_OF_ONE,
        "rules_of_file": of_file,
    });
    workbench.run("many.mjs", subject, |what| panic!("{what}"));
}
