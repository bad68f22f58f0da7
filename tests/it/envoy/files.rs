//! Rule files of envoyproxy/ratelimit: reading, problems, and reloads.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use super::client::{check, client};
use rlaas_testkit::process::{Rlaas, finish, rlaas, run};
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Writes a configuration that names these files.
fn naming(dir: &TempDir, files: &[&Path]) -> std::path::PathBuf {
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    dir.write("rlaas.yaml", &format!("envoy: {{ files: [{}] }}\n", files.join(", ")))
}

/// Runs `rlaas check-config` on a file of rules. Returns the exit code and the problems, without
/// the path of the file, which starts each of them.
fn problems(rules: &str) -> (i32, String) {
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", rules);
    let config = naming(&dir, &[&file]);
    let (code, _, error) = run(&["check-config", &config.display().to_string()]);
    let path = format!("{}: ", file.display());
    for line in error.lines() {
        assert!(line.trim_start_matches("warning: ").starts_with(&path), "{rules}\n{line}");
    }
    (code, error.replace(&path, ""))
}

/// Returns a domain with one descriptor of these lines.
fn descriptor(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("    {line}\n")).collect();
    format!("domain: shop\ndescriptors:\n  -\n{}", lines.concat())
}

#[test]
fn every_field_of_the_format_is_read() {
    let (code, error) = problems(
        "# A comment\ndomain: a/b c\ndescriptors:\n  - key: k\n    value: 404\n    rate_limit:\n      \
         name: one\n      unit: Second\n      requests_per_unit: 0\n      replaces:\n        - name: \
         two\n    shadow_mode: true\n    detailed_metric: true\n    value_to_metric: true\n    \
         descriptors:\n      - key: k\n        value: x*y*z\n        share_threshold: true\n        \
         quota_mode: true\n        rate_limit: { unlimited: true }\n  - key: open\n    value:\n    \
         rate_limit:\n    descriptors:\n",
    );
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(problems("domain: empty\n").0, 0);
}

/// Asserts that the rules are rejected by one line that contains this text.
fn assert_rejected(rules: &str, expected: &str) {
    let (code, error) = problems(rules);
    assert_eq!(code, 64, "{rules}");
    assert!(error.contains(expected), "{rules}\n{error}\n{expected}");
    assert_eq!(error.lines().count(), 1, "{rules}\n{error}");
}

#[test]
fn invalid_descriptors_are_rejected_by_key() {
    for (rules, expected) in [
        (String::new(), "domain: must be 1 to 1024 bytes"),
        ("descriptors: []".to_owned(), "domain: must be 1 to 1024 bytes"),
        ("domain: [a]".to_owned(), "domain: must be a string"),
        ("domain: a\nrules: []".to_owned(), "rules: unknown key"),
        ("domain: a\ndescriptors: 1".to_owned(), "descriptors: must be a list of sections"),
        ("domain: a\ndescriptors: [1]".to_owned(), "descriptors[0]: must be a section"),
        ("domain: a\ndescriptors: [{key: [1]}]".to_owned(), "descriptors[0].key: must be a string"),
        ("domain: [".to_owned(), "line 1"),
        ("a: 'b".to_owned(), "line 1"),
        ("- domain: a".to_owned(), "line 1"),
        ("domain: a\ndescriptors: [{}]".to_owned(), "descriptors[0].key: missing"),
        (descriptor("value: v"), "descriptors[0].key: missing"),
        (descriptor("key: k*"), "descriptors[0].key: must be a string without *"),
        (
            descriptor("key: k\nvalue: {a: 1}\nshare_threshold: true"),
            "descriptors[0].value: must be a string",
        ),
        (descriptor("key: k\nrate_limit: 5"), "descriptors[0].rate_limit: must be a section"),
        (descriptor("key: k\nvalues: [a]"), "descriptors[0].values: unknown key, did you mean"),
        (descriptor("key: k\nmetadata: [a]"), "descriptors[0].metadata: must be a map of at most"),
        (descriptor("key: k\nmetadata: { a: .nan }"), "line 5, column 20"),
        (
            descriptor(&format!("key: k\nmetadata: {}1{}", "{ a: ".repeat(17), " }".repeat(17))),
            "descriptors[0].metadata: must be a map of at most 1000 values and 16 levels",
        ),
        (
            descriptor(&format!("key: k\nmetadata: {{ a: [{}] }}", "1,".repeat(1_000))),
            "descriptors[0].metadata: must be a map of at most 1000 values and 16 levels",
        ),
        (descriptor("key: k\nshadow_mode: maybe"), "descriptors[0].shadow_mode: must be true or"),
        (
            descriptor("key: k\nvalue: v\nshare_threshold: true"),
            "descriptors[0].share_threshold: requires a value with *",
        ),
    ] {
        assert_rejected(&rules, expected);
    }
}

