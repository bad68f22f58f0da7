//! The fixed window, and its keys in Redis.

use super::{cases, conforms, per};
use rlaas::clock::Micros;
use rlaas_testkit::service::Service;

super::on_both! { fixed_window }

cases! {
    fixed_window, redis;
    fixed_window_uses_the_documented_key: per(5, Micros::from_secs(60));
}

async fn fixed_window_uses_the_documented_key(on: Service) {
    let case = "a_full_window_denies_and_goes_on_counting";
    conforms("fixed_window", case, &on).await;
    let redis = on.redis().expect("a service on Redis");
    assert_eq!(redis.keys(), ["rlaas:rate_limit:alice:28333335"]);
    assert_eq!(redis.query::<String>(&["TYPE", "rlaas:rate_limit:alice:28333335"]), "string");
    assert_eq!(redis.query::<u64>(&["GET", "rlaas:rate_limit:alice:28333335"]), 8);
    assert_eq!(redis.query::<u64>(&["PTTL", "rlaas:rate_limit:alice:28333335"]), 60_000);
}
