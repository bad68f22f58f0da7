//! A real Envoy on loopback makes none of its clients local.

use prost::Message;
use rlaas_proto::ratelimit::admin::v1::InspectRequest;
use rlaas_testkit::process::{Rlaas, connect};
use tonic::Code;

use super::wire::{call, head, send_to};
use super::{SECRET_USER, routes, rpcs};
use crate::envoy::proxy::Envoy;

/// An Envoy with one listener in front of one address, and nothing else set.
fn config(port: &str, protocol: &str) -> String {
    format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }} }}
static_resources:
  listeners:
    - name: front
      address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - {{ name: all, domains: ["*"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: rlaas }} }}] }}
  clusters:
    - name: rlaas
      load_assignment:
        cluster_name: rlaas
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }}] }}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ {protocol}: {{}} }}
"#
    )
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').expect("host:port").1
}

#[tokio::test]
async fn clients_of_a_proxy_on_loopback_are_not_local() {
    let server = Rlaas::start(&[]);
    let text = config(port(server.http()), "http_protocol_options");
    let Some(http) = Envoy::start(&text).await else { return };
    let json = ("Content-Type", "application/json");
    for (verb, path) in routes(&server).await {
        for host in ["localhost", "127.0.0.1:8080"] {
            let body = format!(r#"{{"selector":{{"request":{{"userId":"{SECRET_USER}"}}}}}}"#);
            let body = if verb == "GET" { "" } else { &body };
            let head = head(&[("Host", host), json]);
            let reply = send_to(http.front(), (&verb, &path), &head, body).await;
            assert_eq!(reply.status, 403, "{verb} {path}: {}", reply.text);
            assert!(reply.text.contains("header of a proxy"), "{}", reply.text);
        }
    }
    // Decisions go through it, as before.
    let check = format!(r#"{{"userId":"{SECRET_USER}"}}"#);
    let head = head(&[("Host", "localhost"), json]);
    let decided = send_to(http.front(), ("POST", "/v1/check"), &head, &check).await;
    assert_eq!(decided.status, 200, "{}", decided.text);
    let grpc = Envoy::start(&config(port(server.grpc()), "http2_protocol_options")).await;
    let grpc = grpc.expect("an installed Envoy");
    let channel = connect(grpc.front()).await;
    for path in rpcs() {
        let message = InspectRequest::default().encode_to_vec();
        let refused = call(&channel, &path, &[], message).await.expect_err("a refusal");
        assert_eq!(refused.code(), Code::PermissionDenied, "{path}: {refused:?}");
        assert!(refused.message().contains("header of a proxy"), "{refused:?}");
    }
}
