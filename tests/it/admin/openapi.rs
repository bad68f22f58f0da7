//! The description of the routes of administration.

use serde_json::{Value, json};

use super::http::post;
use crate::http::schema::{problems, resolve};
use prost_reflect::DescriptorPool;
use rlaas_testkit::process::Rlaas;

async fn document(server: &Rlaas) -> Value {
    let (status, body) = server.get("/openapi.json").await;
    assert_eq!(status, 200);
    serde_json::from_str(&body).expect("JSON")
}

/// Calls `visit` with each value of the document that refers to another one.
fn visit_references(value: &Value, visit: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(members) => {
            if members.contains_key("$ref") {
                visit(value);
            }
            members.values().for_each(|value| visit_references(value, visit));
        }
        Value::Array(values) => values.iter().for_each(|value| visit_references(value, visit)),
        _ => {}
    }
}

#[tokio::test]
async fn every_method_of_the_services_is_described() {
    let document = document(&Rlaas::start(&[])).await;
    let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
    let services = ["ratelimit.admin.v1.AdminService", "ratelimit.admin.v1.ProjectService"]
        .map(|name| pool.get_service_by_name(name).expect("the service"));
    let paths = document["paths"].as_object().expect("paths");
    for method in services.iter().flat_map(prost_reflect::ServiceDescriptor::methods) {
        let operations =
            paths.values().flat_map(|path| path.as_object().expect("methods").values());
        let found = operations.filter(|one| one["operationId"] == method.name());
        let [operation] = found.collect::<Vec<_>>()[..] else { panic!("{}", method.name()) };
        for text in ["summary", "description"] {
            assert!(operation[text].as_str().is_some_and(|text| text.len() > 10), "{operation}");
        }
        for (name, schema) in
            [(method.input().name(), "request"), (method.output().name(), "response")]
        {
            let Some(schema_of) = document["components"]["schemas"].get(name) else {
                assert!(operation.get("parameters").is_some(), "{schema} {name} is not described");
                continue;
            };
            for property in schema_of["properties"].as_object().expect("properties").values() {
                assert!(property["description"].as_str().is_some_and(|text| !text.is_empty()));
            }
        }
    }
    let mut references = 0;
    visit_references(&document, &mut |reference| {
        assert!(resolve(&document, reference).is_object());
        references += 1;
    });
    assert!(references > 20, "{references}");
}

#[tokio::test]
async fn requests_and_responses_fit_their_schemas() {
    let server = Rlaas::start(&[]);
    let document = document(&server).await;
    let selector = json!({ "request": { "userId": "alice", "attributes": { "plan": "free" } } });
    for (method, request) in [
        ("inspect", json!({ "selector": selector })),
        ("reset", json!({ "selector": selector, "reason": "r", "requestId": null })),
        ("refund", json!({ "selector": selector, "units": "1", "reason": "r", "requestId": "i" })),
    ] {
        let operation = &document["paths"][format!("/v1/admin/keys:{method}")]["post"];
        let content = &operation["requestBody"]["content"]["application/json"];
        let wrong = problems(&document, &content["schema"], &request, "");
        assert!(wrong.is_empty(), "{wrong:?}");
        let (status, content_type, response) = post(&server, method, &request.to_string()).await;
        assert_eq!(status, 200, "{response}");
        let content = &operation["responses"]["200"]["content"][content_type];
        let wrong = problems(&document, &content["schema"], &response, "");
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
