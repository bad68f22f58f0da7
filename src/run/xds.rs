//! The client of a management server: rules for Envoy over xDS, state of the world.
//!
//! Each response has all rules. They come into force together with the configuration if that is valid
//! with them, and are acknowledged; else they are refused with the problems, and the last ones stay.
//! Servers send what was refused again, many of them at once: that is answered after a pause, without being
//! read, until the local configuration changes.
//!
//! **Source:** envoyproxy/envoy, "xDS REST and gRPC protocol"; the service and the type are those of
//! envoyproxy/ratelimit with `CONFIG_TYPE=GRPC_XDS_SOTW`.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::stream;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use rlaas_proto::envoy::config::core::v3::Node;
use rlaas_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use rlaas_proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use rlaas_telemetry::metrics::{EventLabels, Metrics};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Request};
use tonic_types::pb::Status;
use tracing::{error, info, warn};

use crate::api::RulesKnown;
use crate::clock::jittered;
use crate::config::{Config, EnvoyResource, Problems, XdsSettings};

/// Longest response, in bytes.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;
/// Longest reason of a refusal, and longest problems in the log, in bytes.
pub(super) const MAX_REASON: usize = 4096;
/// Longest version that is logged and kept, in bytes.
const MAX_VERSION: usize = 256;
/// Shortest time between two refusals, and from a repeated response to its refusal. go-control-plane answers each
/// refusal with the rules that it has by then, so it is also the longest time that new rules may wait there.
const REFUSAL_INTERVAL: Duration = Duration::from_millis(500);
/// First pause before another connection. It doubles up to the longest.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without data after which the system asks whether the server is there, that between further questions,
/// and how many of them may have no answer.
const TCP_KEEPALIVE: Duration = Duration::from_secs(20);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE_RETRIES: u32 = 3;
/// Time between pings of HTTP/2: servers in Go end the connection if there is more than one in 5 min.
const PING_INTERVAL: Duration = Duration::from_mins(6);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// The file in `state-dir`.
const FILE: &str = "xds.pb";

/// Rules that the server has sent.
#[derive(Debug)]
pub(super) struct RulesUpdate {
    pub(super) resources: Arc<[EnvoyResource]>,
    /// Takes whether they are in force.
    pub(super) reply: oneshot::Sender<Result<(), Problems>>,
}

/// The rules of a management server, if there is one.
pub(super) struct XdsRules {
    pub(super) client: Option<XdsClient>,
    /// Receives the rules that the client was sent.
    pub(super) updates: mpsc::Receiver<RulesUpdate>,
    /// Whether there are rules.
    pub(super) has_rules: watch::Sender<bool>,
    /// Takes each reload of the local configuration.
    pub(super) reloads: watch::Sender<()>,
    pub(super) known: Option<RulesKnown>,
}

/// Follows a management server.
pub(super) struct XdsClient {
    settings: XdsSettings,
    /// The file of the last rules that were valid.
    kept: Option<PathBuf>,
    updates: mpsc::Sender<RulesUpdate>,
    reloads: watch::Receiver<()>,
    metrics: Arc<Metrics>,
    /// The resources that were read last.
    resources: Arc<[EnvoyResource]>,
    /// Version that the stream has put into force last; empty: none. Versions of another process may be
    /// other rules.
    version: String,
    /// The last response, if it was refused: the hash by which it is known when it comes again, and why.
    refused: Option<(u64, RefusedResponse)>,
    hasher: RandomState,
    pause: Duration,
}

/// The reason why a response is refused.
#[derive(Clone, Debug)]
struct RefusedResponse {
    problems: String,
    /// Whether the response may be valid after a reload of the local configuration.
    may_become_valid: bool,
}

/// Returns the rules in `state-dir`: those that were valid last. `None` if there is no file, or it is damaged.
pub(super) fn kept_rules(state_dir: &Path, most: usize) -> Option<Arc<[EnvoyResource]>> {
    let path = state_dir.join(FILE);
    let read = || -> anyhow::Result<_> {
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let resources = EnvoyResource::read_all(&DiscoveryResponse::decode(&*bytes)?, &[], most);
        resources.map(Some).map_err(anyhow::Error::msg)
    };
    read().unwrap_or_else(|error| {
        error!(path = %path.display(), %error, "the last rules of the management server are not used");
        None
    })
}

