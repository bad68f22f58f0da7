//! Candidates of a rules file: their metric, and what `GetConfig` says of them.

use rlaas_proto::ratelimit::v1::{Algorithm, Candidate, CheckRequest, GetConfigRequest};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::RedisServer;

const RULES: &str = "rules:
  - name: pay
    algorithm: gcra
    limit: 2
    window: 1h
    burst: 2
    candidates:
      - {limit: 1, burst: 1}
      - {limit: 4, window: 2h, algorithm: sliding-window-log}
  - {name: other, match: {user_id: bob}, limit: 1, window: 1h}
";

/// Returns how many requests a candidate has allowed, denied, and allowed while another rule denied;
/// `None` for series that do not exist.
async fn outcomes(server: &Rlaas, candidate: usize) -> [Option<f64>; 3] {
    let mut counted = [None; 3];
    for (outcome, counted) in ["allowed", "denied", "other_rule"].iter().zip(&mut counted) {
        let labels = format!("rule=\"pay\",candidate=\"{candidate}\",outcome=\"{outcome}\"");
        *counted = server.metric(&format!("rlaas_candidate_decisions_total{{{labels}}}")).await;
    }
    counted
}

async fn allowed(server: &Rlaas, user: &str, requests: usize) -> usize {
    let mut client = server.client().await;
    let mut allowed = 0;
    for _ in 0..requests {
        let request = CheckRequest { user_id: user.to_owned(), ..CheckRequest::default() };
        let answer = client.check(request).await.expect("an answer").into_inner();
        allowed += usize::from(answer.allowed);
    }
    allowed
}

async fn counts_and_shows_candidates(server: &Rlaas) {
    for candidate in [0, 1, 2] {
        assert_eq!(outcomes(server, candidate).await, [Some(0.0); 3], "before a request");
    }
    assert_eq!(outcomes(server, 3).await, [None; 3]);
    assert_eq!(allowed(server, "alice", 6).await, 2);
    assert_eq!(outcomes(server, 1).await, [1.0, 5.0, 0.0].map(Some));
    assert_eq!(outcomes(server, 2).await, [4.0, 2.0, 0.0].map(Some));
    assert_eq!(allowed(server, "bob", 3).await, 1);
    assert_eq!(outcomes(server, 1).await, [2.0, 7.0, 0.0].map(Some));
    assert_eq!(outcomes(server, 2).await, [5.0, 2.0, 2.0].map(Some));
    // The rule on the same requests: the other rule denies two that it would allow.
    assert_eq!(outcomes(server, 0).await, [3.0, 4.0, 2.0].map(Some));
    let config = server.client().await.get_config(GetConfigRequest::default()).await;
    let rules = config.expect("the rules").into_inner().rules;
    let pay = rules.iter().find(|rule| rule.name == "pay").expect("the rule");
    let hours = |hours: i64| Some(prost_types::Duration { seconds: hours * 3_600, nanos: 0 });
    let of = |max_requests, window: i64, burst, algorithm: Algorithm| Candidate {
        max_requests,
        window: hours(window),
        burst,
        algorithm: algorithm.into(),
    };
    assert_eq!(
        pay.candidates,
        [of(1, 1, 1, Algorithm::Gcra), of(4, 2, 0, Algorithm::SlidingWindowLog)]
    );
}

#[tokio::test]
async fn candidates_of_a_file_are_counted_and_shown() {
    let dir = TempDir::new();
    let file = dir.write("rlaas.yaml", RULES);
    counts_and_shows_candidates(&Rlaas::start_from(&file, &[])).await;
    let redis = RedisServer::start();
    let url = format!("store.redis.url={}", redis.url());
    let settings = ["store.backend=redis", &url, "store.redis.timeout=10s"];
    counts_and_shows_candidates(&Rlaas::start_from(&file, &settings)).await;
    let keys = redis.keys();
    let of_candidates = keys.iter().filter(|key| key.starts_with("rlaas:rule:pay%"));
    assert_eq!(of_candidates.count(), 4, "{keys:?}");
}
