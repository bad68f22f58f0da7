//! Containers, started with the arguments of their manifests.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::manifests::{Kustomization, document, text};
use super::project;
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Rlaas, check, finish, rlaas};
use rlaas_testkit::redis::RedisServer;

const SERVING: i32 = 1;
const PROBES: [&str; 3] = ["startupProbe", "readinessProbe", "livenessProbe"];

/// A container of rlaas in a manifest.
#[derive(Debug)]
struct Container {
    /// The folder of its configuration.
    folder: PathBuf,
    pod: Value,
    spec: Value,
}

impl Container {
    fn all() -> Vec<Self> {
        let mut found = Vec::new();
        for kustomization in Kustomization::all() {
            for (_, manifest) in kustomization.manifests() {
                let pod = &manifest["spec"]["template"]["spec"];
                for kind in ["containers", "initContainers"] {
                    let containers = pod[kind].as_array().into_iter().flatten();
                    let ours = containers.filter(|one| one["args"][0] == "serve");
                    found.extend(ours.map(|container| Self {
                        folder: kustomization.folder.clone(),
                        pod: pod.clone(),
                        spec: container.clone(),
                    }));
                }
            }
        }
        found
    }

    /// Returns its arguments, with mounted files replaced by files of the project.
    fn arguments(&self) -> Vec<String> {
        let arguments = self.spec["args"].as_array().expect("arguments");
        let arguments = arguments.iter().map(|argument| text(argument).expect("a text"));
        let on_disk = |argument: String| match argument.strip_prefix("--config=") {
            Some(mounted) => {
                let name = mounted.rsplit('/').next().expect("a name");
                format!("--config={}", self.folder.join(name).display())
            }
            None => argument,
        };
        arguments.map(on_disk).collect()
    }

    /// Returns its effective configuration.
    fn effective(&self) -> Value {
        let files = self.arguments().split_off(1);
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let output = rlaas(&[&["config"], &files[..]].concat()).output().expect("the program");
        let (code, out, error) = finish(output);
        assert_eq!(code, 0, "{error}");
        serde_saphyr::from_str(&out).expect("YAML")
    }

    /// Returns the number of a port that is given by number or name.
    fn port(&self, port: &Value) -> u64 {
        let ports = self.spec["ports"].as_array().expect("ports");
        let named = ports.iter().find(|one| one["name"] == *port);
        named.map_or(port, |one| &one["containerPort"]).as_u64().expect("a port")
    }

    /// Starts it with the URL of a redis-server in the variable that the manifest sets.
    fn start(&self, redis: &RedisServer) -> Rlaas {
        let arguments = self.arguments();
        let mut command = rlaas(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let variables = self.spec["env"].as_array().expect("variables");
        let is_url = |variable: &&Value| variable["valueFrom"]["secretKeyRef"]["key"] == "url";
        let url = variables.iter().find(is_url).expect("the URL of Redis");
        command.env(text(&url["name"]).expect("a name"), redis.url());
        Rlaas::start_with(command, &["store.redis.timeout=10s", "server.metrics=127.0.0.1:0"])
    }
}

/// A probe that the kubelet sends from outside of the pod.
#[derive(Debug)]
enum Probe {
    Grpc { port: u64, service: String },
    Http { port: u64, path: String },
}

impl Probe {
    fn all(container: &Container) -> Vec<Self> {
        let probes = PROBES.iter().map(|kind| &container.spec[kind]);
        let probe = |probe: &Value| match (&probe["grpc"], &probe["httpGet"]) {
            (Value::Null, http) => Self::Http {
                port: container.port(&http["port"]),
                path: text(&http["path"]).expect("a path"),
            },
            (grpc, _) => Self::Grpc {
                port: container.port(&grpc["port"]),
                service: text(&grpc["service"]).expect("a name"),
            },
        };
        probes.filter(|one| !one.is_null()).map(probe).collect()
    }

    /// Returns the setting for the probed address, and the address.
    fn address(&self) -> (&'static str, String) {
        match self {
            Self::Grpc { port, .. } => ("listen", format!("0.0.0.0:{port}")),
            Self::Http { port, .. } => ("http", format!("0.0.0.0:{port}")),
        }
    }

