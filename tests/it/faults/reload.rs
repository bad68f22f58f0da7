//! Reloads of the configuration, under load and with problems.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rlaas_proto::ratelimit::v1::{CheckRequest, GetConfigRequest};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::task::JoinSet;

use rlaas_testkit::process::{Rlaas, check, request, rlaas, signal};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns two rules of a revision, and one that is the same in all revisions.
fn rules(revision: u64) -> String {
    format!(
        "rules:\n  - {{name: a-{revision}, limit: 1000000000, window: 366d, algorithm: gcra}}\n  \
         - {{name: b-{revision}, limit: 1000000000, window: 366d, algorithm: fixed}}\n  \
         - {{name: total, limit: 1000000000, window: 366d, algorithm: fixed, key-by: [resource]}}\n"
    )
}

async fn revision(server: &Rlaas) -> u64 {
    let response = server.client().await.get_config(GetConfigRequest::default()).await;
    response.expect("an answer").into_inner().revision
}

async fn reload_often(server: &Rlaas, dir: &TempDir, times: u64) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for user in 0..4 {
        let (mut client, stop) = (server.client().await, Arc::clone(&stop));
        clients.spawn(async move {
            let mut calls = 0;
            while !stop.load(Ordering::Relaxed) {
                let response = check(&mut client, &user.to_string()).await.expect("no failed call");
                assert!(response.allowed);
                let names: Vec<&str> =
                    response.decisions.iter().map(|decided| decided.rule.as_str()).collect();
                let [a, b, "total"] = names[..] else { panic!("{names:?}") };
                assert_eq!(a.strip_prefix("a-"), b.strip_prefix("b-"), "a mixed revision");
                calls += 1;
            }
            calls
        });
    }
    let metric = "rlaas_config_revision";
    for number in 1..=times {
        dir.write("rlaas.yaml", &rules(number));
        server.signal("HUP");
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let wanted = (number + 1) as f64;
        let taken = async || server.metric(metric).await.is_some_and(|seen| seen >= wanted);
        eventually("the configuration is reloaded", TIMEOUT, taken).await;
    }
    stop.store(true, Ordering::Relaxed);
    let calls: u64 = clients.join_all().await.into_iter().sum();
    let mut client = server.client().await;
    let last = client.check(request("x")).await.expect("an answer").into_inner();
    let total = last.decisions.iter().find(|decided| decided.rule == "total").expect("a rule");
    let counted = 1_000_000_000 - total.remaining;
    let calls = i64::try_from(calls).expect("a few calls") + 1;
    assert_eq!(counted, calls, "no lost count");
    assert_eq!(revision(server).await, times + 1);
}

#[tokio::test]
async fn reloads_in_memory_lose_no_count() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &rules(0));
    let server = Rlaas::start_from(&file, &[]);
    reload_often(&server, &dir, 1_000).await;
}

#[tokio::test]
async fn reloads_on_redis_lose_no_count() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &rules(0));
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    let server = Rlaas::start_from(&file, &settings);
    let look = || CheckRequest { cost: Some(0), ..request("x") };
    let answers = async || server.client().await.check(look()).await.is_ok();
    eventually("redis answers", TIMEOUT, answers).await;
    reload_often(&server, &dir, 200).await;
}

#[tokio::test]
async fn invalid_configuration_leaves_the_old_one_in_force() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", &rules(0));
    let server = Rlaas::start_from(&file, &[]);
    let successful = async |wanted: f64| {
        let seen =
            async || server.metric("rlaas_config_last_reload_successful").await == Some(wanted);
        eventually("the metric of the last reload", TIMEOUT, seen).await;
    };
    successful(1.0).await;
    dir.write("rlaas.yaml", "rules: [{name: a, limit: -1, window: 1s}]");
    // The file is watched: this reload needs no signal.
    successful(0.0).await;
    assert_eq!(revision(&server).await, 1);
    assert!(server.log().contains("rules[0].limit: must be"), "{}", server.log());
    let response = check(&mut server.client().await, "alice").await.expect("an answer");
    assert_eq!(response.decisions.len(), 3);

    let changed = format!(
        "{}server: {{listen: '127.0.0.1:1'}}\nstore: {{memory: {{max-keys: 5}}}}",
        rules(1)
    );
    dir.write("rlaas.yaml", &changed);
    successful(1.0).await;
    assert_eq!(revision(&server).await, 2);
    assert!(server.log().contains("key=\"store.memory.max-keys\""), "{}", server.log());
    assert!(!server.log().contains("key=\"server.listen\""), "the command line has precedence");
}

#[tokio::test]
async fn swapped_symlink_triggers_a_reload() {
    let dir = TempDir::new();
    for revision in [0, 1] {
        let folder = dir.path(&format!("data-{revision}"));
        std::fs::create_dir(&folder).expect("a directory");
        std::fs::write(folder.join("rlaas.yaml"), rules(revision)).expect("a file");
    }
    std::os::unix::fs::symlink("data-0", dir.path("data")).expect("a symlink");
    std::os::unix::fs::symlink("data/rlaas.yaml", dir.path("rlaas.yaml")).expect("a symlink");
    let server = Rlaas::start_from(&dir.path("rlaas.yaml"), &[]);
    assert_eq!(revision(&server).await, 1);
    std::os::unix::fs::symlink("data-1", dir.path("new")).expect("a symlink");
    std::fs::rename(dir.path("new"), dir.path("data")).expect("a swap");
    eventually("the configuration is reloaded", TIMEOUT, async || revision(&server).await == 2)
        .await;
}

#[tokio::test]
async fn sighup_before_the_server_listens_does_not_end_it() {
    let dir = TempDir::new();
    let file = dir.path("rlaas.yaml");
    // A pipe blocks the process while it reads its configuration.
    assert!(Command::new("mkfifo").arg(&file).status().expect("mkfifo").success());
    let mut command = rlaas(&["serve", "--config"]);
    command.arg(&file).args(["--set", "server.listen=127.0.0.1:0"]);
    command.args(["--set", "server.http=127.0.0.1:0"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = KilledOnDrop(command.spawn().expect("the program"));
    let mut pipe = None;
    let is_read = async || {
        // The pipe opens once the process has opened the other end.
        pipe = pipe::OpenOptions::new().open_sender(&file).ok();
        pipe.is_some()
    };
    eventually("the configuration is read", TIMEOUT, is_read).await;
    signal(process.0.id(), "HUP");
    dir.write("rlaas.yaml", &rules(1));
    let mut pipe = pipe.expect("a pipe");
    pipe.write_all(rules(0).as_bytes()).await.expect("a process that reads");
    drop(pipe);
    let mut log = BufReader::new(process.0.stderr.take().expect("a pipe")).lines();
    let mut logged =
        |text: &str| log.by_ref().map_while(Result::ok).any(|line| line.contains(text));
    assert!(logged(" serving "), "the process has ended: {:?}", process.0.wait());
    assert!(logged("configuration reloaded"), "the process has ended: {:?}", process.0.wait());
    signal(process.0.id(), "TERM");
    assert!(process.0.wait().expect("a child process").success());
}

/// Killed when it is dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _already_gone = self.0.wait();
    }
}
