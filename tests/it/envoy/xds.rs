//! Rules of a management server (`envoy.xds`), which a test plays.

use std::fs::{read_to_string, write};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use prost_types::Any;
use rlaas_proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use rlaas_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use rlaas_proto::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use rlaas_proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::tls::{Certificate, Certificates};
use rlaas_testkit::{TempDir, eventually};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::{Certificate as Authority, Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};

use super::client::{check, client};
use super::kuadrant::KuadrantClient;
use super::proxy::Envoy;

pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A management server of one client.
pub(super) struct ManagementServer {
    pub(super) address: String,
    streams: mpsc::Receiver<XdsStream>,
    serving: JoinHandle<()>,
}

/// A stream of the client, as the server has it.
pub(super) struct XdsStream {
    metadata: MetadataMap,
    requests: Mutex<Streaming<DiscoveryRequest>>,
    pub(super) responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
}

struct Discovery(mpsc::Sender<XdsStream>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (responses, sent) = mpsc::channel(8);
        let metadata = request.metadata().clone();
        let requests = Mutex::new(request.into_inner());
        let stream = XdsStream { metadata, requests, responses };
        self.0.send(stream).await.map_err(|_| Status::cancelled("the test has ended"))?;
        Ok(Response::new(ReceiverStream::new(sent)))
    }
}

impl ManagementServer {
    pub(super) async fn start(address: &str, tls: Option<ServerTlsConfig>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let (sender, streams) = mpsc::channel(8);
        let mut server = Server::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).expect("certificates");
        }
        let serving = server
            .add_service(AggregatedDiscoveryServiceServer::new(Discovery(sender)))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let serving = tokio::spawn(async move { serving.await.expect("a server") });
        Self { address, streams, serving }
    }

    /// Waits for the next stream, and for its first request.
    pub(super) async fn stream(&mut self) -> (XdsStream, DiscoveryRequest) {
        let stream = timeout(TIMEOUT, self.streams.recv()).await.expect("a stream in time");
        let stream = stream.expect("a server");
        let first = stream.request().await;
        (stream, first)
    }
}

impl Drop for ManagementServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl XdsStream {
    pub(super) async fn request(&self) -> DiscoveryRequest {
        let mut requests = self.requests.lock().await;
        let request = timeout(TIMEOUT, requests.message()).await.expect("a request in time");
        request.expect("a stream").expect("a request")
    }

    /// Sends resources, and does not wait for what the client says.
    pub(super) async fn send(&self, version: &str, resources: Vec<Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: TYPE.to_owned(),
            nonce: format!("nonce-{version}"),
        };
        self.responses.send(Ok(response)).await.expect("a client");
    }

    /// Sends resources, and returns what the client says of them.
    pub(super) async fn offer(&self, version: &str, resources: Vec<Any>) -> DiscoveryRequest {
        self.send(version, resources).await;
        let request = self.request().await;
        assert_eq!(request.response_nonce, format!("nonce-{version}"));
        request
    }

    pub(super) async fn accepts(&self, version: &str, resources: Vec<Any>) {
        let taken = self.offer(version, resources).await;
        assert_eq!((&*taken.version_info, taken.error_detail), (version, None));
    }
}

/// Returns a resource: a limit of users in a domain.
pub(super) fn limit(domain: &str, requests_per_unit: u32, unit: RateLimitUnit) -> Any {
    let rate_limit =
        RateLimitPolicy { unit: unit.into(), requests_per_unit, ..RateLimitPolicy::default() };
    let descriptor = RateLimitDescriptor {
        key: "user".to_owned(),
        rate_limit: Some(rate_limit),
        ..RateLimitDescriptor::default()
    };
    let config = RateLimitConfig {
        name: format!("{domain}/first"),
        domain: domain.to_owned(),
        descriptors: vec![descriptor],
    };
    Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() }
}

pub(super) fn rlaas(address: &str, settings: &[&str]) -> Rlaas {
    let address = format!("envoy.xds.address=http://{address}");
    Rlaas::start(&[&[&*address, "envoy.deadline=10s"], settings].concat())
}

async fn is_ready(server: &Rlaas) -> bool {
    server.get("/readyz").await.0 == 200
}

