//! Files of descriptors, as envoyproxy/ratelimit has them: read, or refused with a reason.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rlaas::config::{Config, Sources, warnings};

/// The file that is written for each input, in memory where that is possible.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("rlaas-fuzz-{}.yaml", std::process::id()))
});

static SOURCES: LazyLock<Sources> = LazyLock::new(|| {
    let files = format!("[{}]", FILE.display());
    Sources { arguments: vec![("envoy.files".to_owned(), files)], ..Sources::default() }
});

fuzz_target!(|text: &[u8]| {
    fs::write(&*FILE, text).expect("a file that can be written");
    match Config::load(&SOURCES) {
        Ok(config) => {
            let _whatever_they_are = warnings(&config.rules);
        }
        Err(problems) => {
            let text = problems.to_string();
            assert!(text.contains("rlaas-fuzz-"), "no problem names the file: {text}");
        }
    }
});
