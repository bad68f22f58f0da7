//! The packages in `clients`, each tested by its `test.sh` in a copy of its folder, with the server that plays
//! `clients/cases.yaml`, if the tools of the language are installed. Beside it lies `llm-cases.json`, which they read.

#[path = "../../crates/client/tests/common/cases.rs"]
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rlaas_testkit::tools::{cache_dir, fetch, finish, skipped};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use crate::examples::workbench::copy;

/// Longest time of a `test.sh`, downloads included, in seconds.
const TIMEOUT: &str = "900";

/// The folder of a package for what it downloads. The copy keeps it, so that later runs download less.
const CACHE: &str = ".cache";

#[tokio::test]
async fn go_package_passes_its_tests() {
    assert_passes("go", &["go", "list", "-m", "google.golang.org/grpc@latest"]).await;
}

#[tokio::test]
async fn node_package_passes_its_tests() {
    let probe = ["npm", "view", "@grpc/grpc-js", "version", "--fetch-retries=1"];
    assert_passes("node", &probe).await;
}

#[tokio::test]
async fn python_package_passes_its_tests() {
    let probe = "python3 -m pip index versions grpcio --retries 1 --disable-pip-version-check";
    assert_passes("python", &probe.split(' ').collect::<Vec<_>>()).await;
}

/// Asserts that the tests of a package pass. The probe shows that its tool is there and reaches its index.
async fn assert_passes(language: &str, probe: &[&str]) {
    let (what, folder) = (format!("clients/{language}"), copied(language));
    if let Err(why) = fetch(Command::new(probe[0]).args(&probe[1..]).current_dir(&folder)) {
        return skipped(&what, &why);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    tokio::spawn(server::serve(listener));
    let mut script = Command::new("timeout");
    script.args([TIMEOUT, "bash", "test.sh"]).current_dir(folder);
    script.env("RLAAS_CASES", address).env("RLAAS_SERVER", env!("CARGO_BIN_EXE_rlaas"));
    // Else Go's cache is read-only, and `target` can't be deleted.
    script.envs([("GOFLAGS", "-modcacherw"), ("GOTOOLCHAIN", "local")]);
    let tested = spawn_blocking(move || finish(&mut script)).await.expect("a thread");
    let printed = tested.unwrap_or_else(|why| panic!("{what}: {why}"));
    for line in printed.lines().filter_map(|line| line.strip_prefix("SKIPPED")) {
        skipped(&what, line.trim());
    }
}

/// Copies the folder of a package, with the table and the protos at their places. Returns the copy.
fn copied(language: &str) -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (root, sources) = (cache_dir("packages").join(language), project.join("clients"));
    let clients = root.join("clients");
    let folder = clients.join(language);
    fs::create_dir_all(&folder).expect("a folder below target");
    for path in entries(&folder).into_iter().filter(|path| !path.ends_with(CACHE)) {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.expect("a copy that can be deleted");
    }
    fs::write(clients.join("cases.yaml"), server::TABLE).expect("a file below target");
    fs::copy(sources.join("llm-cases.json"), clients.join("llm-cases.json")).expect("a copy");
    copy(&sources.join(language), &folder, &mut String::new());
    // Generated code is compared with what the protos give.
    copy(&project.join("proto"), &root.join("proto"), &mut String::new());
    folder
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the project");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}
