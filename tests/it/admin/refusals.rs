//! Every refusal of the administration, compared with a reviewed list: each method is called with requests
//! of which one field is left out or wrong, by callers without the role, in projects of theirs and of others, and
//! in states that forbid it.
//!
//! `UPDATE_GOLDEN=1 cargo test --test it admin::refusals::` rewrites the list.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use regex::Regex;
use rlaas_testkit::process::Rlaas;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::hostile::wire::open;
use crate::projects::roles::{DESK, ROOT, TEAM, start_on};

const LIST: &str = "tests/it/admin/refusals.txt";

/// Requests of an administrator of everything, one for each method: valid, until a field is changed.
const REQUESTS: &str = r#"
Inspect {"selector":{"projectId":"","request":{"userId":"alice","resource":"/pay","attributes":{"plan":"free"},"cost":1},"rule":"default"}}
Inspect {"selector":{"key":{"parts":[{"name":"user_id","value":"alice"}]},"rule":"default"}}
Inspect {"selector":{"envoy":{"domain":"shop","entries":[{"key":"a","value":"b"}]}}}
Reset {"selector":{"key":{"id":"alice"},"rule":"default"},"reason":"test","requestId":"reset"}
Refund {"selector":{"request":{"userId":"alice"}},"units":"1","reason":"test","requestId":"refund"}
SetOverride {"selector":{"request":{"userId":"alice"}},"grant":{"limit":"9","burst":"9"},"ttl":"60s","reason":"test","requestId":"set"}
SetOverride {"selector":{"request":{"userId":"alice","resource":"/pay"}},"grant":{"limit":"9","burst":"12"},"ttl":"60s","reason":"test"}
SetOverride {"selector":{"request":{"userId":"alice"}},"grant":{"banned":true},"ttl":"60s","reason":"test"}
ClearOverride {"selector":{"request":{"userId":"alice"}},"kind":"OVERRIDE_KIND_BAN","reason":"test","requestId":"clear"}
ListOverrides {"projectId":"shop","pageSize":9,"pageToken":"9","rule":"login","kind":"OVERRIDE_KIND_BAN"}
Explain {"request":{"userId":"alice","resource":"/pay","attributes":{"plan":"free"},"cost":1,"requestId":"e"},"projectId":"","rule":"pay"}
ExplainDescriptors {"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"b"}],"hitsAddend":"1"}]}
ListAudit {"projectId":"shop","pageSize":9,"pageToken":"9-0.9-0","target":"pay","actor":"root","since":"2026-01-01T00:00:00Z","until":"2026-01-02T00:00:00Z"}
ListAudit {"selector":{"request":{"userId":"alice"}}}
ListInstances {"pageSize":9,"pageToken":"a"}
ListThresholdEvents {"projectId":"shop","after":"9-0","wait":"1s","pageSize":9}
TopKeys {"projectId":"","rule":"pay","window":"900s","maxKeys":9,"withState":true}
WatchDecisions {"projectId":"","rule":"pay","outcomes":["OUTCOME_ALLOWED"],"userId":"alice","samplePpm":1000000}
SetMode {"projectId":"shop","rule":"login","mode":"RULE_MODE_SHADOW","ttl":"60s","reason":"test","requestId":"mode"}
TopKeys {"projectId":"-","value":"alice"}
WatchStats {"projectId":"","rule":"pay","interval":"10s","maxRules":9,"history":"600s","pastOnly":true}
BanKey {"projectId":"","parts":[{"name":"user_id","value":"alice"}],"ttl":"60s","reason":"test"}
BanKey {"projectId":"-","parts":[{"name":"user_id","value":"alice"}],"end":true,"reason":"test"}
LookUp {"userId":"alice","projectId":"-"}
CreateProject {"project":{"id":"new","displayName":"New","unmatched":"UNMATCHED_POLICY_DENY"},"requestId":"new","reason":"test"}
GetProject {"projectId":"shop"}
ListProjects {"pageSize":9,"pageToken":"9.a"}
UpdateProject {"project":{"id":"shop","displayName":"Shop","unmatched":"UNMATCHED_POLICY_DENY"},"updateMask":"displayName","etag":"0123456789abcdef","reason":"test"}
DeleteProject {"projectId":"none","etag":"0123456789abcdef","reason":"test"}
CreateKey {"projectId":"shop","key":{"displayName":"web","environment":"test","expiresAt":"2100-01-01T00:00:00Z"},"requestId":"key","reason":"test"}
ListKeys {"projectId":"shop","pageSize":9,"pageToken":"9.a"}
ListKeys {"projectId":"-","keyId":"KEY"}
UpdateKey {"projectId":"shop","key":{"id":"KEY","attributes":{"plan":"pro"}},"updateMask":"attributes","reason":"test"}
RotateKey {"projectId":"shop","keyId":"KEY","grace":"60s","requestId":"rotate","reason":"test"}
RevokeKey {"projectId":"shop","keyId":"none","reason":"test"}
CreateRule {"projectId":"blog","rule":{"name":"full","matchers":[{"part":"resource","anyOf":["/a"]}],"keyBy":["user_id","resource"],"maxRequests":"9","window":"60s","algorithm":"GCRA","burst":"9","mode":"RULE_MODE_SHADOW","onStoreFailure":"ON_STORE_FAILURE_DENY","nearLimitPpm":500000,"overrides":[{"matchers":[{"part":"user_id","anyOf":["bob"]}],"grant":{"limit":"7"}}]},"reason":"test"}
GetRule {"projectId":"shop","ruleName":"login"}
ListRules {"projectId":"shop","pageSize":9,"pageToken":"0.a"}
UpdateRule {"projectId":"shop","rule":{"name":"login","maxRequests":"9","window":"60s"},"updateMask":"maxRequests","etag":"0123456789abcdef","allowMissing":false,"reason":"test"}
UpdateRule {"projectId":"shop","rule":{"name":"none","maxRequests":"9","window":"60s"},"reason":"test"}
DeleteRule {"projectId":"shop","ruleName":"login","etag":"0123456789abcdef","reason":"test"}
ApplyRules {"projectId":"blog","rules":[{"name":"one","maxRequests":"9","window":"60s"},{"name":"two","maxRequests":"9","window":"60s"}],"prune":true,"expectedRevision":"77","reason":"test"}
ApplyRules {"projectId":"blog","rules":[{"name":"one","maxRequests":"9","window":"60s"},{"name":"one","maxRequests":"0","window":"60s"}]}
Validate {"projectId":"blog","rules":[{"name":"one","maxRequests":"9","window":"60s"}],"prune":true}
ListRevisions {"projectId":"shop","pageSize":9,"pageToken":"9"}
GetRevision {"projectId":"shop","revision":"1","baseRevision":"0"}
Rollback {"projectId":"shop","revision":"1","expectedRevision":"77","reason":"test"}
ListUsage {"projectId":"shop","pageSize":9,"pageToken":"shop.2026-01-01","firstDay":"2026-01-01","lastDay":"2026-01-02"}
RestoreCatalogue {"from":"CATALOGUE_SOURCE_STORE","expectedRevision":"1","reason":"test"}
"#;

/// Requests whose refusal depends on what is there, or on several fields.
const STATES: &str = r#"
Reset {"selector":{},"reason":"test"}
Reset {"selector":{"key":{}},"reason":"test"}
Reset {"selector":{"key":{"parts":[{"name":"user","value":"a"}]}},"reason":"test"}
Reset {"selector":{"key":{"id":"alice"}},"reason":"test"}
Reset {"selector":{"key":{"id":"a:b"},"rule":"default"},"reason":"test"}
Reset {"selector":{"key":{"id":"alice"},"rule":"none"},"reason":"test"}
SetOverride {"selector":{"request":{"userId":"alice"}},"grant":{"banned":false},"ttl":"60s","reason":"test"}
SetOverride {"selector":{"request":{"userId":"alice"}},"grant":{"banned":true,"burst":"1"},"ttl":"60s","reason":"test"}
SetOverride {"selector":{"request":{"userId":"alice"}},"grant":{"banned":true},"ttl":"0.999999999s","reason":"test"}
SetOverride {"selector":{"request":{"userId":"alice"}},"grant":{"banned":true},"ttl":"31622400.000001s","reason":"test"}
SetMode {"rule":"pay","mode":"RULE_MODE_SHADOW","ttl":"2592001s","reason":"test"}
SetMode {"rule":"pay","ttl":"60s","reason":"test"}
SetMode {"projectId":"-","rule":"pay","mode":"RULE_MODE_SHADOW","ttl":"60s","reason":"test"}
ListAudit {"pageToken":"1-0"}
ListAudit {"pageToken":"2-0.1-0"}
ListAudit {"selector":{}}
ListAudit {"since":"2026-01-02T00:00:00Z","until":"2026-01-01T00:00:00Z"}
ListOverrides {"pageToken":"99999 :alice"}
WatchStats {"interval":"5s","thisInstance":false,"pastOnly":true}
WatchStats {"interval":"1s","thisInstance":true,"pastOnly":true}
WatchDecisions {"outcomes":["OUTCOME_UNSPECIFIED"]}
Reset {"selector":{"request":{"userId":"carol"}},"reason":"first","requestId":"used"}
Reset {"selector":{"request":{"userId":"carol"}},"reason":"another","requestId":"used"}
SetMode {"rule":"pay","mode":"RULE_MODE_SHADOW","ttl":"60s","reason":"another","requestId":"used"}
SetMode {"rule":"none","mode":"RULE_MODE_SHADOW","ttl":"60s","reason":"test"}
SetMode {"projectId":"none","rule":"*","mode":"RULE_MODE_SHADOW","ttl":"60s","reason":"test"}
SetOverride {"selector":{"request":{"userId":"carol","resource":"/fixed"}},"grant":{"limit":"9"},"ttl":"60s","reason":"test"}
SetOverride {"selector":{"request":{"userId":"alice"}},"grant":{"limit":"2000000000"},"ttl":"60s","reason":"test"}
ListOverrides {"projectId":"shop","rule":"none"}
CreateProject {"project":{"id":"shop"}}
CreateProject {"project":{"id":"gone"}}
DeleteProject {"projectId":"gone"}
CreateProject {"project":{"id":"gone"}}
DeleteProject {"projectId":""}
DeleteProject {"projectId":"shop","etag":"0123456789abcdef"}
UpdateProject {"project":{"id":"","displayName":"x"}}
CreateKey {"projectId":""}
CreateRule {"projectId":"","rule":{"name":"pay","maxRequests":"9","window":"60s"}}
CreateRule {"projectId":"shop","rule":{"name":"login","maxRequests":"9","window":"60s"}}
CreateRule {"projectId":"shop","rule":{"name":"login","maxRequests":"9","window":"60s"}}
UpdateRule {"projectId":"","rule":{"name":"pay","maxRequests":"9","window":"60s"}}
UpdateRule {"projectId":"shop","rule":{"name":"none","maxRequests":"9","window":"60s"},"etag":"0123456789abcdef","allowMissing":true}
CreateRule {"projectId":"","rule":{"name":"by-key","keyBy":["attributes.api_key"],"maxRequests":"9","window":"60s"}}
DeleteRule {"projectId":"","ruleName":"pay"}
GetRevision {"projectId":"shop","revision":"99"}
Rollback {"projectId":"shop","revision":"99"}
RevokeKey {"projectId":"shop","keyId":"KEY"}
RevokeKey {"projectId":"shop","keyId":"KEY"}
RotateKey {"projectId":"shop","keyId":"KEY"}
TopKeys {"rule":"none"}
TopKeys {"projectId":"-","rule":"pay"}
TopKeys {"rule":"pay","value":"alice"}
ListKeys {"projectId":"-"}
WatchStats {"projectId":"-","rule":"pay"}
WatchStats {"rule":"none"}
WatchDecisions {"rule":"none"}
"#;

/// What is there before.
const SETUP: &str = r#"
CreateProject {"project":{"id":"shop"}}
CreateProject {"project":{"id":"blog"}}
CreateRule {"projectId":"shop","rule":{"name":"login","maxRequests":"9","window":"60s"}}
"#;

const SETTINGS: &str = r#"rate-limiter={"overridable":true}
rules=[{"name":"pay","match":{"resource":"/pay"},"algorithm":"gcra","limit":3,"window":"1h","overridable":true},{"name":"fixed","match":{"resource":"/fixed"},"limit":3,"window":"1h"}]
telemetry.top-keys=true"#;

/// Calls methods by their descriptors, and lists what they answer.
struct Caller {
    channel: Channel,
    methods: Vec<MethodDescriptor>,
    masks: Vec<(Regex, &'static str)>,
    /// Id of an API key, which another run has otherwise.
    key: String,
    list: String,
}

impl Caller {
    async fn new(server: &Rlaas) -> Self {
        let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
        let services = pool.services().filter(|one| one.package_name() == "ratelimit.admin.v1");
        let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
        let masks = [(r"x{9,}", "x…"), (r"é{9,}", "é…")];
        let masks = masks.map(|(mask, shown)| (Regex::new(mask).expect("an expression"), shown));
        let channel = server.channel().await;
        Self { channel, methods, masks: masks.to_vec(), key: String::new(), list: String::new() }
    }

    /// Calls a method. `None`: the request is none of its messages.
    async fn call(
        &self,
        token: &str,
        name: &str,
        request: &Value,
    ) -> Option<Result<Vec<u8>, Status>> {
        let method = self.methods.iter().find(|method| method.name() == name).expect("a method");
        let message = DynamicMessage::deserialize(method.input(), request).ok()?;
        let path = format!("/{}/{name}", method.parent_service().full_name());
        let bearer = [("authorization".to_owned(), format!("Bearer {token}"))];
        let mut messages = match open(&self.channel, &path, &bearer, message.encode_to_vec()).await
        {
            Ok(messages) => messages,
            Err(status) => return Some(Err(status)),
        };
        // The first message of a stream may be long in coming.
        if method.is_server_streaming() {
            return Some(Ok(Vec::new()));
        }
        Some(messages.message().await.map(Option::unwrap_or_default))
    }

    /// Calls a method, and adds the answer to the list.
    async fn list(&mut self, token: &str, name: &str, request: &Value, label: &str) {
        let Some(answer) = self.call(token, name, request).await else { return };
        let told = match answer {
            Ok(_) => "OK".to_owned(),
            Err(status) => described(&status),
        };
        let line = format!("{name} {label}: {told}").replace(&self.key, "KEY");
        let line = self
            .masks
            .iter()
            .fold(line, |line, (mask, shown)| mask.replace_all(&line, *shown).into_owned());
        let _infallible = writeln!(self.list, "{line}");
    }
}

/// Returns code, reason, fields and text of a refusal.
fn described(status: &Status) -> String {
    let details = status.get_error_details();
    let reason = details.error_info().map_or("-", |info| &info.reason);
    let mut told = format!("{:?} {reason}", status.code());
    for violation in details.bad_request().into_iter().flat_map(|bad| &bad.field_violations) {
        let _infallible = write!(told, " [{}: {}]", violation.field, violation.description);
    }
    if details.bad_request().is_none() {
        let _infallible = write!(told, " {:?}", status.message());
    }
    told
}

/// Returns the pointers of all members of a request.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, one)| (name.clone(), one)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(at, one)| (at.to_string(), one)).collect()
        }
        _ => return,
    };
    for (name, child) in children {
        let pointer = format!("{at}/{name}");
        pointers(child, &pointer, all);
        all.push(pointer);
    }
}

