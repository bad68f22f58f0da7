//! An API key found by its id in all projects of a caller: by `ListKeys`, and by command.

use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_testkit::process::run;
use tonic::Code;

use super::client::{client, http};
use super::keys::Shops;
use super::roles::{DESK, ROOT, TEAM};

fn request(project: &str, key: &str) -> proto::ListKeysRequest {
    let (project_id, key_id) = (project.to_owned(), key.to_owned());
    proto::ListKeysRequest { project_id, key_id, ..Default::default() }
}

#[tokio::test]
async fn key_is_found_by_its_id_where_the_caller_has_a_role() {
    let shops = Shops::start().await;
    let ids = shops.keys.each_ref().map(|secret| secret["rlaas_live_".len()..][..8].to_owned());
    for token in [ROOT, TEAM, DESK] {
        let mut projects = client(&shops.server, token).await;
        let mut found = async |project: &str, id: &str| {
            let page =
                projects.list_keys(request(project, id)).await.map(tonic::Response::into_inner);
            page.map(|page| {
                let keys = page.keys.into_iter();
                keys.map(|key| (key.project_id, key.id)).collect::<Vec<_>>()
            })
        };
        let [shop, blog] = &ids;
        let of_shop = vec![("shop".to_owned(), shop.clone())];
        let of_blog = vec![("blog".to_owned(), blog.clone())];
        assert_eq!(found("-", shop).await.expect("a page"), of_shop, "{token}");
        assert_eq!(found("shop", shop).await.expect("a page"), of_shop, "{token}");
        assert!(found("shop", blog).await.expect("a page").is_empty(), "{token}");
        let seen = if token == ROOT { of_blog } else { Vec::new() };
        assert_eq!(found("-", blog).await.expect("a page"), seen, "{token}");
        assert!(found("-", "nothing0").await.expect("a page").is_empty(), "{token}");
        let refused = found("-", "").await.expect_err("no key");
        assert_eq!(refused.code(), Code::InvalidArgument, "{token}");
        assert!(refused.message().starts_with("key_id must be"), "{}", refused.message());
    }
    let bearer = format!("Authorization: Bearer {TEAM}\r\n");
    let path = format!("/v1/projects/-/keys?keyId={}", ids[0]);
    let answer = http(&shops.server, "GET", &path, &bearer, "").await;
    assert_eq!((answer.status, answer.body["keys"][0]["projectId"].as_str()), (200, Some("shop")));
}

#[tokio::test]
async fn command_finds_a_key_by_its_secret_and_does_not_send_it() {
    let shops = Shops::start().await;
    let secret = &shops.keys[0];
    let id = &secret["rlaas_live_".len()..][..8];
    let addr = ["--addr", shops.server.grpc(), "--token", TEAM];
    for typed in [id, &secret[.."rlaas_live_".len() + 8], secret] {
        let (code, shown, error) = run(&[&["key", "find", typed], &addr[..]].concat());
        assert_eq!(code, 0, "{error}");
        let row = format!("\nshop     {id}  active  rlaas key revoke shop {id}\n");
        assert!(shown.ends_with(&row), "{shown}");
        assert!(!shown.contains(&secret["rlaas_live_".len()..][..9]), "{shown}");
    }
    let (code, shown, error) = run(&[&["key", "find", "nothing0"], &addr[..]].concat());
    assert_eq!(
        (code, &*shown),
        (0, "no key with this id in the projects of the caller\n"),
        "{error}"
    );
    for wrong in ["short", "rlaas_live_short", "rlaas_live", "nothing-"] {
        let (code, _, error) = run(&[&["key", "find", wrong], &addr[..]].concat());
        assert!(code == 2 && error.contains("must be an id of 8 characters"), "{wrong}: {error}");
    }
}
