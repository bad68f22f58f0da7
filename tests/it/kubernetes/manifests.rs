//! The files of `config/kubernetes`: each is valid, and each is used.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::project;
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{FREE_PORT, run};
use rlaas_testkit::tls::{Certificate, Certificates};

/// The fields of a kustomization that name files and folders.
const NAMING_FIELDS: [&str; 4] = ["resources", "components", "patches", "configMapGenerator"];

/// A kustomization and its folder.
#[derive(Debug)]
pub(super) struct Kustomization {
    pub(super) folder: PathBuf,
    value: Value,
}

impl Kustomization {
    /// Returns every kustomization in `config/kubernetes`.
    pub(super) fn all() -> Vec<Self> {
        let mut folders = vec![project("config/kubernetes")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).expect("a folder of the project");
            let paths = entries.map(|entry| entry.expect("an entry").path());
            folders.extend(paths.filter(|path| path.is_dir()));
            if folder.join("kustomization.yaml").exists() {
                let value = document(&folder.join("kustomization.yaml"));
                found.push(Self { folder, value });
            }
        }
        found
    }

    /// Reads the kustomization in this folder of `config/kubernetes`.
    fn read(folder: &str) -> Self {
        let folder = project("config/kubernetes").join(folder);
        Self { value: document(&folder.join("kustomization.yaml")), folder }
    }

    /// Returns the manifests that it includes, directly and through other folders.
    fn resources(&self) -> Vec<Value> {
        let fields = ["resources", "components"].map(|field| names(&self.value[field]));
        let paths = fields.into_iter().flatten().map(|name| self.folder.join(name));
        let resources = paths.flat_map(|path| match path.join("kustomization.yaml") {
            inner if inner.exists() => Self { value: document(&inner), folder: path }.resources(),
            _ => vec![document(&path)],
        });
        resources.collect()
    }

    /// Returns `true` if it can be built by itself: components cannot.
    pub(super) fn is_whole(&self) -> bool {
        self.value["kind"] == "Kustomization"
    }

    /// Returns the files and folders that it names.
    fn named(&self) -> Vec<PathBuf> {
        let fields = NAMING_FIELDS.into_iter().map(|field| &self.value[field]);
        fields.flat_map(names).map(|name| self.folder.join(name)).collect()
    }

    /// Returns the configuration files that become `ConfigMap`s.
    pub(super) fn configurations(&self) -> Vec<PathBuf> {
        let names = names(&self.value["configMapGenerator"]);
        names.into_iter().map(|name| self.folder.join(name)).collect()
    }

    /// Returns the manifests in its folder, including patches in the form of a manifest.
    pub(super) fn manifests(&self) -> Vec<(PathBuf, Value)> {
        let kustomization = self.folder.join("kustomization.yaml");
        let configurations = self.configurations();
        let is_manifest = |path: &PathBuf| {
            *path != kustomization && !configurations.contains(path) && path.is_file()
        };
        let paths = yaml_files(&self.folder).into_iter().filter(is_manifest);
        let manifests = paths.map(|path| (path.clone(), document(&path)));
        manifests.filter(|(_, value)| value.is_object()).collect()
    }
}

#[test]
fn manifests_have_an_api_version_a_kind_and_a_name() {
    let manifests: Vec<_> =
        Kustomization::all().iter().flat_map(Kustomization::manifests).collect();
    assert!(manifests.len() > 8, "only {} manifests", manifests.len());
    for (path, value) in manifests {
        for field in ["apiVersion", "kind"] {
            assert!(value[field].is_string(), "{}: {field}", path.display());
        }
        assert!(value["metadata"]["name"].is_string(), "{}", path.display());
    }
}

#[test]
fn kustomizations_name_every_file_and_only_existing_ones() {
    for kustomization in Kustomization::all() {
        let named: BTreeSet<PathBuf> = kustomization.named().into_iter().collect();
        for path in &named {
            assert!(path.exists(), "{}", path.display());
        }
        for path in yaml_files(&kustomization.folder) {
            let is_known = named.contains(&path) || path.ends_with("kustomization.yaml");
            assert!(is_known, "{} is not in the kustomization beside it", path.display());
        }
    }
}

#[test]
fn only_optional_kustomizations_need_custom_resources() {
    for (folder, wanted) in [
        ("shared", &[][..]),
        ("examples/network", &[]),
        ("shared-monitoring", &["ServiceMonitor"]),
        ("shared-tls", &["Certificate"]),
        ("shared-tls-monitoring", &["Certificate", "ServiceMonitor"]),
    ] {
        let resources = Kustomization::read(folder).resources();
        assert!(resources.len() >= 6, "{folder}: {resources:?}");
        // API groups of Kubernetes have no domain, or `.k8s.io`.
        let is_foreign = |manifest: &&Value| {
            let version = text(&manifest["apiVersion"]).expect("a version");
            let group = version.split_once('/').map_or("", |(group, _)| group);
            group.contains('.') && !group.ends_with(".k8s.io")
        };
        let mut foreign: Vec<String> = resources
            .iter()
            .filter(is_foreign)
            .filter_map(|manifest| text(&manifest["kind"]))
            .collect();
        foreign.sort();
        assert_eq!(foreign, wanted, "{folder}");
    }
}