/// Returns wrong values in place of one, with what to call them.
fn wrong(value: &Value) -> Vec<(&'static str, Value)> {
    match value {
        Value::String(text)
            if text.ends_with('s') && text[..text.len() - 1].parse::<u32>().is_ok() =>
        {
            vec![
                ("negative", json!("-1s")),
                ("0.0000001s", json!("0.000000100s")),
                ("endless", json!("99999999999s")),
            ]
        }
        Value::String(text) if text.ends_with('Z') => vec![
            ("before 1970", json!("1960-01-01T00:00:00Z")),
            ("year 9999", json!("9999-12-31T23:59:59Z")),
        ],
        Value::String(_) | Value::Number(_) => vec![
            ("none", json!("none")),
            ("99", json!(99)),
            ("-1", json!(-1)),
            ("0", json!(0)),
            ("2^32", json!(1_u64 << 32)),
            ("2^63", json!(1_u64 << 63)),
            ("control", json!("a\u{1}b")),
            ("300 x", json!("x".repeat(300))),
            ("2000 é", json!("é".repeat(2_000))),
        ],
        Value::Array(items) => vec![("300 times", Value::Array(vec![items[0].clone(); 300]))],
        _ => Vec::new(),
    }
}

/// Returns a request about a project; `None` if its method is about none, or about all.
fn in_project(request: &Value, project: &str) -> Option<Value> {
    let mut request = request.clone();
    let of = ["/projectId", "/project/id"].into_iter().find(|of| request.pointer(of).is_some());
    match (of, request.get_mut("selector")) {
        (Some(of), _) => *request.pointer_mut(of).expect("a member") = json!(project),
        (None, Some(selector)) => selector["projectId"] = json!(project),
        (None, None) => return None,
    }
    Some(request)
}

