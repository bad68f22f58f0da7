//! `compose.yaml`: it fits the schema, and its parts run, one by one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use rlaas_proto::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use rlaas_testkit::process::{Rlaas, request, rlaas};
use rlaas_testkit::prometheus::{Prometheus, promtool};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::tools::{cache_dir, fetch, finish, skipped};
use rlaas_testkit::{TempDir, eventually};
use serde_json::Value;

use crate::http::client::exchange;

const VALIDATOR: &str = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2";
const TIMEOUT: Duration = Duration::from_secs(30);
const TOKEN: &str = "s3cret-of-the-owner";

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(project(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn document(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the services with their names.
fn services() -> Vec<(String, Value)> {
    let document = document("compose.yaml");
    let services = document["services"].as_object().expect("services");
    services.iter().map(|(name, service)| (name.clone(), service.clone())).collect()
}

fn service(name: &str) -> Value {
    let service = services().into_iter().find(|(of, _)| of == name);
    service.unwrap_or_else(|| panic!("no service {name}")).1
}

fn strings(value: &Value) -> Vec<&str> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|one| one.as_str().expect("a text")).collect()
}

/// Returns the source and the target of each volume of a service.
fn volumes(service: &Value) -> Vec<(&str, &str)> {
    let volumes = strings(&service["volumes"]).into_iter();
    volumes.map(|volume| volume.split_once(':').expect("source:target")).collect()
}

/// Returns the path in a container at which a file of the project is mounted.
fn mounted(service: &Value, file: &str) -> String {
    let volumes = volumes(service).into_iter();
    let found = volumes.filter(|(source, _)| source.strip_prefix("./") == Some(file));
    let targets: Vec<_> = found.map(|(_, target)| target.trim_end_matches(":ro")).collect();
    assert_eq!(targets.len(), 1, "{file}");
    targets[0].to_owned()
}

#[test]
fn file_fits_the_schema() {
    let folder = cache_dir("compose");
    let program = folder.join("cmd");
    if !program.exists() {
        let mut install = Command::new("go");
        install.args(["install", VALIDATOR]).env("GOBIN", &folder);
        install.envs([("GOFLAGS", "-modcacherw"), ("GOTOOLCHAIN", "local")]);
        install.env("GOMODCACHE", folder.join("go")).env("GOCACHE", folder.join("build"));
        if let Err(why) = fetch(&install) {
            return skipped("compose.yaml against its schema", &why);
        }
    }
    let validate = |file: &Path| {
        let mut command = Command::new(&program);
        finish(command.args(["-no-interpolation", "-format", "json"]).arg(file))
    };
    let model = validate(&project("compose.yaml")).expect("a valid file");
    let model: Value = serde_json::from_str(&model).expect("JSON");
    assert_eq!(model["services"].as_object().map(serde_json::Map::len), Some(4), "{model}");
    let dir = TempDir::new();
    let wrong = text("compose.yaml").replace("    healthcheck:", "    healthchecks:");
    let refused = validate(&dir.write("compose.yaml", &wrong));
    assert!(refused.is_err_and(|why| why.contains("healthchecks")), "a misspelled field");
}

#[test]
fn services_are_pinned_restricted_and_healthy_and_only_this_host_reaches_them() {
    let document = document("compose.yaml");
    for (name, service) in services() {
        let image = service["image"].as_str().expect("an image");
        let (_, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{image} has no tag"));
        assert!(tag.contains('.') && tag.contains(|char: char| char.is_ascii_digit()), "{image}");
        let user = service["user"].as_str().expect("a user");
        assert!(user.split(':').next().is_some_and(|id| id != "0" && id != "root"), "{name}");
        assert!(!service["healthcheck"]["test"].is_null(), "{name}");
        assert_eq!(service["<<"], Value::Null, "{name}: the reader merges");
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        for port in strings(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port}");
        }
        for (source, _) in volumes(&service) {
            match source.strip_prefix("./") {
                Some(file) => assert!(project(file).is_file(), "{name}: {file}"),
                None => assert!(!document["volumes"][source].is_null(), "{name}: {source}"),
            }
        }
    }
    assert!(service("redis")["ports"].is_null(), "Redis is not published");
    assert_eq!(document["networks"]["store"]["internal"], true);
}

#[test]
fn secrets_have_no_default() {
    let text = text("compose.yaml");
    let variables: Vec<&str> = text.split("${").skip(1).collect();
    assert_eq!(variables.len(), 2, "{variables:?}");
    for (variable, name) in variables.iter().zip(["RLAAS_TOKEN_SHA256", "GRAFANA_PASSWORD"]) {
        assert!(variable.starts_with(&format!("{name}:?")), "{variable}");
    }
    let guide = self::text("docs/operations.md");
    assert!(guide.contains("RLAAS_TOKEN_SHA256=") && guide.contains("GRAFANA_PASSWORD="));
    assert!(self::text(".gitignore").lines().any(|line| line == "/.env"));
}

/// Starts rlaas with the files and the environment that it has in its container.
fn start_rlaas(redis: &RedisServer) -> Rlaas {
    let service = service("rlaas");
    assert_eq!(mounted(&service, "config/compose/rlaas.yaml"), "/etc/rlaas/rlaas.yaml");
    let command = "CMD [\"serve\", \"--config\", \"/etc/rlaas/container.yaml\", \"--config\", \
                   \"/etc/rlaas/rlaas.yaml\"]";
    assert!(text("Dockerfile").contains(command), "the image reads the mounted file");
    let hash = digest(&SHA256, TOKEN.as_bytes());
    let hash = hash.as_ref().iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let mut command = rlaas(&["serve", "--config", "config/container.yaml"]);
    command.args(["--config", "config/compose/rlaas.yaml"]);
    for (name, value) in service["environment"].as_object().expect("variables") {
        let value = value.as_str().expect("a text");
        let (before, rest) = value.split_once("${RLAAS_TOKEN_SHA256:?").expect("the hash");
        let (_, after) = rest.split_once('}').expect("its end");
        command.env(name, format!("{before}{hash}{after}"));
    }
    let (own, console) = (format!("store.redis.url={}", redis.url()), "server.console=127.0.0.1:0");
    Rlaas::start_with(command, &[&own, console, "server.metrics=127.0.0.1:0"])
}

#[tokio::test]
async fn rlaas_has_a_console_for_the_token_and_decides_on_redis() {
    let redis = RedisServer::start();
    let server = start_rlaas(&redis);
    let log = server.log();
    let console = log.split("console=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let console = console.unwrap_or_else(|| panic!("no console: {log}"));
    let sign_in = async |token: &str| {
        let form = format!("by=token&token={token}");
        let request = format!(
            "POST /console/sign-in HTTP/1.1\r\nHost: {console}\r\nOrigin: http://{console}\r\n\
             Connection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {}\r\n\r\n{form}",
            form.len()
        );
        exchange(console, request.as_bytes()).await
    };
    assert_eq!(sign_in("guessed").await.status, 401);
    let signed_in = sign_in(TOKEN).await;
    assert!(signed_in.status == 303 && signed_in.header("set-cookie").is_some(), "{signed_in:?}");

    let channel = server.channel().await;
    let mut client = RateLimitServiceClient::new(channel);
    let refused = client.check(request("alice")).await.expect_err("a token is required");
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    let mut with_token = tonic::Request::new(request("alice"));
    let bearer = format!("Bearer {TOKEN}").parse().expect("a header");
    with_token.metadata_mut().insert("authorization", bearer);
    assert!(client.check(with_token).await.expect("a decision").into_inner().allowed);
    assert!(log.contains("store=\"redis\""), "{log}");

    // The health check of its container, with the address that it has here.
    let service = service("rlaas");
    let test = strings(&service["healthcheck"]["test"]);
    assert_eq!(test[..2], ["CMD", "rlaas"]);
    let health = rlaas(&test[2..]).args(["--addr", server.grpc()]).output();
    assert!(health.expect("the program").status.success());
}

#[tokio::test]
async fn prometheus_scrapes_rlaas_and_has_the_alerts() {
    let service = service("prometheus");
    let config = mounted(&service, "config/compose/prometheus.yaml");
    assert!(strings(&service["command"]).contains(&&*format!("--config.file={config}")));
    // Names of files are relative to that of the configuration.
    let alerts = mounted(&service, "config/prometheus/alerts.yaml");
    assert_eq!(Path::new(&alerts).parent(), Path::new(&config).parent());
    let dir = TempDir::new();
    let file = dir.write("prometheus.yaml", &text("config/compose/prometheus.yaml"));
    dir.write("alerts.yaml", &text("config/prometheus/alerts.yaml"));
    promtool(&["check", "config", &file.display().to_string()], std::process::Stdio::null());

    let server = Rlaas::start(&["server.metrics=127.0.0.1:0"]);
    let file = project("config/compose/prometheus.yaml");
    let address = server.metrics_address();
    let prometheus = Prometheus::start_from(&file, "rlaas:9090", &address);
    let is_scraped = async || {
        let up = prometheus.query("up{job=\"rlaas\"} and on(instance) rlaas_build_info").await;
        up.is_ok_and(|values| values == [1.0])
    };
    eventually("rlaas is scraped", TIMEOUT, is_scraped).await;
    let rules = prometheus.get("/api/v1/rules").await;
    assert!(!rules["data"]["groups"].as_array().expect("groups").is_empty(), "{rules}");
}

#[test]
fn grafana_has_the_datasource_and_the_dashboard() {
    let service = service("grafana");
    let at = |file: &str| mounted(&service, file);
    let sources = document("config/compose/grafana/datasources.yaml");
    let [source] = &sources["datasources"].as_array().expect("a list")[..] else {
        panic!("{sources}")
    };
    assert_eq!((&sources["apiVersion"], &source["type"]), (&1.into(), &"prometheus".into()));
    assert_eq!(
        (&source["url"], &source["isDefault"]),
        (&"http://prometheus:9090".into(), &true.into())
    );
    let scraping = document("config/compose/prometheus.yaml");
    assert_eq!(source["jsonData"]["timeInterval"], scraping["global"]["scrape_interval"]);
    assert!(
        at("config/compose/grafana/datasources.yaml")
            .starts_with("/etc/grafana/provisioning/datasources/")
    );

    let dashboards = document("config/compose/grafana/dashboards.yaml");
    assert!(
        at("config/compose/grafana/dashboards.yaml")
            .starts_with("/etc/grafana/provisioning/dashboards/")
    );
    let [provider] = &dashboards["providers"].as_array().expect("a list")[..] else {
        panic!("{dashboards}")
    };
    let folder = provider["options"]["path"].as_str().expect("a folder").to_owned();
    assert_eq!(at("config/grafana/rlaas.json"), format!("{folder}/rlaas.json"));
    assert_eq!((&provider["type"], &provider["name"]), (&"file".into(), &"rlaas".into()));
}