    async fn passes(&self, server: &Rlaas) -> bool {
        match self {
            Self::Http { path, .. } => server.get(path).await.0 == 200,
            Self::Grpc { service, .. } => {
                let request = HealthCheckRequest { service: service.clone() };
                let answer = HealthClient::new(server.channel().await).check(request).await;
                answer.expect("a service that is known").into_inner().status == SERVING
            }
        }
    }
}

#[tokio::test]
async fn containers_answer_their_own_probes() {
    let redis = RedisServer::start();
    let containers = Container::all();
    assert_eq!(containers.len(), 2, "the shared deployment and the sidecar");
    for container in containers {
        let server = container.start(&redis);
        let server_settings = &container.effective()["server"];
        let probes = Probe::all(&container);
        assert!(probes.len() >= 2, "{probes:?}");
        for probe in probes {
            let (setting, address) = probe.address();
            assert_eq!(server_settings[setting], address, "{probe:?}");
            let passes = async || probe.passes(&server).await;
            eventually(&format!("{probe:?}"), Duration::from_secs(20), passes).await;
        }
        let answer = check(&mut server.client().await, "alice").await.expect("an answer");
        assert!(answer.allowed);
    }
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice"], "the URL is taken from the variable");
}

#[test]
fn termination_grace_period_exceeds_the_drain() {
    for container in Container::all() {
        let drain = &container.effective()["server"]["drain"];
        let seconds = |key: &str| {
            let value = text(&drain[key]).expect("a duration");
            value.trim_end_matches('s').parse::<u64>().expect("whole seconds")
        };
        // 30 s is the default of Kubernetes.
        let grace = container.pod["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        assert!(seconds("delay") + seconds("timeout") < grace, "{drain} in {grace} s");
    }
}

#[test]
fn containers_have_no_privileges() {
    for container in Container::all() {
        let (pod, own) = (&container.pod["securityContext"], &container.spec);
        let own = &own["securityContext"];
        let either = |key: &str| if own[key].is_null() { &pod[key] } else { &own[key] };
        assert_eq!(own["allowPrivilegeEscalation"], false);
        assert_eq!(own["readOnlyRootFilesystem"], true);
        assert_eq!(own["capabilities"], json!({ "drop": ["ALL"] }));
        assert_eq!(*either("runAsNonRoot"), true);
        assert_eq!(*either("runAsUser"), 65532);
        assert_eq!(either("seccompProfile")["type"], "RuntimeDefault");
        assert!(container.spec["resources"]["limits"]["memory"].is_string());
    }
}

#[test]
fn selectors_and_ports_match_the_shared_deployment() {
    let shared = |name: &str| document(&project("config/kubernetes/shared").join(name));
    let deployment = shared("deployment.yaml");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let service = shared("service.yaml");
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], *labels);
    assert_eq!(service["spec"]["selector"], *labels);
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(shared("pdb.yaml")["spec"]["selector"]["matchLabels"], *labels);
    let policy = shared("networkpolicy.yaml");
    assert_eq!(policy["spec"]["podSelector"]["matchLabels"], *labels);
    let monitor = document(&project("config/kubernetes/monitoring/servicemonitor.yaml"));
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
    assert_eq!(monitor["spec"]["endpoints"][0]["path"], "/metrics");
    let scaled = &shared("hpa.yaml")["spec"]["scaleTargetRef"];
    assert_eq!(scaled["name"], deployment["metadata"]["name"]);

    let ports = |list: &Value, field: &str| -> Vec<Value> {
        list.as_array().expect("a list").iter().map(|one| one[field].clone()).collect()
    };
    let named = ports(&deployment["spec"]["template"]["spec"]["containers"][0]["ports"], "name");
    assert_eq!(named, ["grpc", "http", "metrics"]);
    assert_eq!(ports(&service["spec"]["ports"], "targetPort"), named);
    let admitted = policy["spec"]["ingress"].as_array().expect("a list").iter();
    let admitted: Vec<Value> = admitted.map(|one| one["ports"][0]["port"].clone()).collect();
    assert_eq!(admitted, ["grpc", "metrics"]);
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], "metrics");
}
