//! `auth.api-keys-max-age`: how long an instance accepts API keys that it can't ask the store about.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rlaas::clock::{Clock, Micros, Timestamp};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::UnmatchedPolicy;
use rlaas_testkit::process::{Rlaas, request, rlaas};
use rlaas_testkit::redis::{RedisServer, clock_shim};
use rlaas_testkit::{TempDir, eventually};
use tonic::{Code, Request};

use super::client::client;

const SOON: Duration = Duration::from_mins(1);
const HOUR: Micros = Micros::from_secs(3_600);

/// A server with a `state-dir`, whose machine has a clock that the test sets, and the key of a project
/// whose requests all pass.
struct CutOff {
    redis: RedisServer,
    dir: TempDir,
    clock: File,
    server: Option<Rlaas>,
    secret: String,
}

impl CutOff {
    async fn start() -> Self {
        let dir = TempDir::new();
        let kept = dir.path("redis");
        std::fs::create_dir(&kept).expect("a folder");
        let kept = kept.display().to_string();
        let durable = ["--dir", &kept, "--appendonly", "yes", "--appendfsync", "always"];
        let redis = RedisServer::start_with(&durable);
        let clock = File::options().write(true).open(dir.write("clock", "")).expect("a file");
        let mut cut_off = Self { redis, dir, clock, server: None, secret: String::new() };
        cut_off.set_clock(Timestamp::EPOCH);
        cut_off.restart();
        let mut admin = client(cut_off.server(), "").await;
        let unmatched = UnmatchedPolicy::Allow.into();
        let project = proto::Project { id: "shop".to_owned(), unmatched, ..Default::default() };
        let create = proto::CreateProjectRequest { project: Some(project), ..Default::default() };
        admin.create_project(create).await.expect("a project");
        let create =
            proto::CreateKeyRequest { project_id: "shop".to_owned(), ..Default::default() };
        cut_off.secret = admin.create_key(create).await.expect("a key").into_inner().secret;
        cut_off
    }

    /// Sets the clock of the machine; the epoch is its real time.
    fn set_clock(&self, now: Timestamp) {
        self.clock.write_all_at(&now.as_micros().to_le_bytes(), 0).expect("the clock file");
    }

    /// Kills the server, and starts it again.
    fn restart(&mut self) {
        drop(self.server.take());
        let mut command = rlaas(&["serve"]);
        command.env("LD_PRELOAD", clock_shim()).env("TEST_CLOCK_FILE", self.dir.path("clock"));
        let url = format!("store.redis.url={}", self.redis.url());
        let state_dir = format!("state-dir={}", self.dir.path("state").display());
        let settings = [
            "store.backend=redis",
            &url,
            &state_dir,
            "store.redis.timeout=1s",
            "auth.api-keys=accepted",
            "auth.api-keys-max-age=15s",
        ];
        self.server = Some(Rlaas::start_with(command, &settings));
    }

    fn server(&self) -> &Rlaas {
        self.server.as_ref().expect("a running server")
    }

    async fn code(&self) -> Code {
        let mut request = Request::new(request("alice"));
        request.metadata_mut().insert("x-api-key", self.secret.parse().expect("a header"));
        let answer = self.server().client().await.check(request).await;
        answer.err().map_or(Code::Ok, |status| status.code())
    }
}

#[tokio::test]
async fn restarts_of_a_cut_off_instance_do_not_renew_its_api_keys() {
    let mut of = CutOff::start().await;
    assert_eq!(of.code().await, Code::Ok);
    of.redis.kill();
    of.restart();
    assert_eq!(of.code().await, Code::Ok, "the keys are known, and young");
    // Each process lives for a moment, much shorter than the bound.
    let mut restarts = 0;
    eventually("the keys are too old", SOON, async || {
        of.restart();
        restarts += 1;
        of.code().await == Code::Unavailable
    })
    .await;
    assert!(restarts > 1, "{restarts}");
    of.restart();
    assert_eq!(of.code().await, Code::Unavailable);
    // Nobody knows then how long ago Redis was there.
    of.set_clock(Clock::default().now() - HOUR);
    of.restart();
    assert_eq!(of.code().await, Code::Unavailable);
    of.set_clock(Timestamp::EPOCH);
    of.redis.restart();
    eventually("confirmed again", SOON, async || of.code().await == Code::Ok).await;
}

#[tokio::test]
async fn cut_off_instance_refuses_its_api_keys_after_their_age_though_its_clock_stepped_back() {
    let mut of = CutOff::start().await;
    of.redis.kill();
    assert_eq!(of.code().await, Code::Ok);
    of.set_clock(Clock::default().now() - HOUR);
    eventually("the keys are too old", SOON, async || of.code().await == Code::Unavailable).await;
}
