//! The page Now, and the stream that keeps it live.

use std::time::Duration;

use super::browser::{Browser, row};
use super::{ADMIN, CONSOLE, OPERATE, auth};
use crate::admin::watch_stats::TimedServers;
use crate::http::client::send_with;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
rules:
  - {name: pay, endpoint: /pay, limit: 2, window: 1h}
  - {name: trial, endpoint: /pay, limit: 1, window: 1h, shadow: true}
";
/// The name of a rule, as the page shows it.
const PAY: &str = ">pay<";

/// An open stream of events.
struct EventStream {
    connection: TcpStream,
    received: String,
}

impl EventStream {
    async fn open(browser: &Browser) -> Self {
        Self::open_at(browser, "now-events").await
    }

    async fn open_at(browser: &Browser, page: &str) -> Self {
        let mut connection = TcpStream::connect(&browser.address).await.expect("a server");
        let request = browser.request("GET", page, "", "");
        connection.write_all(request.as_bytes()).await.expect("a server that reads");
        let mut stream = Self { connection, received: String::new() };
        stream.wait_for("event: new").await;
        assert!(stream.received.contains("content-type: text/event-stream"), "{}", stream.received);
        stream.received.clear();
        stream
    }

    /// Reads until a text was received.
    async fn wait_for(&mut self, text: &str) {
        let reading = async {
            while !self.received.contains(text) {
                let mut part = [0; 1024];
                let read = self.connection.read(&mut part).await.expect("an open stream");
                assert!(read > 0, "the end before {text}: {}", self.received);
                self.received += &String::from_utf8_lossy(&part[..read]);
            }
        };
        timeout(TIMEOUT, reading).await.unwrap_or_else(|_| panic!("no {text}"));
    }

    /// Waits for the next event that says that there is something new.
    async fn next(&mut self) {
        self.wait_for("event: new\ndata: 1\n\n").await;
        self.received.clear();
    }

    /// Waits for the end of the stream, and returns why it ended.
    async fn end(mut self) -> String {
        let reading = self.connection.read_to_string(&mut self.received);
        timeout(TIMEOUT, reading).await.expect("an end in time").expect("a stream");
        let why = self.received.split("event: end\ndata: ").nth(1);
        why.and_then(|rest| rest.split('\n').next()).unwrap_or_default().to_owned()
    }
}

async fn pay(server: &Rlaas, user: &str, times: usize, headers: &str) {
    request(server, user, "/pay", times, headers).await;
}

async fn request(server: &Rlaas, user: &str, resource: &str, times: usize, headers: &str) {
    for _ in 0..times {
        let body = format!("{{\"userId\": \"{user}\", \"resource\": \"{resource}\"}}");
        let headers = format!("Content-Type: application/json\r\n{headers}");
        let response = send_with(server, "POST", "/v1/check", &headers, Some(&body)).await;
        assert!([200, 429].contains(&response.status), "{response:?}");
    }
}

