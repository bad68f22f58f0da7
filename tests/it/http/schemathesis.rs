//! Requests that schemathesis generates from the OpenAPI document, valid and invalid ones.

use std::path::PathBuf;
use std::process::Command;

use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::tools::{cache_dir, fetch, finish, skipped};

const PACKAGE: &str = "schemathesis==4.32.5";

/// The checks of schemathesis. Acceptance of everything that fits the schemas is not one of them:
/// lengths are limited in bytes, which JSON Schema cannot express.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,\
                      negative_data_rejection,unsupported_method,allow_header_conformance";

#[test]
fn generated_requests_get_only_documented_responses() {
    let program = match install() {
        Ok(program) => program,
        Err(why) => return skipped("the HTTP API against made-up requests", &why),
    };
    let redis = RedisServer::start();
    // A busy machine must neither make Redis seem away nor the generator too slow.
    let settings = ["rate-limiter.max-requests=3", "store.redis.timeout=10s"];
    for server in [Rlaas::start(&settings), Rlaas::on_redis(&redis, &settings)] {
        let mut run = Command::new(&program);
        run.args(["run", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing"])
            .args(["--max-examples", "50", "--max-time", "15", "--workers", "1"])
            .args(["--seed", "1", "--continue-on-failure", "--no-color"])
            .args(["--suppress-health-check", "all", "--request-timeout", "60"])
            .arg(format!("http://{}/openapi.json", server.http()))
            .current_dir(cache_dir("schemathesis"));
        let output = finish(&mut run).unwrap_or_else(|said| {
            let failures = said.find("= FAILURES =").or(said.find("= ERRORS =")).unwrap_or(0);
            let failures: String = said[failures..].chars().take(6_000).collect();
            panic!("not only documented responses: {failures}")
        });
        assert!(output.contains("Test cases:"), "no request was sent: {output}");
    }
}

/// Returns the program, which is installed below `target` once.
fn install() -> Result<PathBuf, String> {
    let dir = cache_dir("schemathesis");
    let program = dir.join("bin/schemathesis");
    if !program.exists() {
        finish(Command::new("python3").args(["-m", "venv"]).arg(&dir))?;
        let mut pip = Command::new(dir.join("bin/pip"));
        fetch(pip.args(["install", "-q", "--retries", "1", PACKAGE]))?;
    }
    Ok(program)
}
