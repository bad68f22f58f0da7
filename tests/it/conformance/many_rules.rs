//! Many rules on one request, and the Redis key of a default rule with two parts.

use super::{conforms, on_redis};
use rlaas_limiter::conformance;

super::on_both! { many_rules }

#[tokio::test]
async fn default_rule_uses_the_documented_key() {
    let case = conformance::case("many_rules", "the_default_rule_by_resource_and_user");
    let on = on_redis(case.rules("mixed"));
    conforms("many_rules", case.name(), &on).await;
    let redis = on.redis().expect("a service on Redis");
    assert_eq!(redis.keys()[0], "rlaas:rate_limit:r1:alice:28333335");
}
