//! The headers of every response, and pages without anything inline or from elsewhere.

use super::browser::Browser;
use super::{ADMIN, CONSOLE, start_with_auth};
use crate::http::client::{HttpResponse, exchange};
use rlaas_testkit::process::Rlaas;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn assert_is_secured(response: &HttpResponse) {
    let policy = response.header("content-security-policy").expect("a policy");
    for directive in [
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.split("; ").any(|of| of == directive), "{directive}: {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
    assert_eq!(response.header("access-control-allow-origin"), None);
}

/// Returns the values of an attribute in a page.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let rest = html.split(attribute).skip(1);
    rest.map(|rest| rest.split('"').next().unwrap_or_default()).collect()
}

#[tokio::test]
async fn every_response_keeps_other_pages_and_inline_code_out() {
    let server = start_with_auth(&[]);
    let stranger = Browser::new(&server);
    let browser = Browser::signed_in(&server, ADMIN).await;
    for (page, status) in [
        ("", 303),
        ("now", 200),
        ("instances", 200),
        ("projects", 200),
        ("project?id=_", 200),
        ("change?project=_", 200),
        ("history?project=_", 200),
        ("sign-in", 200),
        ("missing", 404),
    ] {
        let response = browser.get(page).await;
        assert_eq!(response.status, status, "{page}");
        assert_is_secured(&response);
        assert_eq!(response.header("cache-control"), Some("no-store"), "{page}");
        if status == 200 {
            assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
            let html = &response.body;
            for inline in ["<style", " style=", " onclick", " onload", "javascript:", "<base"] {
                assert!(!html.contains(inline), "{page}: {inline}");
            }
            assert_eq!(
                html.matches("<script").count(),
                html.matches("<script type=\"module\" src=\"assets/").count()
            );
            for link in [values(html, "href=\""), values(html, "src=\""), values(html, "action=\"")]
                .concat()
            {
                assert!(!link.starts_with('/') && !link.contains(':'), "{page}: {link}");
            }
        }
    }
    for refused in [stranger.get("instances").await, stranger.post("sign-out", "").await] {
        assert_is_secured(&refused);
        assert_eq!(refused.header("cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn assets_are_named_by_their_content_and_kept_for_ever() {
    let server = Rlaas::start(&[CONSOLE]);
    let browser = Browser::new(&server);
    let page = browser.get("instances").await.body;
    let links = [values(&page, "href=\"assets/"), values(&page, "src=\"assets/")].concat();
    assert_eq!(links.len(), 4, "{links:?}");
    let mut weight = page.len();
    for name in links {
        let asset = browser.get(&format!("assets/{name}")).await;
        assert_eq!(asset.status, 200, "{name}");
        assert_is_secured(&asset);
        let for_ever = Some("public, max-age=31536000, immutable");
        assert_eq!(asset.header("cache-control"), for_ever);
        assert!(!asset.body.contains("http:") || name.starts_with("icon"), "{name}");
        assert!(!asset.body.contains("https:") && !asset.body.contains("url("), "{name}");
        weight += asset.body.len();
        let other = browser.get(&format!("assets/{}", name.replace('-', "-0"))).await;
        assert_eq!(other.status, 404);
    }
    assert!(weight < 150 * 1024, "{weight} bytes");
    for path in ["..%2fmod.rs", "console.css", "%00", "a/b"] {
        assert_eq!(browser.get(&format!("assets/{path}")).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn pages_are_compressed_with_another_secret_each_time() {
    let server = start_with_auth(&[]);
    let browser = Browser::signed_in(&server, ADMIN).await;
    let plain = browser.get("instances").await;
    assert_eq!(plain.header("content-encoding"), None);
    let request = browser.request("GET", "instances", "Accept-Encoding: gzip, br\r\n", "");
    let mut connection = TcpStream::connect(&browser.address).await.expect("a running server");
    connection.write_all(request.as_bytes()).await.expect("a server that reads");
    let mut compressed = Vec::new();
    connection.read_to_end(&mut compressed).await.expect("a response");
    let end = compressed.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    let (head, body) = compressed.split_at(end + 4);
    let head = String::from_utf8(head.to_vec()).expect("text").to_lowercase();
    assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"));
    assert!(body.starts_with(&[0x1f, 0x8b]) && body.len() * 2 < plain.body.len(), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    let secrets = [browser.secret("instances").await, browser.secret("instances").await];
    assert_ne!(secrets[0], secrets[1], "masked anew");
    for secret in secrets {
        let sent = browser.post("search", &format!("secret={secret}&find=alice")).await;
        assert_eq!(sent.status, 303, "{sent:?}");
    }
}

#[tokio::test]
async fn locations_are_relative_and_nothing_else_is_served() {
    let server = Rlaas::start(&[CONSOLE]);
    let address = super::address(&server);
    let get = async |path: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        exchange(&address, request.as_bytes()).await
    };
    for (path, location) in [("/", "console/"), ("/console", "console/"), ("/console/", "now")] {
        let response = get(path).await;
        assert_eq!((response.status, response.header("location")), (303, Some(location)), "{path}");
    }
    for path in
        ["/metrics", "/v1/admin/instances", "/openapi.json", "/check?userId=alice", "/livez"]
    {
        assert_eq!(get(path).await.status, 404, "{path}");
    }
    let (status, _) = server.get("/console/instances").await;
    assert_eq!(status, 404, "the console is not on server.http");
}

#[test]
fn the_console_is_off_by_default() {
    let server = Rlaas::start(&[]);
    assert!(!server.log().contains("console="), "{}", server.log());
}
