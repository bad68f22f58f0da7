//! Holds the table of rooms in `src/lib.rs` against the `use` lines, and reads the scripts. What is a
//! crate of its own is for cargo to hold.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Room → the rooms and crates that it may name. `std`, `core` and `crate` paths into the room
/// itself are always allowed.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    (
        "telemetry",
        &["observer", "rules", "algorithm"],
        &[
            "opentelemetry",
            "opentelemetry_otlp",
            "opentelemetry_sdk",
            "prometheus_client",
            "quanta",
            "thiserror",
            "tracing",
            "tracing_subscriber",
        ],
    ),
    (
        "api",
        &["limiter", "rules", "algorithm", "clock", "telemetry"],
        &[
            "tonic",
            "prost",
            "prost_types",
            "axum",
            "tokio",
            "tonic_reflection",
            "tonic_prost",
            "tonic_health",
            "tonic_types",
            "futures_util",
            "arc_swap",
            "ring",
            "subtle",
            "thiserror",
            "serde",
            "serde_json",
            "tracing",
        ],
    ),
    (
        "server",
        &["api", "limiter", "store", "clock", "telemetry"],
        &[
            "arc_swap",
            "tonic",
            "tonic_health",
            "tokio",
            "axum",
            "hyper",
            "hyper_util",
            "rustix",
            "rustls",
            "tokio_rustls",
            "webpki",
            "tracing",
            "thiserror",
        ],
    ),
    (
        "config",
        &["server", "api", "limiter", "store", "rules", "algorithm", "clock", "telemetry"],
        &["figment", "serde", "serde_saphyr", "humantime", "strsim", "thiserror"],
    ),
];

/// Crates whose paths are looked for even without a `use` line.
const CRATES: &[&str] = &[
    "anyhow",
    "arc_swap",
    "axum",
    "clap",
    "compact_str",
    "deadpool",
    "deadpool_redis",
    "figment",
    "futures_util",
    "hashbrown",
    "hdrhistogram",
    "humantime",
    "hyper",
    "hyper_util",
    "opentelemetry",
    "opentelemetry_otlp",
    "opentelemetry_sdk",
    "prometheus_client",
    "prost",
    "prost_types",
    "quanta",
    "rmp",
    "ring",
    "rustix",
    "rustls",
    "serde",
    "serde_json",
    "serde_saphyr",
    "smallvec",
    "strsim",
    "subtle",
    "thiserror",
    "tokio",
    "tokio_rustls",
    "tokio_stream",
    "tonic",
    "tonic_health",
    "tonic_prost",
    "tonic_reflection",
    "tonic_types",
    "tracing",
    "tracing_subscriber",
    "webpki",
];

