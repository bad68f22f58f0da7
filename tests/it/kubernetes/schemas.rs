//! The output of kustomize, validated with the schemas of Kubernetes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::manifests::Kustomization;
use rlaas_testkit::TempDir;
use rlaas_testkit::tools::{cache_dir, fetch, finish, skipped};

/// The oldest version with native sidecars by default, and the newest with schemas.
pub(super) const VERSIONS: [&str; 2] = ["1.29.0", "1.37.0"];

/// Custom resources, for which Kubernetes has no schemas.
const FOREIGN: [&str; 2] = ["ServiceMonitor", "Certificate"];

const KUSTOMIZE: &str = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1";
const VALIDATE: &str = "kubernetes-validate==1.37.0";

#[test]
fn manifests_build_and_fit_the_schemas() {
    check(&|_| true);
}

#[test]
fn manifest_of_the_service_builds_and_fits_the_schema() {
    check(&|kustomization| kustomization.folder.ends_with("kubernetes/shared"));
}

/// Builds these kustomizations, and validates them.
fn check(is_checked: &dyn Fn(&Kustomization) -> bool) {
    let (kustomize, validate) = match tools() {
        Ok(tools) => tools,
        Err(why) => return skipped("config/kubernetes against schemas", why),
    };
    let all = Kustomization::all();
    let checked: Vec<_> = all.iter().filter(|one| one.is_whole() && is_checked(one)).collect();
    assert!(!checked.is_empty(), "no kustomization is checked");
    for kustomization in checked {
        assert_fits_the_schemas(kustomize, validate, kustomization);
    }
}

fn assert_fits_the_schemas(kustomize: &Path, validate: &Path, kustomization: &Kustomization) {
    let manifests = build(kustomize, &kustomization.folder);
    if kustomization.folder.ends_with("examples/network") {
        for (port, is_open) in [(6379, false), (6380, true), (26379, true), (4317, true)] {
            assert_eq!(manifests.contains(&format!("port: {port}\n")), is_open, "{port}");
        }
    }
    assert_manifests_fit(validate, &manifests);
}

/// Returns the manifests of a kustomization.
pub(super) fn build(kustomize: &Path, folder: &Path) -> String {
    finish(Command::new(kustomize).arg("build").arg(folder)).expect("manifests")
}

/// Validates manifests, a Deployment among them, with the schemas of each version.
pub(super) fn assert_manifests_fit(validate: &Path, manifests: &str) {
    let dir = TempDir::new();
    let file = dir.path("built.yaml");
    for version in VERSIONS {
        fs::write(&file, manifests).expect("a file below target");
        let output = finish(&mut validation(validate, &file, version)).expect("valid manifests");
        let unknown: Vec<&str> = output.lines().filter(|line| line.contains("WARN")).collect();
        let is_foreign = |line: &&str| FOREIGN.iter().any(|kind| line.contains(kind));
        assert!(unknown.iter().all(is_foreign), "{unknown:?}");
        assert!(output.contains("passed for resource"), "{output}");
        if !manifests.contains("kind: Deployment") {
            continue;
        }
        assert!(output.contains("passed for resource deployment/"), "{output}");

        let wrong = manifests.replace("restartPolicy:", "restartPolicies:");
        let wrong = wrong.replace("topologyKey:", "topologyKeys:");
        fs::write(&file, wrong).expect("a file below target");
        let refused = finish(&mut validation(validate, &file, version));
        assert!(refused.is_err(), "a misspelled field was accepted: {refused:?}");
    }
}

fn validation(packages: &Path, file: &Path, version: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "kubernetes_validate", "--strict", "-k", version]).arg(file);
    command.env("PYTHONPATH", packages);
    command
}

/// Returns kustomize and the folder of kubernetes-validate.
pub(super) fn tools() -> Result<&'static (PathBuf, PathBuf), &'static str> {
    static TOOLS: LazyLock<Result<(PathBuf, PathBuf), String>> =
        LazyLock::new(|| Ok((go_program("kustomize", KUSTOMIZE)?, validate()?)));
    TOOLS.as_ref().map_err(String::as_str)
}

/// Returns the program of a Go package, which is built once.
pub(super) fn go_program(name: &str, package: &str) -> Result<PathBuf, String> {
    let folder = cache_dir("kubernetes");
    let program = folder.join(name);
    if !program.exists() {
        let mut install = Command::new("go");
        install.args(["install", package]).env("GOBIN", &folder);
        install.envs([("GOFLAGS", "-modcacherw"), ("GOTOOLCHAIN", "local")]);
        install.env("GOMODCACHE", folder.join("go")).env("GOCACHE", folder.join("build"));
        fetch(&install)?;
    }
    Ok(program)
}

/// Returns the folder of kubernetes-validate, which is installed once.
fn validate() -> Result<PathBuf, String> {
    let packages = cache_dir("kubernetes").join("packages");
    if !packages.join("kubernetes_validate").exists() {
        let mut install = Command::new("python3");
        install.args(["-m", "pip", "install", "-q", "--retries", "1", VALIDATE, "--target"]);
        fetch(install.arg(&packages))?;
    }
    Ok(packages)
}
