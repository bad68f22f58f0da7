//! The output of every command that asks a server, as text and as JSON, and the help of every
//! command, compared with reviewed files.
//!
//! `UPDATE_GOLDEN=1 cargo test --test it cli::golden::` rewrites the files.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use regex::Regex;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, run};
use serde_json::Value;

const RULES: &str = "\
rate-limiter: {overridable: true, window-size: 1h}
rules:
  - {name: pay, match: {resource: /pay}, algorithm: gcra, limit: 3, window: 1h, burst: 5, overridable: true}
  - {name: search, match: {resource: /search/*, attributes: {plan: [free, trial]}}, limit: 20, window: 1h}
  - {name: soft, match: {user_id: carol}, limit: 1, window: 1h, mode: shadow}
";

const PROJECT_FILE: &str = "\
project: shop
unmatched: allow
rules:
  - {name: login, limit: 9, window: 1m, match: {resource: \"/login\\u202e\"}}
  - {name: read, limit: 7, window: 1s, algorithm: fixed-window}
";

/// Commands in their order; each is run as text, and then with `--json`. `KEY`, `FILE` and `ONE`
/// stand for the id of an API key and for rules files. Streams have tests of their own.
const COMMANDS: &str = "\
health
health --service store
health --service nobody
check alice
check alice --resource /pay --cost 2
check alice --resource /pay --cost 9
check carol
check alice --resource /search/a --attribute plan=free --dry-run
check alice --endpoint /pay --cost 0
check alice --cost -1
check alice --cost 1 --cost 2
report alice --cost -1
check  --resource /pay
inspect alice --resource /pay
inspect --part user_id=alice
inspect --id alice --rule pay
inspect nobody --rule nothing
inspect --envoy shop key=value
inspect --envoy shop value
inspect alice --part user_id=alice
inspect --id alice
inspect
refund alice --resource /pay --units 1 --reason test --request-id refund-1
refund alice --units 0 --reason test
reset alice --reason test --request-id reset-1 --yes
reset alice
ban alice --for 1h --reason abuse --request-id ban-1
ban alice --for 500d --reason abuse
ban alice --for 0s --reason abuse
ban alice --resource /search/a --for 2h --reason abuse
ban dave --all-rules --for 1h --reason abuse
ban dave --all-rules --for 1h --reason abuse
ban --part attributes.ip=192.0.2.7 --all-rules --for 1h --reason abuse
unban --part user_id=dave --reason over --request-id unban-2
ban dave --all-rules --rule pay --for 1h --reason abuse
check alice
inspect alice
override set alice --resource /pay --limit 9 --burst 12 --for 2h --reason vip --request-id set-1
override set alice --resource /pay --unlimited --limit 9 --for 2h --reason vip
override set bob --unlimited --for 2h --reason vip --request-id set-2
check bob
override set alice --for 2h --reason vip
override set alice --resource /search/a --attribute plan=free --rule search --limit 1 --for 1h --reason x
inspect alice --resource /pay
override list --rule pay
override list --kind ban
override list --project - --kind grant --rule pay
override list --project nobody
unban alice --reason sorry --request-id unban-1
override clear alice --resource /pay --kind both --reason over --request-id clear-1
override clear alice --resource /search/a --reason x --request-id clear-2
explain alice --resource /pay
explain carol --cost 2
explain alice --attribute plan=paid --resource /search/b
explain 
explain --envoy shop a=b c=d + e=f
explain --envoy shop a
explain
rule mode pay shadow --for 1h --reason test --request-id mode-1
rule mode * off --for 1h --reason test --project - --request-id mode-2
rule mode * configured --reason test --project -
rule mode pay off --for 1h --reason test
explain alice --resource /pay
rule mode pay configured --reason test
rule mode pay off --reason test
rule mode pay shadow --for 31d --reason test
rule mode pay sometimes --for 1h --reason test
rule mode nothing off --for 1h --reason test
rule list
rule list --max 2
rule list --in-force
rule list --in-force --max 2
rule list --in-force --project shop
rule get pay
rule get nothing
project create shop --name Shop --reason new
project create shop
project create blog --unmatched default --request-id project-1
project create No
project create a --unmatched ask
project list
project list --max 1
project get shop
project get _
project get nobody
project set shop --name Store --unmatched allow
project set shop --name Sh\u{202e}op
project set _ --name x
project set shop --unmatched deny --etag wrong
project set shop
project usage
project usage shop --first-day 2026-01-01 --last-day 2026-01-02
project usage --csv
project usage shop --first-day wrong
project restore --from store --expected-revision 1 --reason test
key create shop --name web --environment test --expires 2100-01-31T00:00:00Z --request-id key-1
key create shop --name web --environment test --expires 2100-01-31T00:00:00Z --request-id key-1
key create shop --expires 90d
key create _
key create shop --expires soon
key list shop
key set shop KEY --attribute plan=pro --reason upgrade
key list blog
key find KEY
key find nothing0
key find secret
key rotate shop KEY --grace 31d
key rotate shop KEY --grace 1h --request-id rotate-1
key revoke shop KEY --reason leaked
key revoke shop 00000000
rule create pay2 --limit 5 --window 1m --project shop --reason new
rule create full --limit 9 --window 1m --algorithm gcra --burst 12 --key-by resource,plan --match resource=/a --match resource=/b --match attributes.plan=free --mode shadow --on-change keep-used --on-store-failure local --local-share 0.25 --near-limit 0.8 --overridable true --breaker-opens-rule true --project shop
rule create part --limit 9 --window 90 --enforce 25% --project shop
rule create a --limit 5
rule create --limit 5 --window 1m
rule create a --limit 0 --window 1m
rule create a --limit 5 --window soon
rule create a --limit 5 --window 1m --algorithm none
rule create a --limit 5 --window 1m --burst 9
rule create a --limit 5 --window 1m --match x=y
rule create a --limit 5 --window 1m --near-limit 2
rule create a --limit 5 --window 1m --enforce 250%
rule create a --limit 5 --window 1m --overridable maybe
rule create -f ONE --project shop
rule set pay2 --limit 6 --near-limit 0.5 --project shop
rule set full --unset burst,match,key-by --project shop --etag wrong
rule set full --unset burst,match,key-by --project shop
rule set one --burst 9 --algorithm gcra --project shop
rule set one --limit 5 -f ONE --project shop
rule set one -f ONE --project shop --reason same
rule set pay2 --project shop
rule set nothing --limit 6 --project shop
rule get full --project shop
rule list --project shop
rule create read --limit 9 --window 1s --project shop
project set shop --unmatched deny
rule apply
rule apply -f FILE --dry-run
rule apply -f FILE --prune --reason files
rule apply -f FILE
rule export --all
rule export --project shop
rule history --project shop
rule history
rule diff --project shop
rule diff --project shop --base 0
rule diff 7 --project nobody
rule rollback 2 --project shop --reason back
rule rollback 18 --project shop --reason back
rule rollback 2 --project shop
rule rollback 2 --project shop --expected-revision 1
rule delete pay2 --project shop --etag wrong
rule delete pay2 --project shop --reason done
rule delete pay2 --project shop
project delete blog --reason unused
project delete nobody
top --instances
top --keys pay
top --keys
top --keys nothing
top --keys pay --max 0
top --interval 1h
top --interval 0s
top --keys pay --this-instance
top --keys pay --instances
top --instances --rule pay
top --instances --project shop
tail --sample 0%
tail --outcome sometimes
audit --max 3
audit --rule pay --since 1h
audit --project shop --actor local
audit --actor token:nobody
audit --max x
";

/// Every command with a help of its own.
const HELP: &str = "\
|check|check-config|config|health|explain|inspect|reset|refund|ban|unban|override|override set\
|override clear|override list|rule|rule create|rule set|rule apply|rule export|rule list|rule get\
|rule delete|rule history|rule diff|rule rollback|rule mode|project|project create|project list\
|project get|project set|project delete|project restore|project usage|key|key create|key list\
|key find|key set|key rotate|key revoke|journal|test|audit|top|tail|simulate|metrics|schema|completions";

/// Commands whose help has lines of more than 100 columns.
const WIDE: [&str; 7] =
    ["key create", "rule apply", "rule create", "rule diff", "rule export", "rule set", "simulate"];

/// Returns what another run has otherwise, and what to show instead.
fn masks() -> Vec<(Regex, &'static str)> {
    let masks = [
        (r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z", "TIME"),
        (r"\b\d{1,2} [A-Z][a-z]{2}( \d{4})?, \d{2}:\d{2} UTC", "MOMENT"),
        (r"\b20\d{2}-\d{2}-\d{2}\b", "DAY"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"rlaas_(live|test)_\w+", "SECRET"),
        (r"\b[0-9a-f]{32}\b", "REQUEST"),
        (r#""(id|requestId|etag|replacedBy)":"[^"]+""#, r#""$1":"ID""#),
        (r#""(retryAfter|resetAfter|delay|denyCachedFor|catalogueAge)":"[^"]*""#, r#""$1":"WAIT""#),
        (r"\b(\d+h \d+m|\d{2,3}m( \d+s)?|\d+m \d+s)\b", "WAIT"),
        (r"\b[0-9a-f]{16}\b", "ETAG"),
        (r"#[a-z2-7]{26}\b", "#HASH"),
        (r#""nextPageToken":"[^"]+""#, r#""nextPageToken":"TOKEN""#),
        (r#","checkP50":"[^"]*","checkP99":"[^"]*""#, ""),
        (r"\d+ +(-|\S+s) +(-|\S+s) +memory", "N memory"),
        (r#""(connections|ttl|decisionsPerSecond|requestsPerSecond)":("?)\d+"?"#, r#""$1":N"#),
        (r"\d+\.\d+[µm]s", "LATENCY"),
        (r"/\S*/(\w+\.yaml)", "$1"),
        (r" {2,}", "  "),
    ];
    masks.map(|(mask, instead)| (Regex::new(mask).expect("an expression"), instead)).to_vec()
}

