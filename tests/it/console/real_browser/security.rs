//! What hostile pages, texts and visitors can't do.

use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::tls::{Certificate, Certificates};
use serde_json::json;

use super::{BrowserBench, tokens, visitors};
use crate::console::{CONSOLE, address};

#[test]
fn hostile_pages_and_texts_do_nothing() {
    let Some(workbench) = BrowserBench::find("security.mjs") else { return };
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &visitors(""));
    let listing = Rlaas::start_from(&file, &[CONSOLE, "telemetry.log=trace"]);
    let certificates = Certificates::make();
    let cert = certificates.certificate(Certificate::Server).display().to_string();
    let key = certificates.key(Certificate::Server).display().to_string();
    let tls = [format!("server.tls.cert={cert}"), format!("server.tls.key={key}")];
    let secured = Rlaas::start_from(&file, &[CONSOLE, &tls[0], &tls[1]]);
    let local = Rlaas::start(&[CONSOLE]);
    let subject = json!({
        "consoles": [address(&listing)],
        "https": [listing.http()],
        "tls": address(&secured),
        "local": address(&local),
        "tokens": tokens(),
    });
    workbench.run("security.mjs", subject, |what| {
        let secret = what.strip_prefix("is-logged ").unwrap_or_else(|| panic!("{what}"));
        let log = listing.log();
        assert!(log.contains("signed in to the console"), "{log}");
        if log.contains(secret) { "yes" } else { "no" }.to_owned()
    });
}
