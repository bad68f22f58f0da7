//! `scripts/set-repository.sh` writes the address of the repository wherever it belongs, in a copy of the tracked files.

use std::fs;
use std::path::Path;
use std::process::Command;

use prost::Message;
use prost_types::FileDescriptorProto;
use rlaas_testkit::TempDir;
use rlaas_testkit::tools::{finish, skipped};
use serde_json::Value;

use crate::examples::generated::descriptor_in_go;

const ADDRESS: &str = "https://github.com/acme/rlaas";
const MODULE: &str = "github.com/acme/rlaas/clients/go";
const GO_PACKAGE: &str = "github.com/acme/rlaas/clients/go/ratelimitv1;ratelimitv1";

#[test]
fn address_of_the_repository_stands_everywhere() {
    let dir = TempDir::new();
    let folder = &dir.path("copy");
    fs::create_dir(folder).expect("a folder of the test");
    let copy = "git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -x -C \"$1\"
                cd \"$1\" && git init --quiet && git add --all";
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Err(why) = run(project, "bash", &["-c", copy, "bash", &folder.to_string_lossy()]) {
        return skipped("scripts/set-repository.sh", &why);
    }
    run(folder, "scripts/set-repository.sh", &["rlaas"]).expect_err("it must be an address");
    run(folder, "scripts/set-repository.sh", &[ADDRESS]).expect("an address");
    run(folder, "scripts/set-repository.sh", &[ADDRESS]).expect_err("it is written once");

    let placeholder = concat!("rlaas.example", "/|rlaas", "/ratelimit/");
    let left = run(folder, "git", &["grep", "-InE", placeholder]);
    assert!(left.is_err(), "{left:?}");
    let read = |path: &str| fs::read_to_string(folder.join(path)).expect("a file of the project");
    for name in ["ratelimit", "reservation"] {
        let code = read(&format!("clients/go/ratelimitv1/{name}.pb.go"));
        let file = FileDescriptorProto::decode(&*descriptor_in_go(&code)).expect("a descriptor");
        assert_eq!(file.options.expect("options").go_package(), GO_PACKAGE);
    }
    for file in ["clients/node/package.json", "charts/rlaas/Chart.yaml", "install.sh"] {
        assert!(read(file).contains(ADDRESS), "{file}");
    }
    assert!(read("clients/python/pyproject.toml").contains(ADDRESS));

    let metadata = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let metadata = run(folder, env!("CARGO"), &metadata).expect("manifests that cargo reads");
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    for package in metadata["packages"].as_array().expect("a list") {
        assert_eq!(package["repository"], ADDRESS, "{}", package["name"]);
    }
    match run(&folder.join("clients/go"), "go", &["list", "-m"]) {
        Ok(module) => assert_eq!(module.trim(), MODULE),
        Err(why) => skipped("go list of the module with its address", &why),
    }
}

/// Returns the output of a command, or why it has failed.
fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let program =
        if program.starts_with("scripts/") { folder.join(program) } else { program.into() };
    finish(Command::new(program).args(arguments).current_dir(folder))
}