impl XdsRules {
    pub(super) fn new(config: &Config, has_rules: bool, metrics: &Arc<Metrics>) -> Self {
        let (updates, received) = mpsc::channel(1);
        let (has_rules, known) = watch::channel(has_rules);
        let (reloads, reloaded) = watch::channel(());
        let known = config.xds.as_ref().map(|xds| RulesKnown { wait: xds.wait, known });
        let client = config.xds.clone().map(|settings| XdsClient {
            settings,
            kept: config.state_dir.as_ref().map(|folder| folder.join(FILE)),
            updates,
            reloads: reloaded,
            metrics: Arc::clone(metrics),
            resources: Arc::default(),
            version: String::new(),
            refused: None,
            hasher: RandomState::new(),
            pause: MIN_PAUSE,
        });
        Self { client, updates: received, has_rules, reloads, known }
    }
}

impl XdsClient {
    /// Follows the server, and connects again whenever that ends. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            let ended = self.follow().await;
            self.metrics.xds_connected.set(0);
            let address = &self.settings.address;
            match ended {
                Ok(()) => info!(%address, "the management server has ended the stream"),
                Err(error) => {
                    warn!(%address, error = format!("{error:#}"), "no rules from the management server");
                }
            }
            self.wait().await;
        }
    }

    /// Waits before another attempt; not after a reload, which may have made it possible.
    #[expect(clippy::disallowed_methods, reason = "between two attempts")]
    async fn wait(&mut self) {
        tokio::select! {
            () = sleep(jittered(self.pause)) => {}
            Ok(()) = self.reloads.changed() => {}
        }
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }

    /// Takes what the server sends until the stream ends.
    async fn follow(&mut self) -> anyhow::Result<()> {
        let mut client = AggregatedDiscoveryServiceClient::new(self.connect().await?)
            .max_decoding_message_size(MAX_RESPONSE);
        self.metrics.xds_connected.set(1);
        info!(address = %self.settings.address, "connected to the management server");
        (self.version, self.refused) = (String::new(), None);
        let (requests, sent) = mpsc::channel(1);
        requests.send(self.request(String::new(), None)).await?;
        let sent = stream::unfold(sent, async |mut sent: mpsc::Receiver<DiscoveryRequest>| {
            Some((sent.recv().await?, sent))
        });
        let mut request = Request::new(sent);
        *request.metadata_mut() = self.settings.headers.metadata();
        // Servers in Go send no headers before the first response.
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        let mut pace = interval(REFUSAL_INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The answer to the last response, if it is a refusal: older nonces are stale.
        let mut refusal = None;
        // The last response, if it was refused and may be valid after a reload.
        let mut again = None;
        loop {
            let response = tokio::select! {
                response = responses.message() => response.map(|response| response.map(Arc::new)),
                _ = pace.tick(), if refusal.is_some() => {
                    if let Some(refusal) = refusal.take() {
                        requests.send(refusal).await?;
                    }
                    continue;
                }
                Ok(()) = self.reloads.changed(), if again.is_some() => {
                    self.refused = None;
                    Ok(again.take())
                }
            };
            // A response that is too long has no nonce, so it can't be answered.
            if response.as_ref().is_err_and(|error| error.code() == Code::OutOfRange) {
                self.count("refused");
            }
            let Some(response) = response? else { return Ok(()) };
            let hash = self.hasher.hash_one((&response.type_url, &response.resources));
            if self.refused.as_ref().is_none_or(|(refused, _)| *refused != hash) {
                self.take(&response, hash).await?;
            } else if refusal.is_none() {
                pace.reset();
            }
            if let Some((_, RefusedResponse { problems, may_become_valid })) = self.refused.clone()
            {
                self.count("refused");
                again = may_become_valid.then(|| Arc::clone(&response));
                refusal = Some(self.request(response.nonce.clone(), Some(problems)));
            } else {
                self.count("accepted");
                (refusal, again) = (None, None);
                let mut request = self.request(response.nonce.clone(), None);
                request.version_info.clone_from(&response.version_info);
                requests.send(request).await?;
            }
        }
    }

    fn count(&self, event: &'static str) {
        self.metrics.xds_responses.get_or_create(&EventLabels { event }).inc();
    }

    /// Puts rules into force, and keeps them; or remembers why they are refused.
    ///
    /// # Errors
    ///
    /// The local configuration is not valid. The rules may be valid once it is: the next stream begins with
    /// them.
    async fn take(&mut self, response: &Arc<DiscoveryResponse>, hash: u64) -> anyhow::Result<()> {
        let version = cut(&response.version_info, MAX_VERSION);
        self.reloads.mark_unchanged();
        if let Some(RefusedResponse { problems, may_become_valid }) = self.apply(response).await? {
            let problems = cut(&problems, MAX_REASON);
            warn!(
                version,
                %problems,
                "rules of the management server are refused: the last ones stay in force"
            );
            self.refused = Some((hash, RefusedResponse { problems, may_become_valid }));
            return Ok(());
        }
        (self.refused, self.pause) = (None, MIN_PAUSE);
        let domains = response.resources.len();
        info!(version, domains, "rules of the management server are in force");
        self.version.clone_from(&version);
        if let Some(path) = self.kept.clone() {
            let mut response = DiscoveryResponse::clone(response);
            (response.version_info, response.nonce) = (version, String::new());
            let _logged = spawn_blocking(move || {
                if let Err(error) = keep(&path, &response.encode_to_vec()) {
                    error!(path = %path.display(), %error, "rules of the management server are not kept");
                }
            })
            .await;
        }
        Ok(())
    }

    /// Offers the resources of a response, and waits until they are in force. Returns their problems.
    async fn apply(
        &mut self,
        response: &Arc<DiscoveryResponse>,
    ) -> anyhow::Result<Option<RefusedResponse>> {
        let (response, before) = (Arc::clone(response), Arc::clone(&self.resources));
        let most = self.settings.max_descriptors;
        // It may take long, so not on the main thread.
        let read = spawn_blocking(move || EnvoyResource::read_all(&response, &before, most));
        self.resources = match read.await? {
            Ok(resources) => resources,
            // No reload makes a foreign or large response valid.
            Err(problems) => {
                return Ok(Some(RefusedResponse { problems, may_become_valid: false }));
            }
        };
        let (reply, replied) = oneshot::channel();
        self.updates.send(RulesUpdate { resources: Arc::clone(&self.resources), reply }).await?;
        let Err(Problems(mut problems)) = replied.await? else { return Ok(None) };
        problems.retain(|problem| problem.origin.starts_with(EnvoyResource::ORIGIN));
        if problems.is_empty() {
            self.count("refused");
            bail!("the local configuration is not valid");
        }
        let problems = Problems(problems).to_string();
        Ok(Some(RefusedResponse { problems, may_become_valid: true }))
    }

    /// Returns a request: the first one of a stream, or one that takes or refuses a response.
    fn request(&self, nonce: String, problems: Option<String>) -> DiscoveryRequest {
        let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
        let metadata = &self.settings.node_metadata;
        let fields: BTreeMap<_, _> =
            metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let error_detail = problems.map(|message| {
            let code = Code::InvalidArgument.into();
            Status { code, message, details: Vec::new() }
        });
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(Node {
                id: self.settings.node.clone(),
                metadata: Some(Struct { fields }),
                user_agent_name: "rlaas".to_owned(),
                user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            type_url: EnvoyResource::TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail,
            ..DiscoveryRequest::default()
        }
    }

    async fn connect(&self) -> anyhow::Result<Channel> {
        let XdsSettings { address, tls, .. } = &self.settings;
        let endpoint = Channel::from_shared(address.to_string().into_bytes())?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(Some(TCP_KEEPALIVE))
            .tcp_keepalive_interval(Some(TCP_KEEPALIVE_INTERVAL))
            .tcp_keepalive_retries(Some(TCP_KEEPALIVE_RETRIES))
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        if !address.is_https() {
            return Ok(endpoint.connect().await?);
        }
        let read = |path: &PathBuf| fs::read(path).with_context(|| path.display().to_string());
        let mut config = ClientTlsConfig::new();
        config = match &tls.ca {
            Some(ca) => config.ca_certificate(Certificate::from_pem(read(ca)?)),
            None => config.with_native_roots(),
        };
        if let Some((cert, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        if let Some(name) = &tls.server_name {
            config = config.domain_name(name);
        }
        Ok(endpoint.tls_config(config)?.connect().await?)
    }
}

/// Returns the beginning of a text, of at most this many bytes.
pub(super) fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

/// Writes a file whole: under another name first.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let new = path.with_extension("new");
    if let Err(error) = fs::remove_file(&new)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    fs::File::open(folder)?.sync_all()
}
