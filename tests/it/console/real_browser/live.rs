//! Pages that keep themselves up to date.

use std::fs;

use rlaas_testkit::redis::RedisServer;
use serde_json::json;

use super::{BrowserBench, tokens, visitors};
use crate::admin::watch_stats::TimedServers;
use crate::console::{ADMIN, CONSOLE, address, auth};

const RULES: &str = "rules: [{name: pay, endpoint: /pay, limit: 1000, window: 1h}]\n";

#[test]
fn pages_follow_two_instances_redis_and_sessions() {
    let Some(workbench) = BrowserBench::find("live.mjs") else { return };
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = [CONSOLE, "store.backend=redis", &url, "store.redis.timeout=5s"];
    let mut timed = TimedServers::start_from(&visitors(RULES), 2, &settings);
    let subject = json!({
        "consoles": timed.servers.iter().map(address).collect::<Vec<_>>(),
        "https": timed.servers.iter().map(|server| server.http().to_owned()).collect::<Vec<_>>(),
        "tokens": tokens(),
    });
    workbench.run("live.mjs", subject, |what| {
        match what {
            "advance" => timed.advance(10),
            "kill-redis" => redis.kill(),
            "restart-redis" => redis.restart(),
            "take-roles" => {
                fs::write(timed.config(), auth(&[(ADMIN, "roles: [admin]")])).expect("a file");
                timed.servers[0].signal("HUP");
            }
            other => panic!("{other}"),
        }
        String::new()
    });
}
