//! Signing in at an issuer on another site, with the console below a path of a proxy.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::json;

use super::{BrowserBench, ScriptProcess};
use crate::console::oidc_sign_in::IssuerConsole;

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_goes_to_the_issuer_and_comes_back() {
    let Some(workbench) = BrowserBench::find("sign_in.mjs") else { return };
    let mut subject = IssuerConsole::start_servers();
    let mut proxy = Command::new("node");
    proxy.args(["proxy.mjs", &subject.host]).current_dir(&workbench.folder);
    let mut proxy = ScriptProcess(proxy.stdout(Stdio::piped()).spawn().expect("node"));
    let mut url = String::new();
    let mut output = BufReader::new(proxy.0.stdout.take().expect("a pipe"));
    output.read_line(&mut url).expect("UTF-8");
    let proxy_url = url.trim_end();
    let at = format!("{proxy_url}/limits/console");
    if subject.start_issuer("console", &at, "").await.is_none() {
        return;
    }
    let script = json!({ "proxy": proxy_url, "issuer": subject.issuer_name() });
    workbench.run("sign_in.mjs", script, |what| panic!("{what}"));
}
