//! A browser that visits several hosts, keeps the cookies of each, and follows no redirect by itself.

use std::collections::BTreeMap;

use crate::http::client::{HttpResponse, exchange};

/// The cookies, by host and name.
#[derive(Clone, Debug, Default)]
pub(super) struct CookieJar(BTreeMap<(String, String), String>);

impl CookieJar {
    pub(super) async fn get(&mut self, url: &str) -> HttpResponse {
        self.send("GET", url, "").await
    }

    pub(super) async fn post(&mut self, url: &str, body: &str) -> HttpResponse {
        self.send("POST", url, body).await
    }

    /// Follows redirects until a page is shown, or one leads to a URL with this text. Returns that URL,
    /// or the page's.
    pub(super) async fn follow(&mut self, url: &str, until: &str) -> String {
        let mut url = url.to_owned();
        for _ in 0..10 {
            if !until.is_empty() && url.contains(until) {
                return url;
            }
            let response = self.get(&url).await;
            match response.header("location") {
                Some(location) => url = resolved(&url, location),
                None => return url,
            }
        }
        panic!("too many redirects: {url}")
    }

    /// Returns the value of a cookie.
    pub(super) fn cookie(&self, host: &str, name: &str) -> Option<&String> {
        self.0.get(&(host.to_owned(), name.to_owned()))
    }

    /// Plants a cookie.
    pub(super) fn set(&mut self, host: &str, name: &str, value: &str) {
        self.0.insert((host.to_owned(), name.to_owned()), value.to_owned());
    }

    async fn send(&mut self, method: &str, url: &str, body: &str) -> HttpResponse {
        let (host, path) = parts(url);
        let cookies = self.0.iter().filter(|((of, _), _)| of == host);
        let cookies: Vec<String> =
            cookies.map(|((_, name), value)| format!("{name}={value}")).collect();
        let cookie = if cookies.is_empty() {
            String::new()
        } else {
            format!("Cookie: {}\r\n", cookies.join("; "))
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nConnection: close\r\n\
             {cookie}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let address = host.replace("localhost", "127.0.0.1");
        let response = exchange(&address, request.as_bytes()).await;
        for cookie in response.values("set-cookie") {
            let (name, value) =
                cookie.split(';').next().and_then(|pair| pair.split_once('=')).expect("a cookie");
            let at = (host.to_owned(), name.to_owned());
            if value.is_empty() {
                self.0.remove(&at)
            } else {
                self.0.insert(at, value.to_owned())
            };
        }
        response
    }
}

/// Returns the URL that a redirect leads to.
pub(super) fn resolved(url: &str, location: &str) -> String {
    let (host, path) = parts(url);
    if location.starts_with("http://") {
        location.to_owned()
    } else if location.starts_with('/') {
        format!("http://{host}{location}")
    } else {
        let path = path.split('?').next().unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("http://{host}{folder}/{location}")
    }
}

fn parts(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("{url}"));
    let at = rest.find('/').unwrap_or_else(|| panic!("{url}"));
    rest.split_at(at)
}