#[test]
fn a_long_window_warns_that_little_debt_can_be_kept() {
    let limit = |window: &str| {
        let rate = "requests_per_unit: 5, algorithm: gcra, post_paid: true";
        problems(&descriptor(&format!("key: k\nrate_limit: {{ window: {window}, {rate} }}")))
    };
    assert_eq!(limit("36d"), (0, String::new()));
    let warning = "warning: descriptors[0].rate_limit.post_paid: debt ends at the units of 366 days: less \
                   than 10 windows of this limit\n";
    assert_eq!(limit("37d"), (0, warning.to_owned()));
}

#[test]
fn invalid_debt_settings_are_rejected_by_key() {
    let minute = "key: k\nrate_limit: { unit: minute, requests_per_unit: 1";
    for (rules, expected) in [
        (
            descriptor(&format!("{minute}, max_debt: 1 }}")),
            "descriptors[0].rate_limit.max_debt: only with post_paid or reservable: true, or for a fixed window",
        ),
        (
            descriptor(&format!("{minute}, post_paid: true, max_debt: 9007199254740000 }}")),
            "descriptors[0].rate_limit.max_debt: must be a whole number from 0 to 9007199254739999",
        ),
        (
            descriptor(&format!(
                "{minute}, post_paid: true, max_debt: 527041, algorithm: token-bucket }}"
            )),
            "descriptors[0].rate_limit.max_debt: must be a whole number from 0 to 527040",
        ),
        (
            descriptor(&format!(
                "{minute}, post_paid: true, max_debt: 1, algorithm: sliding-window-log }}"
            )),
            "descriptors[0].rate_limit.post_paid: not with sliding-window-log, which can't be in debt; use \
             token-bucket or fixed-window",
        ),
        (
            descriptor(&format!("{minute}, post_paid: often }}")),
            "descriptors[0].rate_limit.post_paid: must be true or false",
        ),
    ] {
        assert_rejected(&rules, expected);
    }
}

