//! 10,000 random calls that are not to be admitted, each face and each reason.

use std::net::UdpSocket;

use prost::Message;
use ring::digest::{SHA256, digest};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, connect, request};
use rlaas_testkit::tools::skipped;
use tokio::net::UnixStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::wire::{call, head, send, send_to};
use super::{Random, SECRET_USER, routes, rpcs};

const RULES: &str = "rules: [{name: pay, limit: 5, window: 1h, algorithm: gcra}]\n";

/// The headers that make a call not to be admitted.
type Headers = Vec<(String, String)>;

/// Starts a server on all addresses, in which [`SECRET_USER`] has used three units.
async fn start(dir: &TempDir, settings: &str) -> Rlaas {
    let file = dir.write("rlaas.yaml", &format!("{settings}{RULES}"));
    let server = Rlaas::start_from(&file, &["server.listen=0.0.0.0:0", "server.http=0.0.0.0:0"]);
    let mut client = server.client().await;
    for _ in 0..3 {
        let mut request = request(SECRET_USER);
        "/pay".clone_into(&mut request.resource);
        client.check(request).await.expect("a decision");
    }
    server
}

/// Returns the address of the server at another address of this machine.
fn at(address: &str, ip: &str) -> String {
    format!("{ip}:{}", address.rsplit_once(':').expect("host:port").1)
}

/// Returns an address of this machine other than loopback.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the system chooses the address from which it would send.
    socket.connect("192.0.2.1:9").or_else(|_| socket.connect("198.51.100.1:9")).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| ip.to_string())
}

/// Returns a message that would be valid for some method, or random bytes.
fn message(random: &mut Random) -> Vec<u8> {
    let target = Some(Target::Request(request(SECRET_USER)));
    let selector = Some(proto::Selector { target, rule: String::new(), project_id: String::new() });
    let (reason, request_id) = ("because".to_owned(), random.next().to_string());
    match random.next() % 4 {
        0 => proto::InspectRequest { selector }.encode_to_vec(),
        1 => proto::ResetRequest { selector, reason, request_id }.encode_to_vec(),
        2 => proto::RefundRequest { selector, units: 3, reason, request_id }.encode_to_vec(),
        _ => (0..random.next() % 64).map(|_| random.next().to_le_bytes()[0]).collect(),
    }
}

