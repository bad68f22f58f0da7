//! The clients in `examples`, each built and run as its README describes, if its tools are
//! installed.

mod client;
mod gateway;
mod generated;
pub(crate) mod workbench;

use self::client::{assert_conforms, assert_hedges, assert_retries};
use self::workbench::Workbench;

#[tokio::test]
async fn go_client_conforms() {
    let bench = Workbench::new("go");
    if bench.is_ready(&[&["go", "mod", "download"]], &[&["go", "build", "."]]) {
        let command = || bench.command("./rlaas-client", &[]);
        assert_conforms(command).await;
        assert_retries(command).await;
    }
}

#[tokio::test]
async fn python_client_conforms() {
    let bench = Workbench::new("python");
    let packages = bench.packages().display().to_string();
    let install = "python3 -m pip install -q --disable-pip-version-check --retries 1 --upgrade -r \
                   requirements.txt --target";
    let install: Vec<&str> = install.split(' ').chain([&*packages]).collect();
    let generate = "python3 -m grpc_tools.protoc -I ../../proto --python_out=. \
                    --grpc_python_out=. ratelimit.proto";
    let generate: Vec<&str> = generate.split(' ').collect();
    if bench.is_ready(&[&install], &[&generate]) {
        let command = || bench.command("python3", &["client.py"]);
        assert_conforms(command).await;
        assert_retries(command).await;
    }
}

#[tokio::test]
async fn node_client_conforms() {
    let bench = Workbench::new("node");
    if bench.is_ready(&[&["npm", "ci", "--fetch-retries=1"]], &[]) {
        let command = || bench.command("node", &["client.js"]);
        assert_conforms(command).await;
        assert_retries(command).await;
        assert_hedges(command).await;
    }
}

#[tokio::test]
async fn java_client_conforms() {
    let bench = Workbench::new("java");
    let repository = format!("-Dmaven.repo.local={}", bench.cache().display());
    // Maven fetches dependencies during the build.
    if bench.is_ready(&[&["mvn", "-q", "-B", &repository, "compile"]], &[]) {
        let classes = "target/classes:target/dependency/*";
        let command = || bench.command("java", &["-cp", classes, "Client"]);
        assert_conforms(command).await;
        assert_retries(command).await;
        assert_hedges(command).await;
    }
}