#[test]
fn invalid_limits_are_rejected_by_key() {
    let minute = "key: k\nrate_limit: { unit: minute, requests_per_unit: 1";
    for (rules, expected) in [
        (
            descriptor("key: k\nvalue: v\\*\nshare_threshold: true"),
            "descriptors[0].share_threshold: requires a value with *",
        ),
        (
            descriptor("key: k\nrate_limit: { requests_per_unit: 1 }"),
            "descriptors[0].rate_limit.unit: missing",
        ),
        (
            descriptor("key: k\nrate_limit: { unit: minute }"),
            "descriptors[0].rate_limit.requests_per_unit: missing",
        ),
        (
            descriptor("key: k\nrate_limit: { unit: fortnight, requests_per_unit: 1 }"),
            "descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or",
        ),
        (
            descriptor("key: k\nrate_limit: { unit: day, requests_per_unit: -1 }"),
            "descriptors[0].rate_limit.requests_per_unit: must be a whole number from 0 to",
        ),
        (
            descriptor("key: k\nrate_limit: { unit: day, requests_per_unit: 4294967296 }"),
            "descriptors[0].rate_limit.requests_per_unit: must be a whole number from 0 to",
        ),
        (
            descriptor("key: k\nrate_limit: { unit: day, unlimited: true }"),
            "descriptors[0].rate_limit.unit: must not be given with unlimited: true",
        ),
        (
            descriptor("key: k\nrate_limit: { unit: unknown, requests_per_unit: 1 }"),
            "descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or",
        ),
        (
            descriptor(&format!("{minute}, window: 1s }}")),
            "descriptors[0].rate_limit.window: must not be given with unit",
        ),
        (
            descriptor(
                "key: k\nrate_limit: { unit: year, unit_multiplier: 2, requests_per_unit: 1 }",
            ),
            "descriptors[0].rate_limit.unit_multiplier: must be a window of up to 366d",
        ),
        (
            descriptor(&format!("{minute}, burst: 2 }}")),
            "descriptors[0].rate_limit.burst: fixed-window has no burst",
        ),
        (
            descriptor(&format!("{minute}, algorithm: guess }}")),
            "descriptors[0].rate_limit.algorithm: must be fixed-window",
        ),
        (
            descriptor(&format!("{minute}, on_store_failure: panic }}")),
            "descriptors[0].rate_limit.on_store_failure: must be error, allow, deny or local",
        ),
        (
            descriptor(&format!("{minute}, name: a, replaces: [{{ name: a }}] }}")),
            "descriptors[0].rate_limit.replaces[0].name: must be the name of another limit",
        ),
        (
            descriptor(&format!("{minute}, replaces: [{{}}] }}")),
            "descriptors[0].rate_limit.replaces[0].name: missing",
        ),
        (
            format!("domain: a\ndescriptors: [{0}, {0}]", "{ key: k, value: v }"),
            "descriptors[1].key: another descriptor of this level has this key and value",
        ),
        (
            "domain: a\ndescriptors: [{ key: k, descriptors: [{ key: x }, { value: y }] }]".into(),
            "descriptors[0].descriptors[1].key: missing",
        ),
    ] {
        assert_rejected(&rules, expected);
    }
    let (_, error) = problems(&descriptor("key: k\nrate_limit: {}"));
    let missing = ["unit", "requests_per_unit"]
        .map(|key| format!("descriptors[0].rate_limit.{key}: missing (line 5)\n"));
    assert_eq!(error, missing.concat());
}

#[test]
fn reduced_limit_is_warned_of_by_file_and_key() {
    let limit = "{ key: KEY, rate_limit: { unit: day, requests_per_unit: 4294967295 } }";
    let [one, other] = ["a", "b"].map(|key| limit.replace("KEY", key));
    let cut = "rate_limit.requests_per_unit: reduced to 1000000000, the maximum of a limit\n";
    let reported = problems(&format!("domain: a\ndescriptors: [{one}]"));
    assert_eq!(reported, (0, format!("warning: descriptors[0].{cut}")));
    let reported = problems(&format!("domain: a\ndescriptors: [{one}, {other}]"));
    let cut = cut.replace(": reduced", " and 1 more: reduced");
    assert_eq!(reported, (0, format!("warning: descriptors[0].{cut}")));
}

#[test]
fn rule_warnings_name_the_file() {
    let limit = "{ unit: day, requests_per_unit: 20000, algorithm: sliding-window-log }";
    let (code, error) = problems(&descriptor(&format!("key: k\nrate_limit: {limit}")));
    assert_eq!(code, 0);
    assert!(error.starts_with("warning: rule shop.k: its log may have 20000 entries"), "{error}");
}

#[test]
fn metadata_without_its_setting_is_warned_of() {
    let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
    let rules = descriptor(&format!("key: k\n{limit}\nmetadata: {{ a_b: 1, a-b: {{ c: null }} }}"));
    let unless = "descriptors[0].metadata: not sent unless envoy.metadata is true";
    assert_eq!(problems(&rules), (0, format!("warning: {unless}\n")));
    let dir = TempDir::new();
    let file = dir.write("rules.yaml", &rules);
    let text = format!("envoy: {{ files: [{}], metadata: true }}\n", file.display());
    let config = dir.write("rlaas.yaml", &text).display().to_string();
    assert_eq!(run(&["check-config", &config]), (0, "valid\n".to_owned(), String::new()));
    let server = Rlaas::start_from(&naming(&dir, &[&file]), &[]);
    assert!(server.log().contains(unless), "{}", server.log());
}