#[tokio::test]
async fn two_instances_are_watched_while_redis_comes_and_goes() {
    let mut redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = [
        CONSOLE,
        "http.hosts=test",
        "store.backend=redis",
        &url,
        "store.redis.timeout=5s",
        "rate-limiter.fail-open=true",
    ];
    let mut timed = TimedServers::start_from(RULES, 2, &settings);
    for server in &timed.servers {
        let is_ready = async || server.get("/readyz").await.0 == 200;
        eventually("the server is ready", TIMEOUT, is_ready).await;
    }
    let browser = Browser::new(&timed.servers[0]);
    let page = async || browser.get("now").await.body;
    let first = page().await;
    for text in
        ["The first numbers come within 10 s", "No request in the last 15 minutes", "answers"]
    {
        assert!(first.contains(text), "{text}: {first}");
    }
    let mut stream = EventStream::open(&browser).await;
    pay(&timed.servers[0], "alice", 3, "").await;
    pay(&timed.servers[1], "bob", 1, "").await;
    // The first of two instances may read before the other has written: that counts in the next point.
    let mut html = String::new();
    while row(&html, PAY).is_none_or(|cells| cells[2] != "4") {
        timed.advance(10);
        stream.next().await;
        html = page().await;
    }
    assert_eq!(row(&html, PAY).expect("a rule")[..3], ["1", "25 %", "4"]);
    assert_eq!(row(&html, ">trial<").expect("a rule")[3], "2", "in shadow mode: {html}");
    assert!(!html.contains("Without the store</th>"), "a column without a value: {html}");
    for text in [
        "</data> instances. ",
        "; none in the minute before",
        "Who is refused</h2>",
        "none missing",
        "id=\"requests\"",
        "<data class=\"number\" value=\"4\">4</data> in 15 minutes",
        "Failed</dt>",
        "Not counted: looks",
        "data-chart=\"areas\"",
        "<tr data-at=",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(!html.contains("id=\"policy\"") && !html.contains("does not answer"));
    redis.kill();
    request(&timed.servers[0], "carol", "/", 2, "").await;
    eventually("the page shows the outage", TIMEOUT, async || {
        page().await.contains("The store does not answer.")
    })
    .await;
    loop {
        timed.advance(10);
        stream.next().await;
        html = page().await;
        if html.contains("id=\"policy\"") && html.contains("1</data> missing") {
            break;
        }
    }
    assert_eq!(row(&html, ">default<").expect("a rule")[4], "2", "without the store: {html}");
    assert!(html.contains(">2</data> in 15 minutes; rules decided"), "let through: {html}");
    redis.restart();
    eventually("the store is back", TIMEOUT, async || {
        !page().await.contains("The store does not answer.")
    })
    .await;
    while page().await.contains("1</data> missing") {
        timed.advance(10);
        stream.next().await;
    }
}

#[tokio::test]
async fn the_stream_ends_with_the_session_and_with_the_role() {
    let dir = TempDir::new();
    let list = |tokens: &[(&str, &str)]| dir.write("rlaas.yaml", &auth(tokens));
    let server = Rlaas::start_from(
        &list(&[(ADMIN, "roles: [admin]"), (OPERATE, "roles: [operate]")]),
        &[CONSOLE],
    );
    let (admin, operator) =
        (Browser::signed_in(&server, ADMIN).await, Browser::signed_in(&server, OPERATE).await);
    let signed_out = EventStream::open(&admin).await;
    let secret = admin.secret("now").await;
    assert_eq!(admin.post("sign-out", &format!("secret={secret}")).await.status, 303);
    assert_eq!(signed_out.end().await, "session");

    let admin = Browser::signed_in(&server, ADMIN).await;
    let (limited, removed) = (EventStream::open(&admin).await, EventStream::open(&operator).await);
    list(&[(ADMIN, "projects: [shop], roles: [admin]")]);
    server.signal("HUP");
    assert_eq!(limited.end().await, "roles");
    assert_eq!(removed.end().await, "session");
    let page = admin.get("now").await;
    assert!(page.status == 200 && !page.body.contains("Instances</dt>"), "{page:?}");
    assert_eq!(operator.get("now").await.status, 303);
    let by_script = operator.send("GET", "now", "X-Console-Live: 1\r\n", "").await;
    assert_eq!(by_script.status, 303, "{by_script:?}");
}

#[tokio::test]
async fn streams_are_bounded_and_for_pages_of_this_console() {
    let of = |token| (token, "roles: [operate]");
    let tokens = [of(ADMIN), of(OPERATE), of("third"), of("fourth"), of("fifth")];
    let dir = TempDir::new();
    let server = Rlaas::start_from(&dir.write("rlaas.yaml", &auth(&tokens)), &[CONSOLE]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    for site in ["cross-site", "same-site"] {
        let headers = format!("Sec-Fetch-Site: {site}\r\n");
        assert_eq!(browser.send("GET", "now-events", &headers, "").await.status, 403, "{site}");
    }
    assert_eq!(Browser::new(&server).get("now-events").await.status, 303, "without a session");
    let mut streams = Vec::new();
    for token in [ADMIN, OPERATE, "third", "fourth"] {
        let browser = Browser::signed_in(&server, token).await;
        for _ in 0..16 {
            streams.push(EventStream::open(&browser).await);
        }
        let refused = browser.get("now-events").await;
        let text = "you have 16 streams already: close other tabs";
        assert_eq!((refused.status, &*refused.body), (503, text), "{token}");
    }
    let refused = Browser::signed_in(&server, "fifth").await.get("now-events").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.starts_with("64 callers watch already"), "{refused:?}");
    drop(streams);
    eventually("the streams have ended", TIMEOUT, async || {
        let mut connection = TcpStream::connect(&browser.address).await.expect("a server");
        let request = browser.request("GET", "now-events", "", "");
        connection.write_all(request.as_bytes()).await.expect("a server that reads");
        let mut status = [0; 12];
        connection.read_exact(&mut status).await.expect("a response");
        &status == b"HTTP/1.1 200"
    })
    .await;
}

#[tokio::test]
async fn visitors_see_their_projects_only() {
    let tokens = auth(&[
        (ADMIN, "roles: [admin, operate, check]"),
        (OPERATE, "projects: [shop], roles: [operate]"),
    ]);
    let text = format!("{tokens}  api-keys: accepted\n{RULES}");
    let mut timed = TimedServers::start_from(&text, 1, &[CONSOLE]);
    let server = &timed.servers[0];
    let bearer = format!("Authorization: Bearer {ADMIN}\r\n");
    let change = async |path: String, body: &str| {
        let headers = format!("{bearer}Content-Type: application/json\r\n");
        let response = send_with(server, "POST", &path, &headers, Some(body)).await;
        assert!([200, 201].contains(&response.status), "{path}: {response:?}");
        response
    };
    let mut keys = Vec::new();
    for project in ["shop", "blog"] {
        change("/v1/projects".to_owned(), &format!("{{\"project\": {{\"id\": \"{project}\"}}}}"))
            .await;
        let rule = format!(
            "{{\"rules\": [{{\"name\": \"of-{project}\", \"maxRequests\": 1, \"window\": \"3600s\"}}]}}"
        );
        change(format!("/v1/projects/{project}/rules:apply"), &rule).await;
        let key = change(format!("/v1/projects/{project}/keys"), "{}").await;
        let secret = key.json()["secret"].as_str().expect("a secret").to_owned();
        keys.push(format!("X-API-Key: {secret}\r\n"));
        pay(server, "alice", 2, &keys[keys.len() - 1]).await;
    }
    pay(server, "alice", 1, &bearer).await;
    let admin = Browser::signed_in(server, ADMIN).await;
    let operator = Browser::signed_in(server, OPERATE).await;
    let mut refusals = EventStream::open_at(&operator, "now-events?refusals=-").await;
    for key in keys.iter().rev() {
        pay(server, "alice", 1, key).await;
    }
    refusals.wait_for("event: refused").await;
    refusals.wait_for("user_id=alice").await;
    assert!(refusals.received.contains("\"of-shop\",\"shop\""), "{}", refusals.received);
    assert!(!refusals.received.contains("blog"), "{}", refusals.received);
    drop(refusals);
    // Without locks each tab has a stream of its own.
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(EventStream::open(&admin).await);
    }
    for _ in 0..2 {
        timed.advance(10);
        for stream in &mut streams {
            stream.next().await;
        }
    }
    let (all, own) = (admin.get("now").await.body, operator.get("now").await.body);
    for text in [">of-shop<", ">of-blog<", PAY, "Projects</h2>", "Instances</dt>", "store memory"] {
        assert!(all.contains(text), "{text}: {all}");
    }
    assert_eq!(row(&all, ">shop<").expect("a project")[..3], ["2", "66.6 %", "3"]);
    assert_eq!(row(&own, ">of-shop<").expect("a rule")[..3], ["2", "66.6 %", "3"]);
    for (page, requests) in [(&all, "7"), (&own, "3")] {
        let tile = format!("value=\"{requests}\">{requests}</data> in 15 minutes");
        assert!(page.contains(&tile), "{tile}: {page}");
    }
    for text in [
        "blog",
        PAY,
        "Instances</dt>",
        "Store</dt>",
        "Instance <bdi",
        "store memory",
        "is its memory",
        "his instance",
    ] {
        assert!(!own.contains(text), "{text}: {own}");
    }
    let shop = admin.get("now?project=shop").await.body;
    assert!(shop.contains(">of-shop<") && !shop.contains("of-blog"), "{shop}");
    let files = admin.get("now?project=_").await.body;
    assert!(files.contains(PAY) && !files.contains("of-shop"), "{files}");
    for (query, status) in [
        ("project=blog", 404),
        ("project=none", 404),
        ("project=_", 404),
        ("project=shop", 200),
        ("project=shop&project=shop", 400),
    ] {
        assert_eq!(operator.get(&format!("now?{query}")).await.status, status, "{query}");
    }
}
