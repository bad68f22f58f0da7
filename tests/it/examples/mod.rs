//! The examples of other languages: those of the packages in `clients` that check user ids, the client in Java and
//! the gateway. Each is built and run if its tools are installed.

mod client;
mod gateway;
pub(crate) mod generated;
mod packages;
mod restarts;
pub(crate) mod workbench;

use self::client::{assert_conforms, assert_hedges, assert_retries};
use self::packages::Example;
use self::workbench::Workbench;

#[tokio::test]
async fn go_client_conforms() {
    assert_package_conforms(&packages::GO).await;
}

#[tokio::test]
async fn python_client_conforms() {
    assert_package_conforms(&packages::PYTHON).await;
}

#[tokio::test]
async fn node_client_conforms() {
    assert_package_conforms(&packages::NODE).await;
}

async fn assert_package_conforms(example: &Example) {
    if let Some(example) = example.as_ref() {
        assert_conforms(|| example.command()).await;
        assert_retries(|| example.command()).await;
    }
}

#[tokio::test]
async fn java_client_conforms() {
    let bench = Workbench::new("examples/java");
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