#[test]
fn all_problems_are_reported_at_once() {
    let (_, error) = problems("rules: 1\ndescriptors: [{ value: v }, { key: k, other: 1 }]");
    assert_eq!(error.lines().count(), 4, "{error}");
}

#[test]
fn relative_paths_resolve_against_the_naming_file() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.path("rules")).expect("a folder");
    std::fs::create_dir(dir.path("elsewhere")).expect("a folder");
    let limit = "rate_limit: { unit: hour, requests_per_unit: 1 }";
    let rules = format!("domain: shop\ndescriptors: [{{ key: a, {limit} }}]\n");
    let file = dir.write("rules/shop.yaml", &rules);
    let config = |text: &str| dir.write("rlaas.yaml", text);
    for named in ["[rules/shop.yaml]", "rules/shop.yaml", "[../$/rules]"] {
        let folder = dir.path("");
        let name = folder.file_name().expect("a name").to_str().expect("UTF-8");
        let files = named.replace('$', name);
        config(&format!("envoy: {{ files: {files} }}\nserver: {{ listen: '127.0.0.1:0' }}\n"));
        for (from, path) in [
            (dir.path(""), "rlaas.yaml".to_owned()),
            (dir.path("elsewhere"), "../rlaas.yaml".to_owned()),
            (std::env::temp_dir(), dir.path("rlaas.yaml").display().to_string()),
        ] {
            let output = rlaas(&["check-config", &path]).current_dir(&from).output();
            let (code, _, error) = finish(output.expect("the program"));
            assert_eq!((code, error.as_str()), (0, ""), "{named} from {}", from.display());
        }
    }
    // On the command line a path is relative to the working directory.
    let set = ["config", "--set", "envoy.files=[shop.yaml]"];
    let output = rlaas(&set).current_dir(dir.path("rules")).output();
    let (code, out, error) = finish(output.expect("the program"));
    assert_eq!(code, 0, "{error}");
    assert!(out.contains(&format!("files: [{}]  # command line", file.display())), "{out}");
}

#[test]
fn missing_file_is_reported() {
    let dir = TempDir::new();
    let config = naming(&dir, &[&dir.path("nobody.yaml")]);
    let (code, _, error) = run(&["check-config", &config.display().to_string()]);
    assert_eq!(code, 64);
    assert!(error.contains("nobody.yaml: can't be read"), "{error}");
}

#[tokio::test]
async fn folders_are_read_and_domains_may_span_files() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.path("rules")).expect("a folder");
    let rules_of = |key: &str| {
        let limit = "rate_limit: { unit: hour, requests_per_unit: 1 }";
        format!("domain: shop\ndescriptors: [{{ key: {key}, {limit} }}]\n")
    };
    std::fs::create_dir_all(dir.path("rules/deep/deeper")).expect("folders");
    dir.write("rules/a.yaml", &rules_of("a"));
    dir.write("rules/b.json", &rules_of("b"));
    dir.write("rules/d.conf", &rules_of("d"));
    dir.write("rules/deep/e", &rules_of("e"));
    dir.write("rules/deep/deeper/f.txt", &rules_of("f"));
    dir.write("rules/.hidden.yaml", "no rules");
    // As Kubernetes mounts a ConfigMap.
    std::fs::create_dir_all(dir.path("rules/..2026/.swp")).expect("folders");
    dir.write("rules/..2026/g.yaml", &rules_of("g"));
    symlink("..2026", dir.path("rules/..data")).expect("a symlink");
    symlink("..data/g.yaml", dir.path("rules/g.yaml")).expect("a symlink");
    let server = Rlaas::start_from(&naming(&dir, &[&dir.path("rules")]), &[]);
    let mut client = client(&server).await;
    for key in ["a", "b", "d", "e", "f", "g"] {
        let answer = check(&mut client, &format!("shop: {key}=1")).await;
        assert!(answer.contains("OK 1/HOUR left 0"), "{answer}");
    }
    for (file, key) in [("rules/c.yaml", "c"), ("rules/deep/deeper/h", "h")] {
        dir.write(file, &rules_of(key));
        eventually("the new file of the folder is read", TIMEOUT, async || {
            check(&mut client, &format!("shop: {key}=1 *0")).await.contains("1/HOUR")
        })
        .await;
    }
}