#[test]
fn each_room_uses_only_what_its_row_allows() {
    let mut wrong = Vec::new();
    for file in files_below("src", "rs") {
        let inside = file.strip_prefix("src").expect("a file below src");
        let text = fs::read_to_string(&file).expect("a source file");
        let Some(allowed) = allowed_in(inside) else { continue };
        for (number, line) in code_lines(&text) {
            let leaves_room = is_door(inside) && line.contains("super::");
            let names = names_in(line).into_iter();
            for name in names.chain(leaves_room.then(|| "super".to_owned())) {
                if !allowed.contains(&name) {
                    wrong.push(format!("{}:{number}: {name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "not allowed by the table of rooms:\n{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_use_lines_sees_what_it_should() {
    assert_eq!(names_in("use crate::store::{Hit, Store};"), ["store"]);
    assert_eq!(names_in("    let x = tokio::time::timeout(y, z);"), ["tokio"]);
    assert_eq!(names_in("pub use deadpool_redis::redis;"), ["deadpool_redis"]);
    assert_eq!(names_in("use crate::{a, b};"), [""]);
    assert_eq!(names_in("use super::super::store;"), ["super::super"]);
    assert_eq!(names_in("let tokio = 1;"), Vec::<String>::new());
    let api = allowed_in(Path::new("api/v1.rs")).expect("a room");
    assert!(api.contains(&"limiter".to_owned()));
    assert!(!api.contains(&"server".to_owned()));
}

#[test]
fn every_room_has_a_row_and_every_row_a_room() {
    for (room, _, _) in ROOMS {
        let (file, dir) = (format!("src/{room}.rs"), format!("src/{room}"));
        assert!(Path::new(&file).exists() || Path::new(&dir).exists(), "no room {room}");
    }
    for entry in fs::read_dir("src").expect("src") {
        let path = entry.expect("an entry of src").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let free = ["lib", "main", "cli"].contains(&name.as_str());
        assert!(free || ROOMS.iter().any(|(room, _, _)| *room == name), "no row for {name}");
    }
}

#[test]
fn scripts_touch_only_declared_keys_and_the_clock_of_the_server() {
    // Each key that a command is given comes from KEYS by way of these names.
    const KEY_NAMES: &[&str] = &["key", "state.key", "state.debt_key"];
    let mut calls = 0;
    for file in files_below("lua", "lua") {
        let text = fs::read_to_string(&file).expect("a script");
        for banned in ["math.random", "os.time", "os.clock", "loadstring", "redis.log"] {
            assert!(!text.contains(banned), "{}: {banned}", file.display());
        }
        let calls_of = |name| text.split(name).skip(1);
        let all = calls_of("redis.call(").chain(calls_of("redis.pcall(")).chain(calls_of(" read("));
        for call in all {
            let arguments = call.split(')').next().expect("a call");
            let mut words = arguments.split(',').map(str::trim);
            let command = words.next().expect("a command");
            calls += 1;
            match words.next() {
                None => assert_eq!(command, "'TIME'", "{}", file.display()),
                Some(key) => assert!(KEY_NAMES.contains(&key), "{}: {arguments}", file.display()),
            }
        }
    }
    assert!(calls > 5, "the reader of scripts sees only {calls} calls");
}

#[test]
fn both_forms_of_an_algorithm_have_the_same_functions() {
    for lua in files_below("lua", "lua") {
        let name = lua.file_stem().expect("a name").to_string_lossy().into_owned();
        if ["prelude", "check", "coupled"].contains(&name.as_str()) {
            continue;
        }
        let rust = fs::read_to_string(format!("crates/core/src/algorithm/{name}.rs"))
            .expect("a Rust twin");
        let lua = fs::read_to_string(&lua).expect("a script");
        for function in ["decide", "commit", "refund", "charge", "credit"] {
            assert!(rust.contains(&format!("fn {function}(")), "{name}: {function} in Rust");
            assert!(lua.contains(&format!("local function {function}(")), "{name}: {function}");
        }
    }
}

#[test]
fn what_linux_alone_has_is_behind_cfg() {
    // Other systems compile, macOS for one: rustix leaves these out there.
    const OF_LINUX: &[&str] = &["set_tcp_user_timeout", "disable_transparent_huge_pages"];
    let mut calls = 0;
    for file in ["src", "crates"].into_iter().flat_map(|dir| files_below(dir, "rs")) {
        let text = fs::read_to_string(&file).expect("a source file");
        let mut line_before = "";
        for (number, line) in code_lines(&text) {
            if OF_LINUX.iter().any(|name| line.contains(name)) {
                calls += 1;
                let cfg = line_before.trim();
                assert_eq!(cfg, "#[cfg(target_os = \"linux\")]", "{}:{number}", file.display());
            }
            line_before = line;
        }
    }
    assert_eq!(calls, OF_LINUX.len());
}

/// Is the file a room's outermost, so that `super` is the house?
fn is_door(file: &Path) -> bool {
    let depth = file.components().count();
    depth == 1 || (depth == 2 && file.ends_with("mod.rs"))
}

/// Names that a file may use, or `None` where everything is allowed.
fn allowed_in(file: &Path) -> Option<Vec<String>> {
    let inside = file.with_extension("");
    let mut allowed = BTreeSet::new();
    for (room, rooms, crates) in ROOMS {
        if inside.starts_with(room) {
            let own = room.split('/').next().expect("a room has a name");
            allowed.insert(own.to_owned());
            allowed.extend(rooms.iter().chain(*crates).map(|name| (*name).to_owned()));
        }
    }
    (!allowed.is_empty()).then(|| allowed.into_iter().collect())
}

/// Lines of code with their numbers: no comments, and nothing from the unit tests on.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let code = lines.take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    code.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Rooms and crates that a line names.
fn names_in(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    for path in words.filter(|word| word.contains("::")) {
        let mut parts = path.split("::");
        match parts.next().unwrap_or_default() {
            // `use crate::{…}` hides what it names: it comes out as "", which no room may use.
            "crate" => names.extend(parts.next().map(str::to_owned)),
            // Two rooms up from any file is the house itself: say `crate`.
            "super" if parts.next() == Some("super") => names.push("super::super".to_owned()),
            name if CRATES.contains(&name) => names.push(name.to_owned()),
            _ => {}
        }
    }
    names
}

fn files_below(dir: &str, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::from(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory of the project") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    files
}