#[tokio::test]
async fn rules_come_into_force_and_invalid_ones_are_refused_with_the_reason() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let settings = ["envoy.xds.node=ratelimit-1", "envoy.xds.node-metadata={zone: a}"];
    let server = rlaas(&management.address, &settings);
    let mut client = client(&server).await;
    let (stream, first) = management.stream().await;
    assert_eq!((&*first.type_url, &*first.version_info, &*first.response_nonce), (TYPE, "", ""));
    let node = first.node.expect("a node");
    assert_eq!((&*node.id, &*node.user_agent_name), ("ratelimit-1", "rlaas"));
    assert_eq!(node.metadata.expect("metadata").fields.len(), 1);
    // Nothing passes by chance while the rules are not known.
    assert!(!is_ready(&server).await);
    let unknown = check(&mut client, "shop: user=alice").await;
    assert!(unknown.starts_with("UNAVAILABLE"), "{unknown}");

    stream.accepts("1", vec![limit("shop", 1, RateLimitUnit::Year)]).await;
    eventually("the server is ready", TIMEOUT, async || is_ready(&server).await).await;
    for expected in ["OK [OK 1/YEAR left 0", "OVER_LIMIT [OVER_LIMIT 1/YEAR left 0"] {
        let answer = check(&mut client, "shop: user=alice").await;
        assert!(answer.starts_with(expected), "{answer}");
    }

    let invalid = vec![limit("shop", 5, RateLimitUnit::Year), limit("", 1, RateLimitUnit::Unknown)];
    let refused = stream.offer("2", invalid).await;
    assert_eq!(refused.version_info, "1", "the last ones stay");
    let reason = refused.error_detail.expect("a reason").message;
    for part in [
        "resource \"/first\": domain: must be 1 to ",
        "resource \"/first\": descriptors[0].rate_limit.unit: must be second",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    let foreign = Any { type_url: "type.googleapis.com/a.B".to_owned(), value: vec![] };
    let refused = stream.offer("3", vec![foreign]).await;
    assert!(refused.error_detail.is_some_and(|why| why.message.contains("type_url")));
    let answer = check(&mut client, "shop: user=alice").await;
    assert!(answer.starts_with("OVER_LIMIT"), "{answer}");

    stream.accepts("4", vec![limit("shop", 5, RateLimitUnit::Year)]).await;
    let answer = check(&mut client, "shop: user=bob").await;
    assert!(answer.starts_with("OK [OK 5/YEAR left 4"), "{answer}");
    stream.accepts("5", vec![]).await;
    assert_eq!(check(&mut client, "shop: user=alice").await, "OK [OK]");
    let counted = async |event| {
        server.metric(&format!("rlaas_xds_responses_total{{event=\"{event}\"}}")).await
    };
    assert_eq!((counted("accepted").await, counted("refused").await), (Some(3.0), Some(2.0)));
}

#[tokio::test]
async fn last_rules_outlive_the_management_server_and_a_restart() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let address = management.address.clone();
    let folder = TempDir::new();
    let state = format!("state-dir={}", folder.path("state").display());
    let settings = [&*state, "store.memory.snapshot=off"];
    let server = rlaas(&address, &settings);
    let (stream, _) = management.stream().await;
    stream.accepts("7", vec![limit("shop", 1, RateLimitUnit::Year)]).await;
    drop((stream, management));
    let is_connected = async |wanted| server.metric("rlaas_xds_connected").await == Some(wanted);
    eventually("the stream has ended", TIMEOUT, async || is_connected(0.0).await).await;
    let mut here = client(&server).await;
    assert!(check(&mut here, "shop: user=alice").await.starts_with("OK [OK 1/YEAR"));
    drop(server);

    // Nobody answers at the address.
    let server = rlaas(&address, &settings);
    let mut here = client(&server).await;
    assert!(is_ready(&server).await);
    for expected in ["OK [OK 1/YEAR", "OVER_LIMIT"] {
        assert!(check(&mut here, "shop: user=bob").await.starts_with(expected));
    }
    // It comes back with rules of an older version.
    let mut management = ManagementServer::start(&address, None).await;
    let (stream, first) = management.stream().await;
    assert_eq!(first.version_info, "", "versions are those of one stream's server");
    stream.accepts("3", vec![limit("shop", 9, RateLimitUnit::Year)]).await;
    assert!(check(&mut here, "shop: user=bob").await.starts_with("OK [OK 9/YEAR"));
}

#[tokio::test]
async fn without_wait_the_server_is_ready_and_refuses_until_the_first_rules() {
    let server = rlaas("127.0.0.1:1", &["envoy.xds.wait=false"]);
    let mut client = client(&server).await;
    assert!(is_ready(&server).await);
    let answer = check(&mut client, "shop: user=alice").await;
    assert!(answer.starts_with("UNAVAILABLE"), "{answer}");
    // Kuadrant's calls alike.
    let mut kuadrant = KuadrantClient::new(server.channel().await);
    let request = super::notation::request("shop: user=alice");
    let (domain, descriptors) = (&request.domain, &request.descriptors);
    let reserve = ReserveRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        ..ReserveRequest::default()
    };
    let commit = CommitRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        ..CommitRequest::default()
    };
    let refused = [
        kuadrant.check_rate_limit(request.clone()).await.err(),
        kuadrant.report(request.clone()).await.err(),
        kuadrant.reserve(reserve).await.err(),
        kuadrant.commit(commit).await.err(),
    ];
    let codes = refused.map(|status| status.map(|status| status.code()));
    assert_eq!(codes, [Some(Code::Unavailable); 4]);
}