#[test]
fn every_file_of_a_folder_must_hold_rules() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.path("rules/deep")).expect("folders");
    dir.write("rules/deep/rules", "domain: shop\n");
    let config = naming(&dir, &[&dir.path("rules")]).display().to_string();
    assert_eq!(run(&["check-config", &config]), (0, "valid\n".to_owned(), String::new()));
    for (file, text, expected) in [
        ("rules/deep/notes.md", "no rules", "notes.md: "),
        ("rules/deep/notes.md", "rules: none", "notes.md: domain: must be 1 to 1024 bytes"),
    ] {
        dir.write(file, text);
        let (code, _, error) = run(&["check-config", &config]);
        assert_eq!(code, 64);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn empty_folder_is_a_problem() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.path("rules/deep")).expect("folders");
    dir.write("rules/.hidden.yaml", "domain: shop\n");
    let config = naming(&dir, &[&dir.path("rules")]).display().to_string();
    let (code, _, error) = run(&["check-config", &config]);
    let folder = dir.path("rules").display().to_string();
    let expected = format!("{folder}: can't be read: has no rule files\n");
    assert_eq!((code, error), (64, expected));
}

#[test]
fn skipped_entries_of_a_folder_are_named() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.path("rules/deep")).expect("folders");
    dir.write("rules/a.yaml", "domain: shop\n");
    symlink(".", dir.path("rules/deep/circle")).expect("a symlink");
    let _socket = UnixListener::bind(dir.path("rules/socket")).expect("a socket");
    let config = naming(&dir, &[&dir.path("rules")]).display().to_string();
    let (code, out, error) = run(&["check-config", &config]);
    assert_eq!((code, out.as_str()), (0, "valid\n"));
    let path = |name| dir.path(name).display().to_string();
    let expected = [
        format!("warning: {}: not read: a symlink to a folder\n", path("rules/deep/circle")),
        format!("warning: {}: not read: neither a file nor a folder\n", path("rules/socket")),
    ];
    assert_eq!(error, expected.concat());

    symlink("nowhere", dir.path("rules/dangling.yaml")).expect("a symlink");
    let (code, _, error) = run(&["check-config", &config]);
    assert_eq!(code, 64);
    assert!(error.starts_with(&format!("{}: can't be read: ", path("rules/dangling.yaml"))));
}

#[tokio::test]
async fn changed_file_is_reloaded_and_an_invalid_one_is_not() {
    let dir = TempDir::new();
    let rules = |limit: &str| {
        format!(
            "domain: shop\ndescriptors: [{{ key: a, rate_limit: {{ window: 300d, \
             requests_per_unit: {limit} }} }}]\n"
        )
    };
    let file = dir.write("rules.yaml", &rules("2"));
    let server = Rlaas::start_from(&naming(&dir, &[&file]), &[]);
    let mut client = client(&server).await;
    let look = "shop: a=1 *0";
    check(&mut client, "shop: a=1").await;
    dir.write("rules.yaml", &rules("9"));
    eventually("the new limit applies", TIMEOUT, async || {
        check(&mut client, look).await.contains("9/300DAY left 8")
    })
    .await;
    dir.write("rules.yaml", &rules("many"));
    eventually("the rejection is logged", TIMEOUT, async || {
        server.log().contains("descriptors[0].rate_limit.requests_per_unit")
    })
    .await;
    assert!(check(&mut client, look).await.contains("9/300DAY left 8"));
    // A file that is named later is watched even if it was rejected.
    let other = dir.write("other.yaml", &rules("none"));
    naming(&dir, &[&other]);
    eventually("the problem of the other file is logged", TIMEOUT, async || {
        server.log().contains("other.yaml")
    })
    .await;
    dir.write("other.yaml", &rules("5"));
    eventually("the limit of the other file applies", TIMEOUT, async || {
        check(&mut client, look).await.contains("5/300DAY left 4")
    })
    .await;
}
