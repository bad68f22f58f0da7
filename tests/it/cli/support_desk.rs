//! The support desk: what refuses a user, and how that is changed, by copying what the command before has
//! printed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regex::Regex;
use rlaas_testkit::process::{Rlaas, program, rlaas, run};
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);
const RULES: &str = "\
rate-limiter: {overridable: true}
rules:
  - {name: pay, match: {resource: /pay}, limit: 3, window: 1h, overridable: true}
  - {name: exports, match: {resource: /exports}, limit: 2, window: 1h, overridable: true}
  - {name: invoices, match: {resource: /invoices}, limit: 2, calendar: {unit: year, zone: Europe/Berlin},
     algorithm: fixed-window, overridable: true}
  - {name: checkout, match: {resource: /checkout}, limit: 1, window: 1h}
  - {name: soft, match: {resource: /soft}, limit: 1, window: 1h, mode: shadow}
  - {name: files, match: {resource: /files/*}, key-by: [user_id, resource], limit: 1, window: 1h, overridable: true}
";
const SHOP: &str = "\
project: shop
unmatched: allow
rules:
  - {name: search, match: {resource: /search}, limit: 9, window: 1h, overridable: true}
";

struct Desk {
    _dir: TempDir,
    server: Rlaas,
}

impl Desk {
    fn open(settings: &[&str]) -> Self {
        let dir = TempDir::new();
        let rules = dir.write("rules.yaml", RULES);
        let shop = dir.write("shop.yaml", SHOP);
        let mut serve = rlaas(&["serve"]);
        serve.args([Path::new("--config"), &rules, Path::new("--config"), &shop]);
        let server = Rlaas::start_with(serve, settings);
        Self { _dir: dir, server }
    }

    /// Runs a command as a shell does, and returns its exit code and what it prints.
    fn types(&self, command: &str) -> (i32, String) {
        let typed = command.strip_prefix("rlaas ").expect("a command of rlaas");
        let program = program();
        let line = format!("{} {typed} --addr {}", program.display(), self.server.grpc());
        let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
        let shown = String::from_utf8(output.stdout).expect("text");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() != Some(2), "{command}: {error}");
        (output.status.code().expect("a code"), shown)
    }

    /// Runs a command that finds something, and returns what it prints.
    fn prints(&self, command: &str) -> String {
        let (code, shown) = self.types(command);
        assert_eq!(code, 0, "{command}: {shown}");
        shown
    }

    fn may(&self, user: &str, resource: &str) -> bool {
        run(&["check", user, "--resource", resource, "--addr", self.server.grpc()]).0 == 0
    }
}

/// Returns the command at the end of the row of a rule.
fn copied(shown: &str, rule: &str) -> String {
    let row = shown.lines().find(|line| line.contains(rule) && line.contains("rlaas "));
    let row = row.unwrap_or_else(|| panic!("{rule}: {shown}"));
    row[row.find("rlaas ").expect("a command")..].to_owned()
}

fn assert_begins(shown: &str, pattern: &str) {
    let time = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC";
    let pattern = Regex::new(&format!("^{}\n", pattern.replace("TIME", time))).expect("a pattern");
    assert!(pattern.is_match(shown), "{pattern}: {shown}");
}

#[test]
fn five_tasks_are_done_by_copying_what_the_command_before_printed() {
    let desk = Desk::open(&[]);
    desk.prints("rlaas ban bob --all-rules --for 1h --reason abuse");
    for _ in 0..2 {
        assert!(desk.may("alice", "/exports") && desk.may("alice", "/invoices"));
    }
    assert!(desk.may("alice", "/checkout") && desk.may("alice", "/pay"));
    assert!(desk.may("alice", "/soft"));

    // Who is bob refused by?
    let shown = desk.prints("rlaas explain bob");
    assert_begins(&shown, r"bob is banned on default, exports, invoices and pay until TIME");
    assert!(shown.contains(", by local: abuse  "), "{shown}");
    // End it.
    let unban = copied(&shown, "  pay ");
    assert_eq!(unban, "rlaas unban bob --rule pay --reason support");
    assert!(!desk.may("bob", "/pay"));
    assert!(desk.prints(&unban).contains("banned → 3"));
    assert!(desk.may("bob", "/pay") && !desk.may("bob", "/exports"));
    let ended = desk.prints("rlaas unban bob --reason sorry");
    assert!(ended.starts_with("not banned any more on 3 rules: default, exports, invoices\n"));
    assert_begins(&desk.prints("rlaas explain bob"), "no rule keyed by bob refuses");

    // Give alice more for a day.
    let shown = desk.prints("rlaas explain alice");
    assert_begins(
        &shown,
        "alice is refused by checkout( until TIME, by| and) exports until TIME and by invoices until \
         TIME; 2 rules let alice pass; 1 in shadow",
    );
    assert!(shown.contains("2 of 2 used, passes 1 Jan "), "{shown}");
    let more = copied(&shown, "  exports ");
    assert_eq!(more, "rlaas override set alice --rule exports --limit 4 --for 1d --reason support");
    assert!(desk.prints(&more).contains("2 → 4"));
    assert!(desk.may("alice", "/exports"));
    // Refund.
    let refund = copied(&shown, "  checkout ");
    assert_eq!(refund, "rlaas refund alice --rule checkout --units 1 --reason support");
    desk.prints(&refund);
    assert!(desk.may("alice", "/checkout"));
    // Who changed what?
    let audit = copied(&shown, "who changed what");
    assert_eq!(audit, "rlaas audit");
    let audit = desk.prints(&audit);
    for row in [
        r"Refund +_ +checkout +1 → 0 used +refund 1 units to 1 key +support",
        r"SetOverride +_ +exports +2 → 4 ",
        r"ClearOverride +_ +- +banned → 2, banned → 5 +clear bans of 3 keys ",
        r"ClearOverride +_ +pay +banned → 3 ",
    ] {
        assert!(Regex::new(row).expect("a pattern").is_match(&audit), "{row}: {audit}");
    }
    // What was granted is taken back in the same way.
    let shown = desk.prints("rlaas explain alice");
    let clear = copied(&shown, "  exports ");
    assert_eq!(clear, "rlaas override clear alice --rule exports --reason support");
    assert!(desk.prints(&clear).contains("4 → 2"));
}

#[test]
fn keys_of_several_parts_and_hostile_ids_are_found_and_let_through() {
    let desk = Desk::open(&[]);
    let long = "x".repeat(300);
    for user in ["O'Brien $(touch x)", "-v", "a\nb", &*long] {
        let (server, resource) = (["--addr", desk.server.grpc()], "/files/a b");
        let reason = ["--for", "1h", "--reason", "abuse"];
        let ban = [&["ban", "--resource", resource][..], &reason, &server, &["--", user]].concat();
        let (code, _, error) = run(&ban);
        assert_eq!(code, 0, "{error}");
        let explain = [&["explain"], &server[..], &["--", user]].concat();
        let (code, shown, error) = run(&explain);
        assert_eq!(code, 0, "{error}");
        let first = shown.lines().next().expect("a line");
        assert!(first.contains(" is banned on files until "), "{shown}");
        desk.prints(&copied(&shown, "  files "));
        assert!(run(&explain).1.lines().next().expect("a line").ends_with(" refuses"));
    }
}

#[test]
fn bans_of_every_project_begin_and_end_with_one_command() {
    let desk = Desk::open(&[]);
    let banned = desk.prints("rlaas ban eve --project - --for 1h --reason flood");
    assert!(
        banned.starts_with(
            "project -\nbanned on 5 rules: _/default, _/exports, _/invoices, _/pay, shop/search\n"
        ),
        "{banned}"
    );
    let shown = desk.prints("rlaas explain eve --project shop");
    assert_begins(&shown, r"eve is banned on search \(shop\) until TIME");
    assert_begins(
        &desk.prints("rlaas explain eve"),
        r"eve is banned on default, exports, invoices, pay and search \(shop\) until TIME",
    );
    let unban = copied(&shown, "search");
    assert_eq!(unban, "rlaas unban eve --rule search --project shop --reason support");
    let ended = desk.prints("rlaas unban eve --project - --reason over");
    assert!(ended.starts_with("not banned any more on 5 rules: _/default, "), "{ended}");
    let (code, shown) = desk.types(&unban);
    assert_eq!((code, &*shown), (1, "nothing was changed: no such ban or override was found\n"));
}

#[test]
fn what_finds_nothing_exits_1_unless_that_is_ok() {
    let desk = Desk::open(&[]);
    for (command, why) in [
        ("unban nobody", "no ban was found"),
        ("unban nobody --project -", "no ban was found"),
        ("unban nobody --rule pay", "no such ban or override was found"),
        ("unban nobody --rule files", "no key was found"),
        ("unban nobody --resource /checkout", "no key was found"),
        ("override clear nobody", "no such ban or override was found"),
        ("refund nobody --rule files --units 1", "no key was found"),
    ] {
        let command = format!("rlaas {command} --reason x");
        let (code, shown) = desk.types(&command);
        assert!(code == 1 && shown.starts_with("nothing was changed: "), "{command}: {shown}");
        assert!(shown.contains(why), "{command}: {shown}");
        assert_eq!(desk.types(&format!("{command} --missing-ok")), (0, shown));
    }
}

#[test]
fn a_ban_that_bans_nobody_exits_1() {
    let server = Rlaas::start(&[]);
    let ban = ["ban", "eve", "--all-rules", "--for", "1h", "--reason", "flood"];
    let (code, shown, _) = run(&[&ban[..], &["--addr", server.grpc()]].concat());
    let why = "not banned, because not overridable, on 1 rule: default\n\
        nothing was changed: add `overridable: true` to a rule\n";
    assert!(code == 1 && shown.contains(why), "{code}: {shown}");
}

#[tokio::test]
async fn a_long_key_is_banned_by_the_hash_under_which_it_is_shown() {
    let desk = Desk::open(&["telemetry.top-keys=true"]);
    let long = "y".repeat(300);
    let mut shown = String::new();
    // Counts become visible a few times per second.
    eventually("the refusal of the key is counted", TIMEOUT, async || {
        let _allowed_or_not = desk.may(&long, "/pay");
        shown = desk.prints("rlaas top --keys --kind used");
        shown.contains("id #")
    })
    .await;
    let hash =
        shown.split_once("id #").expect("a hash").1.split_whitespace().next().expect("a hash");
    let ban = format!("rlaas ban --id '#{hash}' --rule pay --for 1h --reason abuse");
    assert!(desk.prints(&ban).contains("3 → banned"));
    assert!(desk.prints("rlaas override list").contains(&long));
}