fn json(random: &mut Random) -> String {
    let selector = format!(r#""selector":{{"request":{{"userId":"{SECRET_USER}"}}}}"#);
    let reason = format!(r#""reason":"because","requestId":"{}""#, random.next());
    match random.next() % 4 {
        0 => format!("{{{selector}}}"),
        1 => format!("{{{selector},{reason}}}"),
        2 => format!("{{{selector},\"units\":3,{reason}}}"),
        _ => format!(r#"{{"{SECRET_USER}":{}}}"#, random.next()),
    }
}

/// The state of the user and everything that administrators have done, as text.
async fn all_there_is(channel: &Channel, metadata: &Headers) -> String {
    let mut shown = String::new();
    let target = Some(Target::Request(request(SECRET_USER)));
    let selector = Some(proto::Selector { target, rule: String::new(), project_id: String::new() });
    for path in rpcs() {
        let message = match path.rsplit_once('/').expect("a method").1 {
            "Inspect" => proto::InspectRequest { selector: selector.clone() }.encode_to_vec(),
            "ListOverrides" | "ListAudit" => Vec::new(),
            _ => continue,
        };
        let answer = call(channel, &path, metadata, message).await.expect("an answer");
        if path.ends_with("Inspect") {
            let response = proto::InspectResponse::decode(&answer[..]).expect("a response");
            for key in response.keys {
                let (rule, used, limit) = (key.rule, key.used, key.limit);
                shown.extend([rule, format!(" {used} {limit}\n")]);
            }
        } else {
            shown.extend([path, format!(" {answer:?}\n")]);
        }
    }
    assert!(shown.contains("pay 3 5"), "{shown}");
    shown
}

fn assert_refused_http(status: u16, allowed: &[u16], text: &str) {
    assert!(allowed.contains(&status), "{text}");
    assert!(!text.contains(SECRET_USER), "{text}");
}

async fn intrude_over_grpc(
    random: &mut Random,
    channel: &Channel,
    choices: &[Headers],
    code: &[Code],
    calls: usize,
) {
    let rpcs = rpcs();
    for number in 0..calls {
        // Every method first, then any.
        let path = rpcs.get(number).unwrap_or_else(|| random.pick(&rpcs)).clone();
        let metadata = random.pick(choices).clone();
        let refused = call(channel, &path, &metadata, message(random)).await;
        let status = refused.expect_err("a refusal");
        assert!(code.contains(&status.code()), "{path} {metadata:?}: {status:?}");
        assert!(!status.message().contains(SECRET_USER), "{status:?}");
    }
}

async fn intrude_over_http(
    random: &mut Random,
    (address, routes): (&str, &[(String, String)]),
    choices: &[Headers],
    statuses: &[u16],
    calls: usize,
) {
    for number in 0..calls {
        let (verb, path) = routes.get(number).unwrap_or_else(|| random.pick(routes));
        let head = random.pick(choices).clone();
        let (target, body) = if verb == "GET" {
            (format!("{path}?rule=pay&pageSize=10"), String::new())
        } else {
            (path.clone(), json(random))
        };
        let reply = send_to(address, (verb, &target), &head, &body).await;
        assert_refused_http(reply.status, statuses, &reply.text);
    }
}

#[tokio::test]
async fn foreign_tokens_change_and_show_nothing() {
    let sha256 = |token: &str| {
        let bytes = digest(&SHA256, token.as_bytes());
        bytes.as_ref().iter().fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"))
    };
    let token = |name: &str, roles: &str| {
        let hash = sha256(&format!("token-of-{name}"));
        format!("    - {{name: {name}, sha256: '{hash}', roles: [{roles}]}}\n")
    };
    let all = [token("shop", "check"), token("both", "check, operate, admin")].concat();
    let dir = TempDir::new();
    let server = start_with_tokens(&dir, &format!("auth:\n  tokens:\n{all}")).await;
    let bearer = |token: &str| ("authorization".to_owned(), format!("Bearer {token}"));
    let owner = vec![bearer("token-of-both")];
    let channel = server.channel().await;
    let before = all_there_is(&channel, &owner).await;
    let mut random = Random(21);
    let mut choices: Vec<Headers> = vec![
        Vec::new(),
        vec![bearer("token-of-shop")],
        vec![bearer(&sha256("token-of-both"))],
        vec![bearer("token-of-both2")],
        vec![bearer("token-of-bot")],
        vec![bearer("Token-of-both")],
        vec![("authorization".to_owned(), "token-of-both".to_owned())],
        vec![("authorization".to_owned(), "Basic token-of-both".to_owned())],
        vec![("x-api-key".to_owned(), "token-of-both".to_owned())],
        vec![bearer("token-of-shop"), bearer("token-of-both")],
    ];
    choices.extend((0..20).map(|_| vec![bearer(&random.next().to_string())]));
    let refused = [Code::Unauthenticated, Code::PermissionDenied];
    intrude_over_grpc(&mut random, &channel, &choices, &refused, 1_500).await;
    let local = head(&[("Host", "localhost"), ("Content-Type", "application/json")]);
    let choices: Vec<Headers> =
        choices.iter().map(|of| [local.clone(), of.clone()].concat()).collect();
    let routes = routes(&server).await;
    let http = server.http().to_owned();
    intrude_over_http(&mut random, (&http, &routes), &choices, &[401, 403], 1_500).await;
    assert_eq!(all_there_is(&channel, &owner).await, before);
    assert_eq!(server.metric_sum("rlaas_refused_total", &[]).await, 3_000);
    let lines = server.log().matches("administrative call refused").count();
    assert!((1..=20).contains(&lines), "the log has {lines} lines about 3,000 calls");
}

/// Like [`start`], for a server whose callers need a token.
async fn start_with_tokens(dir: &TempDir, settings: &str) -> Rlaas {
    let file = dir.write("rlaas.yaml", &format!("{settings}{RULES}"));
    let server = Rlaas::start_from(&file, &[]);
    let metadata = head(&[("authorization", "Bearer token-of-shop")]);
    let channel = server.channel().await;
    for _ in 0..3 {
        let message = request(SECRET_USER).encode_to_vec();
        let path = "/ratelimit.v1.RateLimitService/Check";
        call(&channel, path, &metadata, message).await.expect("a decision");
    }
    server
}

#[tokio::test]
async fn other_machines_change_and_show_nothing_without_auth() {
    let Some(ip) = own_address() else {
        return skipped("administration from another machine", "only loopback has an address");
    };
    let dir = TempDir::new();
    let server = start(&dir, "").await;
    let local = connect(&at(server.grpc(), "127.0.0.1")).await;
    let before = all_there_is(&local, &Headers::new()).await;
    let mut random = Random(22);
    let remote = connect(&at(server.grpc(), &ip)).await;
    // Whatever the caller says about itself.
    let claims = [
        Headers::new(),
        head(&[("host", "localhost")]),
        head(&[("x-forwarded-for", "127.0.0.1")]),
        head(&[("forwarded", "for=127.0.0.1;host=localhost")]),
        head(&[("authorization", "Bearer local")]),
    ];
    let denied = [Code::PermissionDenied];
    intrude_over_grpc(&mut random, &remote, &claims, &denied, 1_500).await;
    let json = head(&[("Content-Type", "application/json")]);
    let hosts = ["localhost", "127.0.0.1", "[::1]:1", &ip].map(|host| head(&[("Host", host)]));
    let choices: Vec<Headers> = hosts
        .iter()
        .flat_map(|host| {
            claims.iter().map(|claim| [json.clone(), host.clone(), claim.clone()].concat())
        })
        .collect();
    let (routes, http) = (routes(&server).await, at(server.http(), &ip));
    intrude_over_http(&mut random, (&http, &routes), &choices, &[400, 403], 1_500).await;
    assert_eq!(all_there_is(&local, &Headers::new()).await, before);
    let log = server.log();
    assert!(log.contains("not on loopback, and auth lists nobody"), "{log}");
    // Decisions are for everybody.
    let (path, bob) = ("/ratelimit.v1.RateLimitService/Check", request("bob").encode_to_vec());
    call(&remote, path, &[], bob).await.expect("a decision");
}

#[tokio::test]
async fn pages_rebound_hosts_and_proxies_change_and_show_nothing() {
    let dir = TempDir::new();
    let server = start(&dir, "http: {hosts: [ops.internal]}\n").await;
    let grpc = at(server.grpc(), "127.0.0.1");
    let local = connect(&grpc).await;
    let before = all_there_is(&local, &Headers::new()).await;
    let mut random = Random(23);
    let (routes, http) = (routes(&server).await, at(server.http(), "127.0.0.1"));
    let with = |lines: &[(&str, &str)]| head(lines);
    // What a browser can send for a page of another origin, or for one whose name was rebound.
    let json = ("Content-Type", "application/json");
    let pages: Vec<Headers> = [
        [("Host", &*http), ("Origin", "https://evil.example"), json],
        [("Host", &*http), ("Origin", "null"), json],
        [("Host", &*http), ("Origin", "http://localhost:1"), json],
        [("Host", &*http), ("Origin", "http://evil.example"), ("Content-Type", "text/plain")],
        [("Host", "evil.example"), ("Origin", "http://evil.example"), json],
        [("Host", "localhost.evil.example"), ("Accept", "*/*"), json],
        [("Host", "0.0.0.0"), ("Accept", "*/*"), json],
        [("Host", "127.0.0.1.nip.io"), ("Accept", "*/*"), json],
    ]
    .iter()
    .map(|lines| with(lines))
    .collect();
    intrude_over_http(&mut random, (&http, &routes), &pages, &[403], 1_200).await;
    // A form, a beacon and a script without permission send these types, also of its own origin, but
    // no DELETE.
    let has_body = |verb: &str| verb != "GET" && verb != "DELETE";
    let changes: Vec<(String, String)> =
        routes.iter().filter(|(verb, _)| has_body(verb)).cloned().collect();
    let types: Vec<Headers> = [
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
    ]
    .iter()
    .map(|of| with(&[("Host", &*http), ("Content-Type", of)]))
    .collect();
    intrude_over_http(&mut random, (&http, &changes), &types, &[415], 800).await;
    // A proxy on loopback that says so.
    let proxies: Vec<Headers> = [
        ("Forwarded", "for=198.51.100.7"),
        ("Via", "1.1 proxy"),
        ("X-Forwarded-For", "198.51.100.7"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "localhost"),
        ("X-Real-IP", "127.0.0.1"),
        ("X-Envoy-External-Address", "198.51.100.7"),
        ("X-Envoy-Expected-Rq-Timeout-Ms", "15000"),
    ]
    .iter()
    .map(|line| with(&[("Host", "localhost"), json, *line]))
    .collect();
    intrude_over_http(&mut random, (&http, &routes), &proxies, &[403], 800).await;
    let lower = |of: &Headers| -> Headers {
        of[2..].iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect()
    };
    let metadata: Vec<Headers> = proxies.iter().map(lower).collect();
    let denied = [Code::PermissionDenied];
    intrude_over_grpc(&mut random, &local, &metadata, &denied, 700).await;
    // A foreign name in :authority, and pages that reach gRPC.
    for (authority, metadata) in [
        ("http://evil.example", Headers::new()),
        ("http://rlaas.example:50051", Headers::new()),
        ("http://localhost", with(&[("origin", "https://evil.example")])),
        ("http://localhost", with(&[("origin", "null")])),
    ] {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).expect("an address");
        let endpoint = endpoint.origin(authority.parse().expect("an origin"));
        let channel = endpoint.connect().await.expect("a connection");
        intrude_over_grpc(&mut random, &channel, &[metadata], &denied, 125).await;
    }
    assert_eq!(all_there_is(&local, &Headers::new()).await, before);
    assert_eq!(server.metric_sum("rlaas_refused_total", &[]).await, 4_000);

    // The same calls are admitted from the machine itself, under each local name.
    for host in [&*http, "localhost", "[::1]", "ops.internal:8080"] {
        let head = with(&[("Host", host), json]);
        let body = format!(r#"{{"selector":{{"request":{{"userId":"{SECRET_USER}"}}}}}}"#);
        let route = ("POST", "/v1/admin/keys:inspect");
        let reply = send_to(&http, route, &head, &body).await;
        assert_eq!(reply.status, 200, "{host}: {}", reply.text);
        assert!(reply.text.contains(SECRET_USER));
    }
}

#[tokio::test]
async fn unix_socket_is_local_under_any_name_but_not_behind_a_proxy() {
    let dir = TempDir::new();
    let path = dir.path("http.sock");
    let _server = Rlaas::start(&[&format!("server.http=unix:{}", path.display())]);
    let json = ("Content-Type", "application/json");
    let body = format!(r#"{{"selector":{{"request":{{"userId":"{SECRET_USER}"}}}}}}"#);
    for (lines, status) in [
        (&[("Host", "localhost"), json][..], 200),
        (&[("Host", "any"), json], 200),
        (&[("Host", ""), json], 200),
        (&[("Host", "localhost"), ("X-Forwarded-For", "198.51.100.7"), json], 403),
        (&[("Host", "localhost"), ("Origin", "https://evil.example"), json], 403),
        (&[("Host", "localhost"), ("Content-Type", "text/plain")], 415),
    ] {
        let socket = UnixStream::connect(&path).await.expect("a socket");
        let route = ("POST", "/v1/admin/keys:inspect");
        let reply = send(socket, route, &head(lines), &body).await;
        assert_eq!(reply.status, status, "{lines:?}: {}", reply.text);
    }
}
