//! Case files: each file in `cases/` has rules and cases. Cases run over a socket on both stores,
//! with a clock that only the case moves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::notation;
use rlaas::api::{ApiSettings, Decisions};
use rlaas::config::{Config, Sources};
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use rlaas_testkit::TempDir;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::Service;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};

/// A file in `cases/`.
struct CaseFile {
    file: PathBuf,
    settings: String,
    rules: String,
    cases: Vec<EnvoyCase>,
}

struct EnvoyCase {
    name: String,
    /// Each step is `at SECONDS`, or a request, ` => ` and its response.
    steps: Vec<String>,
}

#[tokio::test]
async fn cases_pass_in_memory() {
    let (mut cases, mut wrong) = (0, Vec::new());
    for case_file in case_files() {
        let config = case_file.config();
        for case in &case_file.cases {
            let service = Service::on_memory(config.rules.clone());
            wrong.extend(run_case(&case_file, case, &config, &service).await);
            cases += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases >= 60, "only {cases} cases");
}

#[tokio::test]
async fn cases_pass_on_redis() {
    let server = Arc::new(RedisServer::start());
    let (mut cases, mut wrong) = (0, Vec::new());
    for case_file in case_files() {
        let config = case_file.config();
        for case in &case_file.cases {
            server.query::<()>(&["FLUSHALL"]);
            let service = Service::on_redis(config.rules.clone(), Arc::clone(&server));
            wrong.extend(run_case(&case_file, case, &config, &service).await);
            cases += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases >= 60, "only {cases} cases");
}

/// Runs a case, and returns the first response that is not as expected.
async fn run_case(
    case_file: &CaseFile,
    case: &EnvoyCase,
    config: &Config,
    on: &Service,
) -> Option<String> {
    let mut client = serve(config, on).await;
    for step in &case.steps {
        if let Some(seconds) = step.strip_prefix("at ") {
            on.at(seconds.parse().expect("seconds"));
            continue;
        }
        let (request, expected) = step.split_once("=>").expect("a request and its answer");
        let answer = client.should_rate_limit(notation::request(request.trim())).await;
        let answer = notation::answer(&answer.map(tonic::Response::into_inner));
        let expected = expected.trim();
        if answer != expected {
            let place = format!("{}: {}: {request}", case_file.file.display(), case.name);
            return Some(format!("{place}\n  is        {answer}\n  should be {expected}"));
        }
    }
    None
}

/// Serves the API for this service on a socket, as the program does.
async fn serve(config: &Config, on: &Service) -> RateLimitServiceClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let api_settings = ApiSettings { envoy: config.envoy.clone(), ..ApiSettings::default() };
    let decisions = Decisions::new(&on.limiter, &on.metrics, &api_settings);
    let routes = rlaas::api::services(decisions, None, &on.limiter);
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    RateLimitServiceClient::new(channel.connect().await.expect("a running server"))
}

fn case_files() -> Vec<CaseFile> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/envoy/cases");
    let files = std::fs::read_dir(dir).expect("cases").map(|file| file.expect("a file").path());
    let mut case_files: Vec<CaseFile> = files.map(CaseFile::read).collect();
    case_files.sort_by(|one, other| one.file.cmp(&other.file));
    case_files
}

impl CaseFile {
    /// Parses a file. `=== settings`, `=== rules` and `=== case NAME` begin its parts; `#` begins a
    /// comment.
    fn read(file: PathBuf) -> Self {
        let text = std::fs::read_to_string(&file).expect("a file");
        let (mut settings, mut rules) = (String::new(), String::new());
        let mut cases: Vec<EnvoyCase> = Vec::new();
        for part in text.split("\n=== ").skip(1) {
            let (title, body) = part.split_once('\n').unwrap_or((part, ""));
            match title.split_once(' ') {
                None if title == "settings" => body.clone_into(&mut settings),
                None if title == "rules" => body.clone_into(&mut rules),
                Some(("case", name)) => cases.push(EnvoyCase::new(name, body)),
                _ => panic!("{}: {title}", file.display()),
            }
        }
        Self { file, settings, rules, cases }
    }

    fn config(&self) -> Config {
        let dir = TempDir::new();
        let rules = dir.write("rules.yaml", &self.rules);
        // A long deadline, because the cases are not about response times.
        let mut settings = format!("envoy:\n  files: [{}]\n  deadline: 10s\n", rules.display());
        for line in self.settings.lines() {
            settings.extend(["  ", line, "\n"]);
        }
        let files = vec![dir.write("rlaas.yaml", &settings)];
        let config = Config::load(&Sources { files, ..Sources::default() });
        config.unwrap_or_else(|problems| panic!("{}: {problems}", self.file.display()))
    }
}

impl EnvoyCase {
    fn new(name: &str, body: &str) -> Self {
        let lines = body.lines().map(str::trim);
        let steps = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { name: name.to_owned(), steps: steps.map(str::to_owned).collect() }
    }
}