/// Returns a member of each item of a list that a command prints.
fn listed(server: &Rlaas, command: &[&str], member: &str) -> Vec<String> {
    let (_, out, _) = run(&[command, &["--json", "--addr", server.grpc()]].concat());
    let response: Value = serde_json::from_str(&out).unwrap_or_default();
    let lists = response.as_object().into_iter().flat_map(|members| members.values());
    let items = lists.filter_map(Value::as_array).flatten();
    items.filter_map(|item| Some(item[member].as_str()?.to_owned())).collect()
}

fn assert_golden(name: &str, text: &str) {
    let file = Path::new("tests/it/cli").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, text).expect("a file that can be written");
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let differ = |(kept, found): &(&str, &str)| kept != found;
    let first = kept.lines().chain([""]).zip(text.lines().chain([""])).find(differ);
    assert!(kept == text, "{}: UPDATE_GOLDEN=1 rewrites it: {first:#?}", file.display());
}

#[test]
fn output_of_every_command_is_the_reviewed_one() {
    let dir = TempDir::new();
    let rules = dir.write("rules.yaml", RULES);
    let file = dir.write("shop.yaml", PROJECT_FILE).display().to_string();
    let one = "rules: [{name: one, limit: 3, window: 1m}]\n";
    let one = dir.write("one.yaml", one).display().to_string();
    let settings = ["auth.api-keys=accepted", "telemetry.top-keys=true"];
    let server = Rlaas::start_from(&rules, &settings);
    let mut own = listed(&server, &["top", "--instances"], "id");
    let masks = masks();
    let mut key = String::new();
    let mut printed = String::new();
    for line in COMMANDS.lines() {
        for form in [&[][..], &["--json"]] {
            if line.starts_with("health") && !form.is_empty() {
                continue;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let stand = |word: &str| match word {
                "KEY" => key.clone(),
                "FILE" => file.clone(),
                "ONE" => one.clone(),
                word => word.to_owned(),
            };
            let words: Vec<String> = words.into_iter().map(stand).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (code, out, error) = run(&[&words, form, &["--addr", server.grpc()]].concat());
            if let Some(secret) = out.strip_prefix("rlaas_test_") {
                key = secret[..8].to_owned();
            }
            let _infallible = writeln!(printed, "$ rlaas {line} {}", form.concat());
            if line.starts_with("key ") {
                own.extend(listed(&server, &["key", "list", "shop"], "id"));
            }
            let masked = |text: &str| {
                let text = own.iter().fold(text.to_owned(), |text, id| text.replace(id, "ID"));
                masks.iter().fold(text, |text, (mask, instead)| {
                    mask.replace_all(&text, *instead).into_owned()
                })
            };
            let _infallible = write!(printed, "{}", masked(&out));
            for line in masked(&error).lines() {
                let _infallible = writeln!(printed, "! {line}");
            }
            if code != 0 {
                let _infallible = writeln!(printed, "= {code}");
            }
        }
    }
    assert_golden("golden.txt", &printed);
}

#[test]
fn help_of_every_command_is_the_reviewed_one() {
    let mut printed = String::new();
    for command in HELP.split('|') {
        let arguments: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let (code, out, error) = run(&arguments);
        assert_eq!((code, &*error), (0, ""), "{command}");
        let fits = out.lines().all(|line| line.chars().count() <= 100);
        assert!(fits || WIDE.contains(&command), "{out}");
        let _infallible = writeln!(printed, "$ rlaas {command} --help\n{out}");
    }
    assert_golden("help.txt", &printed);
}