#[test]
fn network_example_patches_existing_fields_of_the_policy() {
    let policy = document(&project("config/kubernetes/shared/networkpolicy.yaml"));
    let operations = document(&project("config/kubernetes/examples/network/network.yaml"));
    for operation in operations.as_array().expect("operations") {
        let path = text(&operation["path"]).expect("a path");
        let (list, end) = path.rsplit_once('/').expect("a path below the root");
        match &*text(&operation["op"]).expect("an operation") {
            "replace" => assert!(policy.pointer(&path).is_some(), "{path}"),
            "add" => {
                assert_eq!(end, "-", "{path}");
                assert!(policy.pointer(list).is_some_and(Value::is_array), "{path}");
            }
            other => panic!("{other}"),
        }
    }
    let port = |at: &str| policy.pointer(at).and_then(Value::as_u64);
    assert_eq!(
        port("/spec/egress/1/ports/0/port"),
        Some(6379),
        "the replaced port is that of Redis"
    );
}

#[test]
fn configurations_are_valid_alone() {
    let all: Vec<_> = Kustomization::all().iter().flat_map(Kustomization::configurations).collect();
    assert!(all.len() >= 4, "only {all:?}");
    let secret = secret();
    for file in all {
        let file = with_secret(&file, &secret).display().to_string();
        let (code, out, error) = run(&["check-config", &file, FREE_PORT]);
        assert_eq!((code, &*out, &*error), (0, "valid\n", ""), "{file}");
    }
}

#[test]
fn state_dir_is_in_a_volume_of_the_pod() {
    for file in ["shared/deployment.yaml", "sidecar/container.yaml"] {
        let manifest = document(&project("config/kubernetes").join(file));
        let pod = &manifest["spec"]["template"]["spec"];
        let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let containers =
            ["containers", "initContainers"].into_iter().flat_map(|of| items(&pod[of]));
        let mut found = containers.filter_map(|container| {
            let variables = items(&container["env"]);
            let folder = variables.iter().find(|one| one["name"] == "RLAAS_STATE_DIR")?;
            let folder = PathBuf::from(text(&folder["value"])?);
            let mounts = items(&container["volumeMounts"]);
            let holds = |mount: &&Value| {
                mount["readOnly"] != true
                    && text(&mount["mountPath"]).is_some_and(|path| folder.starts_with(path))
            };
            mounts.iter().find(holds).cloned()
        });
        let mount = found.next().unwrap_or_else(|| panic!("{file}: no mounted state-dir"));
        let volumes = items(&pod["volumes"]);
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        assert!(volume.is_some_and(|volume| volume["emptyDir"].is_object()), "{file}: {mount}");
    }
}

/// Writes a folder like a mounted Secret with a certificate.
pub(super) fn secret() -> TempDir {
    let certificates = Certificates::make();
    let dir = TempDir::new();
    for (name, file) in [
        ("tls.crt", certificates.certificate(Certificate::Server)),
        ("tls.key", certificates.key(Certificate::Server)),
        ("ca.crt", certificates.authority()),
    ] {
        fs::copy(file, dir.path(name)).expect("a file in a temporary directory");
    }
    dir
}

/// Writes a configuration whose paths of the mounted Secret are replaced by those of `secret`.
pub(super) fn with_secret(file: &Path, secret: &TempDir) -> PathBuf {
    let text = fs::read_to_string(file).expect("a file of the project");
    let here = secret.path("").display().to_string();
    let name = file.file_name().expect("a name").display().to_string();
    secret.write(&name, &text.replace("/etc/rlaas/tls/", &here))
}

/// Returns the names in a field of a kustomization: strings, and the `path` or `files` of items.
fn names(field: &Value) -> Vec<String> {
    let items = field.as_array().into_iter().flatten();
    let of_item = |item: &Value| match item {
        Value::String(name) => vec![name.clone()],
        _ => names(&item["files"]).into_iter().chain(text(&item["path"])).collect(),
    };
    items.flat_map(of_item).collect()
}

/// Returns the text of a string.
pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Reads a YAML file with one document.
pub(super) fn document(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a file of the project");
    let parsed = serde_saphyr::from_str(&text);
    parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the project");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}
