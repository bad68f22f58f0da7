//! Rate limit headers, as `http.headers` selects them.

use super::client::{get, post};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::Rlaas;

#[tokio::test]
async fn headers_setting_selects_the_headers() {
    let draft = ["ratelimit-policy", "ratelimit"];
    let legacy = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    let both = [&draft[..], &legacy].concat();
    for (setting, expected) in [
        (&[][..], &draft[..]),
        (&["http.headers=draft"], &draft),
        (&["http.headers=legacy"], &legacy),
        (&["http.headers=both"], &both),
        (&["http.headers=none"], &[]),
    ] {
        let server = Rlaas::start(&[setting, &["rate-limiter.max-requests=1"]].concat());
        assert_eq!(get(&server, "/check?userId=a").await.limit_headers(), expected);
        let denied = [expected, &["retry-after"]].concat();
        for answer in [
            get(&server, "/check?userId=a").await,
            post(&server, "/check", r#"{"endpoint":"","key":"a"}"#).await,
            post(&server, "/v1/check", r#"{"userId":"a"}"#).await,
        ] {
            assert_eq!((answer.status, answer.limit_headers()), (429, denied.clone()));
        }
        // An invalid request gets no decision, and so no headers.
        assert!(post(&server, "/v1/check", "{}").await.limit_headers().is_empty());
    }
}

#[tokio::test]
async fn verdicts_of_reservations_and_reports_have_the_headers_of_checks() {
    let dir = TempDir::new();
    let rules = "rules:\n  - {name: tokens, endpoint: /llm, algorithm: token-bucket, limit: 100, \
                 window: 1h, reservable: true, post-paid: true}\n";
    let file = dir.write("rules.yaml", rules);
    let request = |cost: u32| format!(r#"{{"userId":"a","resource":"/llm","cost":{cost}}}"#);
    let of = |cost: u32| format!(r#"{{"request":{}}}"#, request(cost));
    for (setting, names) in [
        ("draft", &["ratelimit-policy", "ratelimit"][..]),
        ("none", &[]),
        ("legacy", &["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]),
    ] {
        let setting = format!("http.headers={setting}");
        let server = Rlaas::start_from(&file, &[&setting]);
        let denied = [names, &["retry-after"]].concat();
        let held = post(&server, "/v1/reserve", &of(60)).await;
        assert_eq!((held.status, held.limit_headers()), (200, names.to_vec()));
        let id = held.json()["reservationId"].as_str().expect("an id").to_owned();
        for (path, body) in [
            ("/v1/reserve", of(60)),
            ("/v1/extend", format!(r#"{{"reservationId":"{id}","cost":90}}"#)),
            ("/v1/check", request(60)),
        ] {
            let answer = post(&server, path, &body).await;
            assert_eq!((answer.status, answer.limit_headers()), (429, denied.clone()), "{path}");
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
            let verdict = &answer.json();
            let verdict = if path == "/v1/check" { verdict } else { &verdict["verdict"] };
            let wait = verdict["retryAfter"].as_str().expect("a wait").trim_end_matches('s');
            let wait = wait.parse::<f64>().expect("seconds").ceil().to_string();
            assert_eq!(answer.header("retry-after"), Some(&*wait), "{path}");
        }
        let extended = format!(r#"{{"reservationId":"{id}","cost":5}}"#);
        let extended = post(&server, "/v1/extend", &extended).await;
        assert_eq!((extended.status, extended.limit_headers()), (200, names.to_vec()));
        let reported = post(&server, "/v1/report", &of(10)).await;
        assert_eq!((reported.status, reported.limit_headers()), (200, names.to_vec()));
        // The debt is paid back before another unit.
        let reported = post(&server, "/v1/report", &of(100)).await;
        assert_eq!((reported.status, reported.limit_headers()), (200, denied));
        // No verdict, no headers.
        let invalid = post(&server, "/v1/reserve", r#"{"request":{}}"#).await;
        assert_eq!((invalid.status, invalid.limit_headers()), (400, vec![]));
        let settled = post(&server, "/v1/cancel", &format!(r#"{{"reservationId":"{id}"}}"#)).await;
        assert_eq!((settled.status, settled.limit_headers()), (200, vec![]));
    }
}
