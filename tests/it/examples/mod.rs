//! The clients in `examples`, each built and run as its README says, where its tools are there.

mod client;
mod generated;
mod workbench;

use self::client::asks_as_it_should;
use self::workbench::Workbench;

#[tokio::test]
async fn the_client_in_go() {
    let bench = Workbench::of("go");
    if bench.is_ready(&[&["go", "mod", "download"]], &[&["go", "build", "."]]) {
        asks_as_it_should(|| bench.command("./rlaas-client", &[])).await;
    }
}

#[tokio::test]
async fn the_client_in_python() {
    let bench = Workbench::of("python");
    let packages = bench.packages().display().to_string();
    let install = "python3 -m pip install -q --disable-pip-version-check --retries 1 --upgrade -r \
                   requirements.txt --target";
    let install: Vec<&str> = install.split(' ').chain([&*packages]).collect();
    let generate = "python3 -m grpc_tools.protoc -I ../../proto --python_out=. \
                    --grpc_python_out=. ratelimit.proto";
    let generate: Vec<&str> = generate.split(' ').collect();
    if bench.is_ready(&[&install], &[&generate]) {
        asks_as_it_should(|| bench.command("python3", &["client.py"])).await;
    }
}

#[tokio::test]
async fn the_client_in_node() {
    let bench = Workbench::of("node");
    if bench.is_ready(&[&["npm", "ci", "--fetch-retries=1"]], &[]) {
        asks_as_it_should(|| bench.command("node", &["client.js"])).await;
    }
}

#[tokio::test]
async fn the_client_in_java() {
    let bench = Workbench::of("java");
    let repository = format!("-Dmaven.repo.local={}", bench.cache().display());
    // Maven fetches what it needs while it builds.
    if bench.is_ready(&[&["mvn", "-q", "-B", &repository, "compile"]], &[]) {
        let classes = "target/classes:target/dependency/*";
        asks_as_it_should(|| bench.command("java", &["-cp", classes, "Client"])).await;
    }
}
