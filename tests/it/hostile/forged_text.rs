//! Texts of callers, with NUL, braces, newlines and more, are data in every face: they come back as
//! they were sent, and forge neither a line of the log nor an entry of the audit.

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::selector::Target;
use rlaas_testkit::process::{Rlaas, request};
use rlaas_testkit::redis::RedisServer;
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::wire::{call, head, send_to};
use super::{Random, rpcs};

/// Parts of hostile texts.
const PARTS: [&str; 16] = [
    "\0",
    "{",
    "}",
    "}:{",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "2026-11-23T00:00:00.000000Z ERROR rlaas: FORGED",
    "{\"level\":\"ERROR\",\"FORGED\":true}",
    "\u{1b}[2J\u{1b}[31mFORGED",
    "\u{2028}\u{85}",
    "%00%0A%7D",
    ":%:",
    "\"",
    "#aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "*1\r\n$8\r\nFLUSHALL\r\n",
];

const FORMATS: [&str; 2] = ["text", "json"];

fn text(random: &mut Random, most: usize) -> String {
    let mut text = String::new();
    for _ in 0..=random.next() % 4 {
        let part = random.pick(&PARTS);
        if text.len() + part.len() <= most {
            text += part;
        }
    }
    if text.is_empty() { "\n".to_owned() } else { text }
}

/// Returns the entries of the audit as JSON, newest first; `None` if there is none in this version.
async fn audit(channel: &Channel) -> Option<Vec<Value>> {
    let path = rpcs().into_iter().find(|path| path.ends_with("/ListAudit"))?;
    let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
    let find = |name: &str| {
        let name = format!("ratelimit.admin.v1.{name}");
        pool.get_message_by_name(&name).expect("a message")
    };
    let mut ask = DynamicMessage::new(find("ListAuditRequest"));
    ask.set_field_by_name("page_size", prost_reflect::Value::I32(1_000));
    let answer = call(channel, &path, &[], ask.encode_to_vec()).await.expect("an answer");
    let answer = DynamicMessage::decode(find("ListAuditResponse"), &answer[..]);
    let answer = serde_json::to_value(answer.expect("a response")).expect("JSON");
    Some(answer["entries"].as_array().cloned().unwrap_or_default())
}

async fn answer_http(server: &Rlaas, path: &str, body: &Value) -> Value {
    let head = head(&[("Host", "localhost"), ("Content-Type", "application/json")]);
    let reply = send_to(server.http(), ("POST", path), &head, &body.to_string()).await;
    assert_eq!(reply.status, 200, "{body}: {}", reply.text);
    let (head, body) = reply.text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(!head.contains("FORGED"), "{head}");
    serde_json::from_str(body).expect("JSON")
}

/// Uses every face with hostile texts, and returns the reasons of the changes, newest first.
async fn use_every_face(server: &Rlaas, random: &mut Random, rounds: usize) -> Vec<String> {
    let mut reasons = Vec::new();
    let (mut client, channel) = (server.client().await, server.channel().await);
    for _ in 0..rounds {
        let (user, reason) = (text(random, 1024), text(random, 1024));
        client.check(request(&user)).await.expect("a decision");
        let target = Some(Target::Request(request(&user)));
        let selector =
            Some(proto::Selector { target, rule: String::new(), project_id: String::new() });
        let message = proto::InspectRequest { selector: selector.clone() }.encode_to_vec();
        let path = "/ratelimit.admin.v1.AdminService/Inspect";
        let answer = call(&channel, path, &[], message).await.expect("an answer");
        let response = proto::InspectResponse::decode(&answer[..]).expect("a response");
        let [state] = &response.keys[..] else { panic!("{response:?}") };
        let key = state.key.clone().expect("a key");
        assert_eq!(key.parts[0].value.as_ref(), Some(&user));
        assert!(!key.id.contains(char::is_control) && !key.id.contains(['{', '}']), "{key:?}");
        assert!(state.used >= 1, "{state:?}");
        // The same over HTTP, by the id.
        let by_id = json!({ "selector": { "key": { "id": key.id }, "rule": "default" } });
        let shown = answer_http(server, "/v1/admin/keys:inspect", &by_id).await;
        assert_eq!(shown["keys"][0]["key"]["parts"][0]["value"], json!(user));
        let request_id = text(random, 64 - 20) + &random.next().to_string();
        let (units, why) = (1, reason.clone());
        let refund = proto::RefundRequest { selector, units, reason: why, request_id };
        let path = "/ratelimit.admin.v1.AdminService/Refund";
        call(&channel, path, &[], refund.encode_to_vec()).await.expect("a refund");
        reasons.insert(0, reason);
        let reason = text(random, 1024);
        let change = json!({ "selector": { "request": { "userId": user } }, "reason": reason });
        answer_http(server, "/v1/admin/keys:reset", &change).await;
        reasons.insert(0, reason);
    }
    reasons
}

fn assert_no_line_is_forged(log: &str, format: &str) {
    assert!(!log.contains(|c: char| c.is_control() && c != '\n'), "control characters in the log");
    for line in log.lines() {
        if format == "json" {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            assert!(line.get("FORGED").is_none() && line.get("timestamp").is_some(), "{line}");
        } else {
            // A time of this year, a level, and a module of ours or of a library.
            let mut words = line.split_whitespace();
            let time = words.next().unwrap_or_default();
            let is_time = time.len() >= 20 && time.ends_with('Z') && time.contains('T');
            let level = words.next().unwrap_or_default();
            let levels = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"];
            assert!(is_time && levels.contains(&level), "{line}");
            assert!(!time.starts_with("2026-11-23T00:00:00.000000Z"), "{line}");
        }
    }
}

#[tokio::test]
async fn texts_of_callers_come_back_as_sent_and_forge_nothing() {
    let redis = RedisServer::start();
    let mut random = Random(24);
    for format in FORMATS {
        let format_setting = format!("telemetry.format={format}");
        let keys = if format == "json" { "audit.keys=clear" } else { "audit.keys=hashed" };
        let settings = ["telemetry.log=rlaas=trace,rlaas_limiter=trace", &*format_setting, keys];
        for server in [Rlaas::start(&settings), Rlaas::on_redis(&redis, &settings)] {
            let channel = server.channel().await;
            let before = audit(&channel).await.map_or(0, |entries| entries.len());
            let reasons = use_every_face(&server, &mut random, 50).await;
            if let Some(entries) = audit(&channel).await {
                assert_eq!(entries.len() - before, reasons.len(), "one entry for each change");
                for (entry, reason) in entries.iter().zip(&reasons) {
                    assert_eq!(entry["reason"], json!(reason));
                    assert_eq!(entry["actor"], json!("local"));
                    assert_eq!(entry["state"], json!("STATE_DONE"));
                }
            }
            assert_no_line_is_forged(&server.log(), format);
        }
    }
    // Nothing that was sent became a command of Redis, or a key outside of the prefix.
    let foreign: Vec<String> = redis.keys();
    let foreign: Vec<&String> = foreign.iter().filter(|key| !key.starts_with("rlaas:")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(!redis.keys().is_empty());
}
