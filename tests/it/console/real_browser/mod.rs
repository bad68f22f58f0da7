//! The console in a real browser: Chromium, driven by the scripts in `tests/browser`.
//!
//! A test starts the servers and runs a script. The script asks it for what a browser can't do, by lines
//! that begin with `ask`, and gets a line in response.

mod live;
mod many;
mod pages;
mod security;
mod sign_in;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rlaas_testkit::tools::{cache_dir, npm_packages, skipped};
use serde_json::{Value, json};

use super::{ADMIN, CHECK, OPERATE, auth};

/// Token of an operator of the project `shop` alone.
const OF_SHOP: &str = "s3cret-of-the-shop";
/// Names of the browser, of which the first that is found is used.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What scripts need: the folder with their packages, and the browser.
#[derive(Debug)]
struct BrowserBench {
    folder: PathBuf,
    browser: PathBuf,
}

impl BrowserBench {
    /// Returns the workbench, or reports the skipped script.
    fn find(script: &str) -> Option<&'static Self> {
        static FOUND: OnceLock<Result<BrowserBench, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let browser = browser().ok_or("there is no chromium")?;
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
            Ok(Self { folder: npm_packages("browser", &sources)?, browser })
        });
        match found {
            Ok(found) => Some(found),
            Err(why) => {
                skipped(&format!("tests/browser/{script}"), why);
                None
            }
        }
    }

    /// Runs a script until its end. `answer` does what it asks for, and returns its response.
    ///
    /// # Panics
    ///
    /// If a check of the script fails.
    fn run(&self, script: &str, subject: Value, mut answer: impl FnMut(&str) -> String) {
        let mut subject = subject;
        subject["chromium"] = json!(self.browser);
        subject["pictures"] = json!(cache_dir("console-pictures"));
        subject["takes_pictures"] = json!(is_set("SOAK") || is_set("UPDATE_PICTURES"));
        let mut command = Command::new("node");
        command.arg(script).current_dir(&self.folder).env("SUBJECT", subject.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = ScriptProcess(command.spawn().expect("node"));
        let mut input = process.0.stdin.take().expect("a pipe");
        let output = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let mut errors = process.0.stderr.take().expect("a pipe");
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text).unwrap_or_default()
        });
        let mut said = String::new();
        for line in output.lines().map_while(Result::ok) {
            if let Some(what) = line.strip_prefix("ask ") {
                let response = answer(what);
                writeln!(input, "{response}").expect("a script that reads");
            } else {
                println!("{line}");
                said.push_str(&line);
                said.push('\n');
            }
        }
        let status = process.0.wait().expect("a child process");
        let errors = errors.join().expect("no panic");
        assert!(status.success(), "{script}:\n{said}{errors}");
    }
}

/// A script, killed on drop: with a test that failed while it ran.
struct ScriptProcess(Child);

impl Drop for ScriptProcess {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _already_gone = self.0.wait();
    }
}

/// Returns `true` if a variable of the environment is set.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let files = BROWSERS.iter().flat_map(|name| folders.iter().map(move |in_| in_.join(name)));
    files.into_iter().find(|file| file.is_file())
}

/// Returns the tokens of [`visitors`], as scripts know them.
fn tokens() -> Value {
    json!({ "admin": ADMIN, "operate": OPERATE, "check": CHECK, "shop": OF_SHOP })
}

/// Returns the section of callers, followed by rules.
fn visitors(rules: &str) -> String {
    let tokens = auth(&[
        (ADMIN, "roles: [admin, operate, check]"),
        (OPERATE, "roles: [operate]"),
        (CHECK, "roles: [check]"),
        (OF_SHOP, "projects: [shop], roles: [operate]"),
    ]);
    format!("{tokens}{rules}")
}
