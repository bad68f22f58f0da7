//! schemathesis makes requests up from the document, valid and invalid ones: no error of the
//! server, no answer that is not described. `tests/run.sh` installs it.

use std::path::Path;
use std::process::Command;

use super::common::process::Rlaas;
use super::common::redis::RedisServer;

/// What is looked for. Not whether everything that fits the schemas is accepted: lengths are in
/// bytes, which JSON Schema can't say.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,\
                      negative_data_rejection,unsupported_method,allow_header_conformance";

#[test]
fn no_request_that_it_makes_up_meets_an_error_or_an_undescribed_answer() {
    let program =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/schemathesis/bin/schemathesis");
    if !program.exists() {
        eprintln!("SKIPPED: no {}; tests/run.sh installs it", program.display());
        return;
    }
    let redis = RedisServer::start();
    let many = "rate-limiter.max-requests=3";
    for server in [Rlaas::start(&[many]), Rlaas::on_redis(&redis, &[many])] {
        let output = Command::new(&program)
            .args(["run", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing"])
            .args(["--max-examples", "50", "--max-time", "15", "--workers", "2"])
            .args(["--seed", "1", "--continue-on-failure", "--no-color"])
            .arg(format!("http://{}/openapi.json", server.http()))
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .output()
            .expect("schemathesis");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{told}");
        assert!(told.contains("Test cases"), "nothing was tried: {told}");
    }
}
