//! Resources of a management server for a domain that the rules of a project decide.

use std::fs::write;

use rlaas_proto::ratelimit::config::ratelimit::v3::RateLimitUnit::Year;
use rlaas_testkit::TempDir;
use rlaas_testkit::eventually;
use rlaas_testkit::process::Rlaas;

use super::client::{check, client};
use super::xds::{ManagementServer, TIMEOUT, limit, rlaas};

const CLASH: &str = "resource \"shop/first\": domain: must not be a domain of envoy.projects";

#[tokio::test]
async fn resource_for_the_domain_of_a_project_is_refused_and_the_stream_goes_on() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let server = rlaas(&management.address, &["envoy.projects.shop=shop"]);
    let (stream, _) = management.stream().await;
    // With a valid one beside it.
    let both = vec![limit("web", 1, Year), limit("shop", 1, Year)];
    let refused = stream.offer("1", both).await.error_detail.expect("a reason").message;
    assert!(refused.starts_with(CLASH) && refused.lines().count() == 1, "{refused}");
    stream.accepts("2", vec![limit("web", 2, Year)]).await;
    let answer = check(&mut client(&server).await, "web: user=bob").await;
    assert!(answer.starts_with("OK [OK 2/YEAR"), "{answer}");
    assert_eq!(server.metric("rlaas_xds_connected").await, Some(1.0));
}

#[tokio::test]
async fn domain_that_becomes_one_of_a_project_is_refused_by_the_resource_alone() {
    let mut management = ManagementServer::start("127.0.0.1:0", None).await;
    let folder = TempDir::new();
    let file = folder.write("rlaas.yaml", "envoy: { deadline: 10s }\n");
    let address = format!("envoy.xds.address=http://{}", management.address);
    let server = Rlaas::start_from(&file, &[&address]);
    let (stream, _) = management.stream().await;
    stream.accepts("1", vec![limit("shop", 1, Year)]).await;
    write(&file, "envoy: { deadline: 10s, projects: { shop: a } }\n").expect("a file");
    let is_refused =
        async || server.metric("rlaas_config_last_reload_successful").await == Some(0.0);
    eventually("the file is refused", TIMEOUT, is_refused).await;
    eventually("the problem is logged", TIMEOUT, async || {
        server.log().contains("must not be a domain of envoy.projects")
    })
    .await;
    let refused = stream.offer("2", vec![limit("shop", 2, Year)]).await;
    assert!(refused.error_detail.is_some_and(|why| why.message.starts_with(CLASH)));
    stream.accepts("3", vec![limit("web", 2, Year)]).await;
}

#[tokio::test]
async fn domain_of_a_file_stays_a_problem_of_the_settings() {
    let folder = TempDir::new();
    folder.write("rules.yaml", "domain: shop\ndescriptors: []\n");
    let file =
        folder.write("rlaas.yaml", "envoy: { files: [rules.yaml], projects: { shop: a } }\n");
    let arguments = ["check-config", file.to_str().expect("a path")];
    let (code, _, problems) = rlaas_testkit::process::run(&arguments);
    let expected = "envoy.projects.shop: must not be a domain of envoy.files";
    assert!(code == 64 && problems.contains(expected), "{code}: {problems}");
}
