//! A minimal HTTP/1.1 client that sends any bytes and returns the whole response.

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use rlaas_testkit::process::Rlaas;

#[derive(Clone, Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpResponse {
    /// Returns the value of a header, which must not be repeated.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(of, _)| of.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is repeated");
        value
    }

    /// Returns the values of a header, which may be repeated.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let values = self.headers.iter().filter(|(of, _)| of.eq_ignore_ascii_case(name));
        values.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the names of the rate limit headers, in order.
    pub(super) fn limit_headers(&self) -> Vec<&str> {
        let names = self.headers.iter().map(|(name, _)| name.as_str());
        names.filter(|name| name.starts_with("ratelimit") || *name == "retry-after").collect()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the detail of a problem document.
    pub(crate) fn detail(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        problem["detail"].as_str().expect("a text").to_owned()
    }
}

pub(super) async fn get(server: &Rlaas, target: &str) -> HttpResponse {
    send(server, "GET", target, None).await
}

pub(crate) async fn post(server: &Rlaas, path: &str, body: &str) -> HttpResponse {
    send(server, "POST", path, Some(body)).await
}

/// Sends a request with any method.
pub(super) async fn send(
    server: &Rlaas,
    method: &str,
    target: &str,
    body: Option<&str>,
) -> HttpResponse {
    send_with(server, method, target, "", body).await
}

/// Sends a request with headers, each with its line end.
pub(crate) async fn send_with(
    server: &Rlaas,
    method: &str,
    target: &str,
    headers: &str,
    body: Option<&str>,
) -> HttpResponse {
    let length = body.map(|body| format!("Content-Length: {}\r\n", body.len()));
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}{}\r\n",
        length.unwrap_or_default()
    );
    send_raw(server, &[head.as_bytes(), body.unwrap_or_default().as_bytes()].concat()).await
}

/// Sends bytes, and reads until the server closes the connection.
pub(super) async fn send_raw(server: &Rlaas, bytes: &[u8]) -> HttpResponse {
    exchange(server.http(), bytes).await
}

/// Like [`send_raw`], to any server.
pub(crate) async fn exchange(address: &str, bytes: &[u8]) -> HttpResponse {
    exchange_over(TcpStream::connect(address).await.expect("a running server"), bytes).await
}

/// Like [`exchange`], over a connection.
pub(crate) async fn exchange_over(
    connection: impl AsyncRead + AsyncWrite,
    bytes: &[u8],
) -> HttpResponse {
    let (mut reader, mut writer) = tokio::io::split(connection);
    writer.write_all(bytes).await.expect("a server that reads the request");
    let mut response = Vec::new();
    reader.read_to_end(&mut response).await.expect("a response");
    let response = String::from_utf8(response).expect("UTF-8");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").expect("a header");
        (name.to_owned(), value.to_owned())
    };
    HttpResponse {
        status: status.expect("a status"),
        headers: lines.map(header).collect(),
        body: body.to_owned(),
    }
}
