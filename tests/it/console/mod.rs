//! The console over sockets, as a browser uses it.

mod audit;
mod browser;
mod change;
mod change_plan;
mod exceptions;
mod forms;
mod headers;
mod instances;
mod jar;
mod key;
mod known_load;
mod local;
mod now;
mod oidc_sign_in;
mod oidc_tokens;
mod outage;
mod project_forms;
mod projects;
mod real_browser;
mod rule;
mod rule_form;
mod search;
mod sign_in;
mod tls;

use ring::digest::{SHA256, digest};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;

/// Tokens, by the role that they have.
const ADMIN: &str = "s3cret-of-the-admin";
const OPERATE: &str = "s3cret-of-the-operator";
const CHECK: &str = "s3cret-of-the-checker";

/// Switches the console on.
const CONSOLE: &str = "server.console=127.0.0.1:0";

/// Returns a section that lists these tokens, each with roles.
fn auth(tokens: &[(&str, &str)]) -> String {
    let entry = |(number, (token, roles)): (usize, &(&str, &str))| {
        let bytes = digest(&SHA256, token.as_bytes());
        let hash =
            bytes.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        format!("    - {{name: visitor-{number}, sha256: {hash}, {roles}}}\n")
    };
    let entries: String = tokens.iter().enumerate().map(entry).collect();
    format!("auth:\n  tokens:\n{entries}")
}

/// Starts a server whose callers have the tokens [`ADMIN`] (with every role of the console),
/// [`OPERATE`] and [`CHECK`].
fn start_with_auth(settings: &[&str]) -> Rlaas {
    let tokens = [
        (ADMIN, "roles: [admin, operate]"),
        (OPERATE, "roles: [operate]"),
        (CHECK, "roles: [check]"),
    ];
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &auth(&tokens));
    Rlaas::start_from(&file, &[&[CONSOLE], settings].concat())
}

/// Returns the address of the console.
fn address(server: &Rlaas) -> String {
    let log = server.log();
    let address = log.split("console=").nth(1).and_then(|rest| rest.split_whitespace().next());
    address.unwrap_or_else(|| panic!("no console: {log}")).to_owned()
}
