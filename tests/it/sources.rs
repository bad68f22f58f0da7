//! Rules for sources that no compiler checks: scripts use only declared keys, calls that exist only on
//! Linux are behind `cfg`, texts of errors are not cut, and what is shipped is built to be fast.

use std::fs;
use std::path::PathBuf;

#[test]
fn lua_scripts_use_only_declared_keys_and_redis_time() {
    // Every key of a command is an element of KEYS in one of these variables.
    const KEY_NAMES: &[&str] = &[
        "keys.head",
        "keys.removed",
        "keys.unused",
        "keys.ended",
        "keys.ended_ids",
        "keys.conflict",
        "keys.index",
        "keys.ids",
        "keys.changes",
        "keys.document",
        "keys.history",
        "key",
        "counter.key",
        "hit.key",
        "state.key",
        "state.debt_key",
        "once.key",
        "hit.control_key",
        "hit.history_key",
        "units_key",
        // The log of a project, in `lua/fleet.lua`.
        "project",
        // That an entry of a log was appended, there too.
        "mark",
    ];
    // Functions that run the command which they are given. A channel is no key.
    const RUNNERS: &[&str] = &["redis.call(", "redis.pcall(", " read(", " call(", " try("];
    let mut calls = 0;
    for file in files_below("lua", "lua") {
        let text = fs::read_to_string(&file).expect("a script");
        for banned in ["math.random", "os.time", "os.clock", "loadstring", "redis.log"] {
            assert!(!text.contains(banned), "{}: {banned}", file.display());
        }
        let calls_of = |name| text.split(name).skip(1);
        for call in RUNNERS.iter().copied().flat_map(calls_of) {
            let arguments = call.split(')').next().expect("a call");
            let mut words = arguments.split(',').map(str::trim);
            let command = words.next().expect("a command");
            calls += 1;
            match words.next() {
                None => assert_eq!(command, "'TIME'", "{}", file.display()),
                Some("channel") => assert_eq!(command, "'PUBLISH'", "{}", file.display()),
                Some(key) => assert!(KEY_NAMES.contains(&key), "{}: {arguments}", file.display()),
            }
        }
    }
    assert!(calls > 5, "only {calls} calls were found");
}

#[test]
fn linux_only_calls_are_behind_cfg() {
    // Other systems, such as macOS, do not have these calls.
    const LINUX_ONLY: &[&str] = &["set_tcp_user_timeout", "disable_transparent_huge_pages"];
    let mut calls = 0;
    for file in ["src", "crates"].into_iter().flat_map(|dir| files_below(dir, "rs")) {
        let text = fs::read_to_string(&file).expect("a source file");
        let mut line_before = "";
        for (number, line) in code_lines(&text) {
            if LINUX_ONLY.iter().any(|name| line.contains(name)) {
                calls += 1;
                let cfg = line_before.trim();
                assert_eq!(cfg, "#[cfg(target_os = \"linux\")]", "{}:{number}", file.display());
            }
            line_before = line;
        }
    }
    assert_eq!(calls, LINUX_ONLY.len());
}

#[test]
fn texts_of_errors_are_not_cut() {
    const CUTS: &[&str] = &["strip_prefix", "split", "split_once", "starts_with", "replacen"];
    const TEXTS: &[&str] = &[".to_string()", ".message()", ".text()"];
    // Files that make statuses, answers and lines of errors, and need no text of anything else.
    const FILES: &[&str] = &[
        "crates/admin/src/ban_key.rs",
        "crates/admin/src/change.rs",
        "crates/admin/src/projects/refusals.rs",
        "crates/admin/src/refusals.rs",
        "crates/admin/src/selector.rs",
        "crates/console/src/page_error.rs",
        "crates/core/src/plan/selector/mod.rs",
        "crates/core/src/rules/request.rs",
        "crates/proto/src/status.rs",
        "src/api/http/problem.rs",
        "src/api/status.rs",
        "src/cli/rule/mod.rs",
        "src/cli/test/file.rs",
    ];
    let mut seen = 0;
    let files = ["src", "crates"].into_iter().flat_map(|dir| files_below(dir, "rs"));
    for file in files.filter(|file| !file.iter().any(|part| part == "tests")) {
        let text = fs::read_to_string(&file).expect("a source file");
        // A chain of calls may have several lines.
        let code: String = code_lines(&text).map(|(_, line)| line.trim()).collect();
        let is_listed = FILES.iter().any(|listed| file.ends_with(listed));
        seen += usize::from(is_listed);
        for cut in CUTS.iter().map(|cut| format!(".{cut}(")) {
            let found = is_listed && code.contains(&cut)
                || TEXTS.iter().any(|text| code.contains(&format!("{text}{cut}")));
            assert!(!found, "{}: {cut} on a text: take a field of the error", file.display());
        }
    }
    assert_eq!(seen, FILES.len(), "a file of the list is gone");
}

#[test]
fn nothing_is_shipped_from_the_quick_profile() {
    let folders = ["scripts", ".github/workflows"];
    let files = folders.iter().flat_map(|dir| ["sh", "yml"].map(|of| files_below(dir, of)));
    let mut shipped: Vec<PathBuf> = files.flatten().collect();
    shipped.push("Dockerfile".into());
    assert!(shipped.len() > 10, "only {shipped:?}");
    for file in shipped {
        let text = fs::read_to_string(&file).expect("a file of the project");
        let text = text.replace("target/release-dry-run", "");
        for quick in ["target/release", "build --release"] {
            assert!(!text.contains(quick), "{}: {quick}: see the profile dist", file.display());
        }
    }
}

/// Returns the lines of code with their numbers, without comments and unit tests.
pub(super) fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let code = lines.take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    code.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Returns the files with this extension in a folder of the project, without build outputs.
pub(super) fn files_below(dir: &str, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::from(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory of the project") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                dirs.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    files
}
