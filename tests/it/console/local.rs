//! While `auth` lists nobody: local visitors, with a local name of the server.

use super::CONSOLE;
use super::browser::{Browser, secret_of};
use rlaas_testkit::process::Rlaas;

#[tokio::test]
async fn local_visitors_need_no_sign_in() {
    let server = Rlaas::start(&[CONSOLE, "http.hosts=ops.example"]);
    let browser = Browser::new(&server);
    for host in ["localhost", "127.0.0.1:8081", "[::1]", "ops.example"] {
        let page = browser.send("GET", "instances", &format!("Host: {host}\r\n"), "").await;
        assert_eq!(page.status, 200, "{host}");
        assert!(page.body.contains(">local</bdi>") && !page.body.contains("Sign out"));
        assert_eq!(page.header("set-cookie"), None);
    }
    let sign_in = browser.get("sign-in").await;
    assert_eq!((sign_in.status, sign_in.header("location")), (303, Some("now")));
}

#[tokio::test]
async fn a_rebound_host_and_a_proxy_are_refused() {
    let server = Rlaas::start(&[CONSOLE]);
    let browser = Browser::new(&server);
    for headers in [
        "Host: evil.example\r\n",
        "Host: localhost.evil.example\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
        "Host: localhost\r\nX-Forwarded-For: 10.0.0.1\r\n",
        "Host: localhost\r\nForwarded: for=10.0.0.1\r\n",
        "Host: localhost\r\nVia: 1.1 proxy\r\n",
    ] {
        for page in ["now", "now-events", "instances", "sign-in"] {
            let refused = browser.send("GET", page, headers, "").await;
            assert!([400, 403].contains(&refused.status), "{headers}: {refused:?}");
            assert_eq!(secret_of(&refused.body), None, "{headers}");
        }
    }
    let why = browser.send("GET", "instances", "Host: evil.example\r\n", "").await;
    assert!(why.body.contains("one of http.hosts"), "{}", why.body);
    assert!(server.metric("rlaas_refused_total{reason=\"forbidden\"}").await >= Some(1.0));
}