#[tokio::test]
async fn problems_of_files_are_not_told_and_empty_rules_are_rules() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let folder = TempDir::new();
    let rules = folder.write("rules.yaml", "domain: files\ndescriptors: []\n");
    let file = folder.write("rlaas.yaml", "envoy: { files: [rules.yaml] }\n");
    let settings = [
        format!("envoy.xds.address=http://{}", management.address),
        format!("state-dir={}", folder.path("state").display()),
        "store.memory.snapshot=off".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Rlaas::start_from(&file, &settings);
    let (stream, _) = management.stream().await;
    stream.accepts("1", vec![]).await;
    write(&rules, "domain: s3cret*:\n  - [").expect("a file");
    let is_logged =
        async || server.metric("rlaas_config_last_reload_successful").await == Some(0.0);
    eventually("the file is refused", TIMEOUT, is_logged).await;
    let response = DiscoveryResponse {
        type_url: TYPE.to_owned(),
        nonce: "2".to_owned(),
        ..DiscoveryResponse::default()
    };
    stream.responses.send(Ok(response)).await.expect("a client");
    // What is wrong with files is not told: the client comes again.
    let (stream, first) = management.stream().await;
    assert_eq!((&*first.version_info, first.error_detail), ("", None));
    write(&rules, "domain: files\ndescriptors: []\n").expect("a file");
    let is_valid = async || server.metric("rlaas_config_last_reload_successful").await == Some(1.0);
    eventually("the file is valid", TIMEOUT, is_valid).await;
    stream.accepts("2", vec![]).await;
    drop((server, management));
    // Nobody answers: the last rules are none.
    let server = Rlaas::start_from(&file, &settings);
    assert!(is_ready(&server).await);
    assert_eq!(check(&mut client(&server).await, "shop: user=alice").await, "OK [OK]");
}

#[tokio::test]
async fn resources_of_another_type_change_nothing() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let mut client = client(&server).await;
    let (stream, _) = management.stream().await;
    stream.accepts("1", vec![limit("shop", 1, RateLimitUnit::Year)]).await;
    let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
    let response = DiscoveryResponse { type_url, nonce: "n".to_owned(), ..Default::default() };
    stream.responses.send(Ok(response)).await.expect("a client");
    let refused = stream.request().await;
    assert!(refused.error_detail.is_some_and(|why| why.message.contains("type_url")));
    assert_eq!(refused.version_info, "1");
    assert!(check(&mut client, "shop: user=alice").await.starts_with("OK [OK 1/YEAR"));
}

#[tokio::test]
async fn server_and_client_show_their_certificates() {
    let certificates = Certificates::make();
    let pem = |path| read_to_string(path).expect("a PEM file");
    let of = |one| (certificates.certificate(one), certificates.key(one));
    let (cert, key) = of(Certificate::Server);
    let identity = Identity::from_pem(pem(cert), pem(key));
    let (cert, key) = of(Certificate::Client);
    let authority = Authority::from_pem(pem(certificates.authority()));
    let tls = ServerTlsConfig::new().identity(identity).client_ca_root(authority);
    let mut management = ManagementServer::start("127.0.0.1:0", Some(tls)).await;
    let port = management.address.rsplit_once(':').expect("a port").1;
    let settings = [
        format!("envoy.xds.address=https://127.0.0.1:{port}"),
        "envoy.xds.tls.server-name=localhost".to_owned(),
        format!("envoy.xds.tls.ca={}", certificates.authority().display()),
        format!("envoy.xds.tls.cert={}", cert.display()),
        format!("envoy.xds.tls.key={}", key.display()),
        "envoy.xds.headers={x-key: s3cret}".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Rlaas::start(&settings);
    let (stream, _) = management.stream().await;
    assert_eq!(stream.metadata.get("x-key").map(MetadataValue::as_bytes), Some(&b"s3cret"[..]));
    stream.accepts("1", vec![limit("shop", 1, RateLimitUnit::Year)]).await;
    assert!(!server.log().contains("s3cret"), "{}", server.log());

    // Without its certificate the client is not let in, and says so.
    let settings: Vec<&str> = settings
        .into_iter()
        .filter(|setting| !setting.contains(".cert=") && !setting.contains(".key="))
        .collect();
    let server = Arc::new(Rlaas::start(&settings));
    let is_logged = async || server.log().contains("no rules from the management server");
    eventually("the log says why there are no rules", TIMEOUT, is_logged).await;
    assert!(!is_ready(&server).await);
}

#[tokio::test]
async fn envoy_limits_by_the_rules_of_a_management_server() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &[]);
    let (stream, _) = management.stream().await;
    stream.accepts("1", vec![limit("shop", 1, RateLimitUnit::Year)]).await;
    let patient = ("timeout: 0.020s", "timeout: 20s");
    let Some(envoy) = Envoy::in_front_of(&server, &[patient]).await else { return };
    let status = async |user| envoy.get("/", &[("x-user", user)]).await.status;
    assert_eq!((status("alice").await, status("alice").await), (200, 429));
    stream.accepts("2", vec![limit("shop", 2, RateLimitUnit::Year)]).await;
    assert_eq!((status("bob").await, status("bob").await, status("bob").await), (200, 200, 429));
    stream.accepts("3", vec![]).await;
    assert_eq!(status("bob").await, 200);
}