fn requests(list: &str) -> impl Iterator<Item = (&str, Value)> {
    list.trim().lines().map(|line| {
        let (method, request) = line.split_once(' ').expect("a method and a request");
        (method, serde_json::from_str(request).unwrap_or_else(|error| panic!("{error}: {line}")))
    })
}

#[tokio::test]
async fn refusals_are_the_reviewed_ones() {
    let settings: Vec<&str> = SETTINGS.lines().collect();
    let (server, _dir) = start_on("  api-keys: accepted\n", &settings);
    let mut caller = Caller::new(&server).await;
    for (method, request) in requests(SETUP) {
        let made = caller.call(ROOT, method, &request).await.expect("a message");
        made.unwrap_or_else(|status| panic!("{method}: {status:?}"));
    }
    let key = json!({ "projectId": "shop", "key": { "environment": "test" } });
    let key = caller.call(ROOT, "CreateKey", &key).await.expect("a message").expect("a key");
    let key = rlaas_proto::ratelimit::admin::v1::CreateKeyResponse::decode(&*key);
    caller.key = key.expect("a response").key.expect("a key").id;
    let with_key = |list: &str| list.replace("KEY", &caller.key);
    let (valid, states) = (with_key(REQUESTS), with_key(STATES));
    for (method, request) in requests(&valid) {
        caller.list(ROOT, method, &json!({}), "{}").await;
        for (token, name) in
            [(TEAM, "of shop alone"), (DESK, "for support alone"), ("x", "unknown")]
        {
            caller.list(token, method, &request, name).await;
        }
        let mut all = Vec::new();
        pointers(&request, "", &mut all);
        for pointer in all {
            let (parent, name) = pointer.rsplit_once('/').expect("a member");
            let mut without = request.clone();
            if let Some(Value::Object(members)) = without.pointer_mut(parent) {
                members.remove(name);
                caller.list(ROOT, method, &without, &format!("{pointer} left out")).await;
            }
            for (label, value) in wrong(request.pointer(&pointer).expect("a member")) {
                let mut changed = request.clone();
                *changed.pointer_mut(&pointer).expect("a member") = value;
                caller.list(ROOT, method, &changed, &format!("{pointer} = {label}")).await;
            }
        }
    }
    for (method, request) in requests(&states) {
        caller.list(ROOT, method, &request, &request.to_string()).await;
    }
    for (method, request) in requests(&valid) {
        let Some(of_shop) = in_project(&request, "shop") else { continue };
        caller.list(TEAM, method, &of_shop, "of shop alone, in shop").await;
        caller.list(DESK, method, &of_shop, "for support alone, in shop").await;
        if method == "CreateProject" {
            continue;
        }
        // One that exists, one that does not, the unnamed one, and what is no id: all look the same.
        for project in ["blog", "nothing", "", "_", "SHOP", "shop\0", "shop/", "../shop"] {
            let request = in_project(&request, project).expect("a project");
            let refused = caller.call(TEAM, method, &request).await.expect("a message");
            let told = described(&refused.expect_err(method));
            assert_eq!(told, r#"NotFound UNKNOWN_PROJECT "no such project""#, "{method} {project}");
        }
    }
    let tried: BTreeSet<&str> = requests(&valid).map(|(method, _)| method).collect();
    let all: BTreeSet<&str> = caller.methods.iter().map(MethodDescriptor::name).collect();
    assert_eq!(tried, all);
    assert!(caller.call(ROOT, "ListInstances", &json!({})).await.expect("a message").is_ok());
    let list = caller.list;
    for code in [Code::Internal, Code::Unknown] {
        assert!(!list.contains(&format!(": {code:?} ")), "{code:?}: {list}");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(Path::new(LIST), &list).expect("a file that can be written");
    }
    let kept = fs::read_to_string(LIST).unwrap_or_default();
    let differ = |(kept, found): &(&str, &str)| kept != found;
    let first = kept.lines().chain([""]).zip(list.lines().chain([""])).find(differ);
    assert!(kept == list, "UPDATE_GOLDEN=1 rewrites {LIST}: {first:#?}");
}
