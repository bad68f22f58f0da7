//! Every page: accessible, light, by keyboard, without scripts, with hostile texts; its pictures; and
//! every change by its forms; and the tasks of somebody on call, in few clicks.
//!
//! `UPDATE_PICTURES=1 cargo test --test it real_browser::pages` also writes those of the book.

use std::fs;
use std::path::Path;

use rlaas_testkit::redis::RedisServer;
use serde_json::json;

use super::{BrowserBench, tokens, visitors};
use crate::admin::watch_stats::TimedServers;
use crate::console::{CONSOLE, address};

/// Largest picture in the book, in bytes.
const MAX_PICTURE: u64 = 100 * 1024;
const RULES: &str = "\
rules:
  - {name: pay, endpoint: /pay, limit: 5, window: 1h, near-limit: 0.5, overridable: true}
  - {name: trial, endpoint: /pay, limit: 2, window: 1h, shadow: true}
  - {name: search, endpoint: /search, limit: 100, window: 1m}
";
/// Those of [`RULES`] that tasks need, and a rule by month.
const RULES_OF_TASKS: &str = "\
rules:
  - {name: pay, endpoint: /pay, limit: 5, window: 1h, overridable: true, on-store-failure: allow}
  - {name: search, endpoint: /search, limit: 5, window: 1h, overridable: true}
  - name: quota
    match: {attributes: {customer: '*'}}
    key-by: [customer]
    algorithm: fixed-window
    limit: 20
    calendar: {unit: month}
";

#[test]
fn every_page_is_for_everybody() {
    let book = std::env::var_os("UPDATE_PICTURES")
        .map(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images"));
    run("pages.mjs", RULES, book.as_deref());
    for picture in book.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder")) {
        let picture = picture.expect("a file");
        let size = picture.metadata().expect("a file").len();
        assert!(size <= MAX_PICTURE, "{}: {size} bytes", picture.path().display());
    }
}

#[test]
fn every_change_is_made_with_scripts_and_without() {
    run("changes.mjs", RULES, None);
}

#[test]
fn somebody_on_call_needs_few_clicks() {
    run("tasks.mjs", RULES_OF_TASKS, None);
}

/// Runs a script on two instances. The pictures of the book go into the folder.
fn run(script: &str, rules: &str, book: Option<&Path>) {
    let Some(workbench) = BrowserBench::find(script) else { return };
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = [
        CONSOLE,
        "store.backend=redis",
        &url,
        "store.redis.timeout=5s",
        "audit.keys=clear",
        "auth.api-keys=accepted",
        "telemetry.top-keys=true",
    ];
    let mut timed = TimedServers::start_from(&visitors(rules), 2, &settings);
    let subject = json!({
        "consoles": timed.servers.iter().map(address).collect::<Vec<_>>(),
        "https": timed.servers.iter().map(|server| server.http().to_owned()).collect::<Vec<_>>(),
        "tokens": tokens(),
        "book": book,
    });
    workbench.run(script, subject, |what| {
        match what {
            "advance" => timed.advance(10),
            "kill-redis" => redis.kill(),
            other => panic!("{other}"),
        }
        String::new()
    });
}
