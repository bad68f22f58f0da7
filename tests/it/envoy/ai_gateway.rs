//! The quota server of Envoy AI Gateway: rules of `QuotaPolicy` by xDS, and each request checked, then charged, by a
//! real Envoy, with the settings that the chart makes.
//!
//! **Source:** envoyproxy/ai-gateway v1.1.0, `internal/ratelimit/translator/translator.go` and
//! `internal/extensionserver/quota_ratelimit.go`.

use prost::Message;
use prost_types::Any;
use rlaas_proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use rlaas_testkit::eventually;

use super::proxy::Envoy;
use super::xds::{ManagementServer, TIMEOUT, TYPE, rlaas};

const NODE: &str = "envoy-ai-gateway-ratelimit";
const DOMAIN: &str = "ai-gateway-quota";
const BACKEND: (&str, &str) = ("backend_name", "default/openai");
const MODEL: &str = "model_name_override";
/// The tokens of each answer.
const COST: u64 = 7;

/// Actions of a request, before its backend is known, and of its end, by the metadata of the external processor.
const BEFORE: &str = "{ generic_key: { descriptor_key: backend_name, descriptor_value: default/openai } }, \
                      { generic_key: { descriptor_key: model_name_override, descriptor_value: MODEL } }";
const AFTER: &str = "{ metadata: { descriptor_key: backend_name, source: DYNAMIC, metadata_key: { key: \
                     io.envoy.ai_gateway, path: [{ key: ai_service_backend_name }] } } }, { metadata: { \
                     descriptor_key: model_name_override, source: DYNAMIC, metadata_key: { key: \
                     io.envoy.ai_gateway, path: [{ key: model_name_override }] } } }";
const OF_TEAM: &str =
    "{ request_headers: { header_name: x-team, descriptor_key: rule-0-x-team-match-0 } }";
const OF_ALL: &str =
    "{ generic_key: { descriptor_key: rule-1-match--1, descriptor_value: rule-1-match--1 } }";

/// An Envoy whose routes `/plain` and `/teams` are those models; Lua plays the external processor.
const CONFIG: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }
static_resources:
  listeners:
    - name: front
      address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                http_filters:
                  - name: envoy.filters.http.ratelimit/ai-gateway-quota
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: ai-gateway-quota
                      timeout: 20s
                      failure_mode_deny: true
                      disable_x_envoy_ratelimited_header: true
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: { envoy_grpc: { cluster_name: ai_gateway_ratelimit_cluster } }
                  - name: envoy.filters.http.lua
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
                      default_source_code:
                        inline_string: |
                          function envoy_on_request(handle)
                            local metadata = handle:streamInfo():dynamicMetadata()
                            local set = function(name, value) metadata:set("io.envoy.ai_gateway", name, value) end
                            set("ai_service_backend_name", "default/openai")
                            set("model_name_override", string.sub(handle:headers():get(":path"), 2))
                            set("quota_cost", COST)
                          end
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: models
                      domains: ["*"]
                      routes:
                        - match: { prefix: /plain }
                          route: { cluster: backend }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit/ai-gateway-quota:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              domain: ai-gateway-quota
                              rate_limits: [PLAIN]
                        - match: { prefix: /teams }
                          route: { cluster: backend }
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit/ai-gateway-quota:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              domain: ai-gateway-quota
                              rate_limits: [TEAMS]
    - name: backend
      address: { pipe: { path: "BACKEND" } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: backend
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: backend
                      domains: ["*"]
                      routes:
                        - match: { prefix: / }
                          direct_response: { status: 200 }
  clusters:
    - name: backend
      load_assignment:
        cluster_name: backend
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { pipe: { path: "BACKEND" } } }
    - name: ai_gateway_ratelimit_cluster
      connect_timeout: 5s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: ai_gateway_ratelimit_cluster
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: RLAAS } } }
"#;

#[tokio::test]
async fn quotas_of_envoy_ai_gateway_are_checked_and_charged() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let node = format!("envoy.xds.node={NODE}");
    let settings = [&*node, "envoy.xds.wait=false", "envoy.count-refused=true"];
    let server = rlaas(&management.address, &settings);
    let (stream, first) = management.stream().await;
    assert_eq!(first.node.expect("a node").id, NODE);
    let team = quota("rule-0-x-team-match-0", "", 10);
    let all = quota("rule-1-match--1", "rule-1-match--1", 30);
    let models = vec![quota(MODEL, "plain", 20), descriptor(MODEL, "teams", vec![team, all])];
    stream.accepts("1", vec![resource(vec![descriptor(BACKEND.0, BACKEND.1, models)])]).await;

    let (_, port) = server.grpc().rsplit_once(':').expect("host:port");
    let plain = [check(BEFORE, "plain"), charge(AFTER)].join(", ");
    let both = |base: &str| [OF_TEAM, OF_ALL].map(|more| format!("{base}, {more}"));
    let checks = both(BEFORE).map(|actions| check(&actions, "teams"));
    let teams = [checks, both(AFTER).map(|actions| charge(&actions))].concat().join(", ");
    let config = CONFIG.replace("PLAIN", &plain).replace("TEAMS", &teams);
    let config = config.replace("COST", &COST.to_string()).replace("RLAAS", port);
    let config = config.replace("BACKEND", &format!("@ai-gateway-{}", std::process::id()));
    let Some(envoy) = Envoy::start(&config).await else { return };
    let decided = || server.metric_sum("rlaas_decisions_total", &[]);
    // Returns the statuses of four requests, each after the charge of the one before.
    let statuses = async |path: &str, decisions: u64, headers: &[(&str, &str)]| {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            let before = decided().await;
            let status = envoy.get(path, headers).await.status;
            statuses.push(status);
            eventually("the answer is charged", TIMEOUT, async || {
                status != 200 || decided().await >= before + decisions
            })
            .await;
        }
        statuses
    };
    // A check takes 1, as Envoy AI Gateway sends it, and an answer 7: 8, 16, and 24 of 20.
    assert_eq!(statuses("/plain", 2, &[]).await, [200, 200, 200, 429]);
    // 24 of the 10 of this team, which do not refuse while some of the 30 of all are left.
    let team = |name| [("x-team", name)];
    assert_eq!(statuses("/teams", 4, &team("a")).await, [200; 4]);
    assert_eq!(statuses("/teams", 4, &team("a")).await, [429; 4]);
    // A team with room passes where all have none.
    assert_eq!(statuses("/teams", 4, &team("b")).await, [200, 200, 429, 429]);
}

fn descriptor(key: &str, value: &str, below: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        descriptors: below,
        ..RateLimitDescriptor::default()
    }
}

/// Returns a quota of tokens a year: a day, which is Envoy AI Gateway's longest, might end in between.
fn quota(key: &str, value: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    let unit = RateLimitUnit::Year.into();
    let policy = RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() };
    RateLimitDescriptor {
        rate_limit: Some(policy),
        quota_mode: true,
        ..descriptor(key, value, Vec::new())
    }
}

fn resource(descriptors: Vec<RateLimitDescriptor>) -> Any {
    let config =
        RateLimitConfig { name: DOMAIN.to_owned(), domain: DOMAIN.to_owned(), descriptors };
    Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() }
}

fn check(actions: &str, model: &str) -> String {
    format!("{{ actions: [{}] }}", actions.replace("MODEL", model))
}

fn charge(actions: &str) -> String {
    let cost = "\"%DYNAMIC_METADATA(io.envoy.ai_gateway:quota_cost)%\"";
    format!(
        "{{ actions: [{actions}], hits_addend: {{ format: {cost} }}, apply_on_stream_done: true }}"
    )
}
