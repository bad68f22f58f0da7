//! Clients of the service for projects.

use rlaas_proto::ratelimit::admin::v1::project_service_client::ProjectServiceClient;
use rlaas_proto::ratelimit::v1 as rules;
use rlaas_testkit::process::Rlaas;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Adds a bearer token unless it is empty.
#[derive(Clone, Debug)]
pub(super) struct Token(pub(super) &'static str);

impl tonic::service::Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if !self.0.is_empty() {
            let header = format!("Bearer {}", self.0).parse().expect("a header");
            request.metadata_mut().insert("authorization", header);
        }
        Ok(request)
    }
}

pub(super) type Client = ProjectServiceClient<InterceptedService<Channel, Token>>;

pub(super) async fn client(server: &Rlaas, token: &'static str) -> Client {
    ProjectServiceClient::with_interceptor(server.channel().await, Token(token))
}

/// Returns a rule of one request an hour for each user of a resource.
pub(super) fn rule(name: &str, resource: &str) -> rules::Rule {
    rules::Rule {
        name: name.to_owned(),
        max_requests: 1,
        window: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
        matchers: vec![rules::PartMatcher {
            part: "resource".to_owned(),
            any_of: vec![resource.to_owned()],
        }],
        ..rules::Rule::default()
    }
}

/// An answer over HTTP. The body is `null` if there is none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RestResponse {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Value,
}

impl RestResponse {
    /// Returns the etag with its quotes.
    pub(super) fn etag(&self) -> &str {
        let rest = self.head.split("etag: ").nth(1).expect("an etag");
        rest.split("\r\n").next().unwrap_or_default()
    }
}

/// Calls a route. `headers` end with `\r\n`.
pub(super) async fn http(
    server: &Rlaas,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> RestResponse {
    let length = body.len();
    let content = if ["GET", "DELETE"].contains(&method) {
        String::new()
    } else {
        format!("Content-Type: application/json\r\nContent-Length: {length}\r\n")
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         {content}{headers}\r\n{body}"
    );
    let mut connection = TcpStream::connect(server.http()).await.expect("a running server");
    connection.write_all(request.as_bytes()).await.expect("a server that reads the request");
    let mut response = String::new();
    connection.read_to_string(&mut response).await.expect("a response");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
    };
    RestResponse { status: status.expect("a status"), head: head.to_lowercase(), body }
}
