//! The Helm chart in `charts/rlaas`: it renders what `config/kubernetes` has, and settings that the
//! program accepts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::manifests::{document, secret, text};
use super::project;
use super::schemas::{self, VERSIONS, assert_manifests_fit, go_program};
use rlaas_testkit::TempDir;
use rlaas_testkit::process::{self, Rlaas, rlaas};
use rlaas_testkit::tools::{finish, skipped};

const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.19.0";

/// The files of values in `charts/rlaas/ci`.
const VALUES: [&str; 4] = ["memory", "redis", "tls", "all"];

/// Labels and annotations that the chart has and `config/kubernetes` has not.
const OF_HELM: [&str; 2] = ["app.kubernetes.io/instance", "checksum/config"];

/// Manifests by kind and name.
type Manifests = BTreeMap<(String, String), Value>;

#[test]
fn chart_is_for_the_version_of_the_program() {
    let chart = document(&project("charts/rlaas/Chart.yaml"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let oldest = format!(">={}-0", VERSIONS[0]);
    assert_eq!(chart["kubeVersion"], oldest, "the schemas that the manifests are validated with");
}

#[test]
fn every_value_of_the_schema_has_a_default_and_is_in_the_readme() {
    let folder = project("charts/rlaas");
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file of the chart");
    let schema = serde_json::from_str(&read("values.schema.json")).expect("JSON");
    let (values, readme) = (document(&folder.join("values.yaml")), read("README.md"));
    let paths = paths(&schema, "");
    assert!(paths.len() > 20, "{paths:?}");
    // Helm passes it to charts that are part of another one.
    for path in paths.iter().filter(|path| *path != "global") {
        assert!(readme.contains(&format!("`{path}`")), "README.md lacks {path}");
        let pointer = format!("/{}", path.replace('.', "/"));
        assert!(values.pointer(&pointer).is_some(), "values.yaml lacks {path}");
    }
}

#[test]
fn chart_fits_the_schemas() {
    let Some(helm) = helm() else { return };
    let (_, validate) = match schemas::tools() {
        Ok(tools) => tools,
        Err(why) => return skipped("charts/rlaas against schemas", why),
    };
    for values in VALUES {
        let mut lint = command(helm, &["lint", "--strict"], &[values]);
        finish(&mut lint).expect("a chart without warnings");
        assert_manifests_fit(validate, &render(helm, &[values]));
    }
}

#[test]
fn chart_renders_what_kustomize_builds() {
    let Some(helm) = helm() else { return };
    let (kustomize, _) = match schemas::tools() {
        Ok(tools) => tools,
        Err(why) => return skipped("charts/rlaas against config/kubernetes", why),
    };
    let kustomized = |folder: &str| {
        let folder = project("config/kubernetes").join(folder);
        let mut built = comparable(&schemas::build(kustomize, &folder));
        // The chart creates neither its namespace nor a certificate.
        built.retain(|(kind, _), _| kind != "Namespace" && kind != "Certificate");
        built
    };
    let rendered = comparable(&render(helm, &["redis"]));
    assert_same(&rendered, &kustomized("shared"));

    let mut built = kustomized("shared-tls-monitoring");
    merge_tls(&mut built);
    assert_same(&comparable(&render(helm, &["redis", "tls"])), &built);
}

#[test]
fn service_monitor_selects_the_service() {
    let Some(helm) = helm() else { return };
    let manifests = manifests(&render(helm, &["all"]));
    let monitor = &manifests[&named("ServiceMonitor", "rlaas")];
    let service = &manifests[&named("Service", "rlaas")];
    let selected = monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels");
    assert!(!selected.is_empty());
    for (name, value) in selected {
        assert_eq!(service["metadata"]["labels"][name], *value, "{name}");
    }
}

#[test]
fn chart_has_the_dashboard_of_the_project() {
    let read = |file: &str| fs::read_to_string(project(file)).expect("a file of the project");
    let file = read("config/grafana/rlaas.json");
    assert!(
        read("charts/rlaas/dashboard.json") == file,
        "cp config/grafana/rlaas.json charts/rlaas/dashboard.json"
    );
    let Some(helm) = helm() else { return };
    let manifests = manifests(&render(helm, &["all"]));
    let data = &manifests[&named("ConfigMap", "rlaas-dashboard")]["data"];
    let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let packed = text(&data["rlaas.json"]).expect("a text");
    assert!(parsed(&packed) == parsed(&file), "the dashboards differ");
}

#[test]
fn copied_folder_of_the_chart_renders_the_same() {
    let Some(helm) = helm() else { return };
    let dir = TempDir::new();
    let copy = dir.path("rlaas");
    finish(Command::new("cp").arg("-RP").arg(project("charts/rlaas")).arg(&copy)).expect("a copy");
    let mut template = command_for(&copy, helm, &["template", "rlaas"], &["all"]);
    let rendered = finish(&mut template).expect("manifests");
    assert!(rendered == render(helm, &["all"]), "the manifests differ");
}

#[test]
fn upgrade_is_refused_by_the_check_of_the_new_files() {
    let Some(helm) = helm() else { return };
    for (setting, code, printed) in [
        ("rules[0].limit=10", 0, "valid"),
        ("rules[0].window=400d", 64, "rules.yaml: rules[0].window"),
        ("settings.server.listen=nowhere", 64, "rlaas.yaml: server.listen"),
        ("extraEnv[0].value=loud!", 64, "RLAAS_TELEMETRY__LOG"),
    ] {
        let mut template = command(helm, &["template", "rlaas", "--set", setting], &["all"]);
        let manifests = manifests(&finish(&mut template).expect("manifests"));
        let pod = &manifests[&named("Job", "rlaas-check")]["spec"]["template"];
        assert_eq!(pod["spec"]["volumes"][0]["configMap"]["name"], "rlaas-check");
        let secret = mounted_secrets();
        for name in ["rlaas.yaml", "rules.yaml"] {
            write_settings(&secret, &manifests, "rlaas-check", name);
        }
        let container = &pod["spec"]["containers"][0];
        let arguments = items(&container["args"]).iter().filter_map(text);
        let arguments: Vec<String> = arguments.map(|one| here(&secret, &one)).collect();
        let mut check = rlaas(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        set_environment(&mut check, container, &secret);
        let (exit, out, error) = process::finish(check.output().expect("the program"));
        assert_eq!(exit, code, "{setting}: {out}{error}");
        assert!(format!("{out}{error}").contains(printed), "{setting}: {out}{error}");
    }
}

#[test]
fn service_does_not_select_the_check_of_an_upgrade() {
    let Some(helm) = helm() else { return };
    let manifests = manifests(&render(helm, &["all"]));
    let job = &manifests[&named("Job", "rlaas-check")];
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "pre-upgrade");
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    let selector = &manifests[&named("Service", "rlaas")]["spec"]["selector"];
    let selector = selector.as_object().expect("labels");
    assert!(selector.iter().any(|(name, value)| labels[name] != *value), "{labels}");
}

#[test]
fn configurations_are_in_mounted_volumes() {
    let Some(helm) = helm() else { return };
    for values in VALUES {
        let manifests = manifests(&render(helm, &[values]));
        let pod = &manifests[&named("Deployment", "rlaas")]["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let mounts = items(&container["volumeMounts"]);
        let files = items(&container["args"]).iter().filter_map(text);
        let files: Vec<String> =
            files.filter_map(|one| one.strip_prefix("--config=").map(str::to_owned)).collect();
        assert!(files.len() >= 2, "{values}: {files:?}");
        for file in files {
            let folder = Path::new(&file).parent().expect("a folder").display().to_string();
            let is_mounted = mounts.iter().any(|mount| mount["mountPath"] == folder);
            assert!(is_mounted, "{values}: {file}");
        }
        let sorted = |list: &[Value]| {
            let mut names: Vec<String> = list.iter().filter_map(|one| text(&one["name"])).collect();
            names.sort();
            names
        };
        assert_eq!(sorted(mounts), sorted(items(&pod["volumes"])), "{values}");
    }
}

#[test]
fn program_accepts_the_rendered_settings() {
    let Some(helm) = helm() else { return };
    let secret = mounted_secrets();
    for (values, store) in
        [("memory", "memory"), ("redis", "redis"), ("tls", "memory"), ("all", "redis")]
    {
        let manifests = manifests(&render(helm, &[values]));
        let mut command = rlaas(&["config"]);
        for (map, name) in [("rlaas-config", "rlaas.yaml"), ("rlaas-rules", "rules.yaml")] {
            command.arg("--config").arg(write_settings(&secret, &manifests, map, name));
        }
        let deployment = &manifests[&named("Deployment", "rlaas")];
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        set_environment(&mut command, container, &secret);
        let (code, out, error) = process::finish(command.output().expect("the program"));
        assert_eq!((code, &*error), (0, ""), "{values}");
        let effective: Value = serde_saphyr::from_str(&out).expect("YAML");
        assert_eq!(effective["store"]["backend"], store, "{values}");
        assert_eq!(effective["server"]["metrics"], "0.0.0.0:9090", "{values}");
    }
}

#[test]
fn quota_server_is_where_envoy_ai_gateway_looks_for_it() {
    let Some(helm) = helm() else { return };
    let name = "envoy-ai-gateway-ratelimit";
    let arguments = ["template", "quota", "--set=envoyAiGateway.enabled=true"];
    let mut template = command(helm, &arguments, &["redis"]);
    template.args(["--namespace", "envoy-gateway-system"]);
    let rendered = finish(&mut template).expect("manifests");
    if let Ok((_, validate)) = schemas::tools() {
        assert_manifests_fit(validate, &rendered);
    }
    let manifests = manifests(&rendered);
    let service = &manifests[&named("Service", name)]["spec"];
    let pod = &manifests[&named("Deployment", name)]["spec"]["template"];
    assert_eq!(service["type"], "ClusterIP");
    assert_eq!(service["ports"][0], json!({ "name": "grpc", "port": 8081, "targetPort": "grpc" }));
    assert_eq!(pod["metadata"]["labels"]["app"], name);
    let health = &manifests[&named("Pod", &format!("{name}-test"))]["spec"]["containers"][0];
    assert_eq!(health["args"][1], format!("--addr=http://{name}.envoy-gateway-system.svc:8081"));

    let (mut config, secret) = (rlaas(&["config"]), mounted_secrets());
    for file in ["rlaas.yaml", "rules.yaml"] {
        let map = format!("{name}-{}", file.replace("rlaas", "config").replace(".yaml", ""));
        config.arg("--config").arg(write_settings(&secret, &manifests, &map, file));
    }
    set_environment(&mut config, &pod["spec"]["containers"][0], &secret);
    let effective: Value =
        serde_saphyr::from_str(&finish(&mut config).expect("settings")).expect("YAML");
    let xds = &effective["envoy"]["xds"];
    assert_eq!((&xds["node"], &xds["wait"]), (&json!(name), &json!(false)));
    let controller = "http://ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local:18002";
    assert_eq!(xds["address"], controller);
    assert_eq!(effective["envoy"]["count-refused"], true);

    for (more, reason) in [
        (["--namespace", "rlaas"], "needs the namespace envoy-gateway-system"),
        (["--set", "console.enabled=true"], "neither with tls.existingSecret"),
        (["--set", "tls.existingSecret=a"], "neither with tls.existingSecret"),
    ] {
        let mut template = command(helm, &arguments, &["redis"]);
        template.args(["--namespace", "envoy-gateway-system"]).args(more);
        let refused = finish(&mut template).expect_err(reason);
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn wrong_values_are_refused_with_a_reason() {
    let Some(helm) = helm() else { return };
    for (setting, reason) in [
        ("replicas=3", "More than one replica needs Redis"),
        ("autoscaling.enabled=true", "More than one replica needs Redis"),
        ("replica=3", "additional properties 'replica' not allowed"),
        ("redis.url=redis://redis:6379", "additional properties 'url' not allowed"),
        ("settings.server.drain.timeout=25s", "terminationGracePeriodSeconds (30) must be above"),
        ("settings.server.drain.delay=1m 30s", "(110 s): the pod would be killed"),
        ("settings.server.drain=null", "(30 s): the pod would be killed"),
        ("tls.clientCa=true", "tls.clientCa needs tls.existingSecret"),
        (
            "podLabels.app\\.kubernetes\\.io/name=a",
            "podLabels must not have app.kubernetes.io/name",
        ),
        ("fullnameOverride=1a", "begin with a letter, as that of a Service: set fullnameOverride"),
        ("image.digest=sha256:1", "'/image/digest'"),
        (
            "serviceAccount.create=true,serviceAccount.name=default",
            "serviceAccount.name must not be",
        ),
        (
            "redis.existingSecret=a,autoscaling.enabled=true,autoscaling.minReplicas=11",
            "autoscaling.minReplicas (11) must not be above autoscaling.maxReplicas (10)",
        ),
        ("rules[0].limits=5", "additional properties 'limits' not allowed"),
        ("rate-limiter.use-algo=guess", "must be one of 'fixed-window'"),
        ("settings.store.redis.timeouts=1s", "additional properties 'timeouts' not allowed"),
    ] {
        let mut template = command(helm, &["template", "rlaas", "--set", setting], &["memory"]);
        let refused = finish(&mut template).expect_err(setting);
        assert!(refused.contains(reason), "{setting}: {refused}");
    }
}

#[test]
fn drain_that_is_shorter_than_the_grace_period_is_accepted() {
    let Some(helm) = helm() else { return };
    for drain in ["timeout=24999ms", "timeout=24", "delay=0", "timeout=0s 500 ms"] {
        let setting = format!("settings.server.drain.{drain}");
        let mut template = command(helm, &["template", "rlaas", "--set", &setting], &["memory"]);
        finish(&mut template).unwrap_or_else(|error| panic!("{drain}: {error}"));
    }
}

#[test]
fn everyday_values_are_where_they_belong() {
    let Some(helm) = helm() else { return };
    let mut template = command(helm, &["template", "rlaas", "--set=tls.clientCa=false"], &["all"]);
    let manifests = manifests(&finish(&mut template).expect("manifests"));
    let service = &manifests[&named("Service", "rlaas")];
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    assert!(service["spec"]["clusterIP"].is_null(), "{service}");
    let server = &manifests[&named("Deployment", "rlaas")]["spec"]["template"];
    let check = &manifests[&named("Job", "rlaas-check")]["spec"]["template"];
    for pod in [server, check, &manifests[&named("Pod", "rlaas-test")]] {
        assert_eq!(pod["metadata"]["labels"]["example.com/tier"], "platform", "{pod}");
        let spec = &pod["spec"];
        assert_eq!(spec["priorityClassName"], "system-cluster-critical", "{pod}");
        assert!(spec["affinity"]["nodeAffinity"].is_object(), "{pod}");
        let container = &spec["containers"][0];
        assert_eq!(container["imagePullPolicy"], "Always", "{pod}");
        let image = container["image"].as_str().expect("an image");
        assert!(image.starts_with("registry.example/rlaas:0.1.0@sha256:0"), "{image}");
    }
    // Before an upgrade the account of the new release is not there yet.
    assert_eq!(server["spec"]["serviceAccountName"], "rlaas");
    assert!(check["spec"]["serviceAccountName"].is_null(), "{check}");
    assert_eq!(manifests[&named("ConfigMap", "rlaas-extra")]["data"]["release"], "rlaas");
}

#[test]
fn test_of_the_release_asks_the_server() {
    let Some(helm) = helm() else { return };
    let secret = secret();
    let tls = ["cert=tls.crt", "key=tls.key"].map(|file| {
        format!("server.tls.{}", file.replace('=', &format!("={}/", secret.path("").display())))
    });
    for (values, settings) in [("memory", &[][..]), ("tls", &tls)] {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let server = Rlaas::start(&settings);
        let manifests = manifests(&render(helm, &[values]));
        let pod = &manifests[&named("Pod", "rlaas-test")];
        assert_eq!(pod["metadata"]["labels"]["rlaas-client"], "true", "the NetworkPolicy");
        let port = server.grpc().rsplit(':').next().expect("a port");
        let address = |text: String| {
            here(&secret, &text).replace("rlaas.rlaas.svc:50051", &format!("localhost:{port}"))
        };
        let arguments = items(&pod["spec"]["containers"][0]["args"]).iter().filter_map(text);
        let arguments: Vec<String> = arguments.map(address).collect();
        let mut health = rlaas(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let answer = finish(&mut health).expect("a server that is ready");
        assert!(answer.contains("SERVING"), "{answer}");
    }
}

/// Returns helm, which is built once, or reports that the test is skipped.
fn helm() -> Option<&'static Path> {
    static PROGRAM: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| go_program("helm", HELM));
    match &*PROGRAM {
        Ok(program) => Some(program),
        Err(why) => {
            skipped("charts/rlaas", why);
            None
        }
    }
}

/// Returns a folder with the files of the Secrets that pods mount.
fn mounted_secrets() -> TempDir {
    let secret = secret();
    secret.write("key", &"0".repeat(64));
    secret.write("auth.yaml", "auth: {}");
    secret
}

/// Returns a text in which the folders of a pod are this one.
fn here(folder: &TempDir, text: &str) -> String {
    let here = folder.path("").display().to_string();
    let folders = ["config", "rules", "auth", "tls", "privacy"];
    folders
        .iter()
        .fold(text.to_owned(), |text, one| text.replace(&format!("/etc/rlaas/{one}/"), &here))
}

/// Writes a file of a `ConfigMap`, and returns its path.
fn write_settings(folder: &TempDir, manifests: &Manifests, map: &str, name: &str) -> PathBuf {
    let settings = text(&manifests[&named("ConfigMap", map)]["data"][name]).expect("a text");
    folder.write(name, &here(folder, &settings))
}

/// Sets the variables of a container, those from Secrets to an address.
fn set_environment(command: &mut Command, container: &Value, folder: &TempDir) {
    for variable in items(&container["env"]) {
        let name = text(&variable["name"]).expect("a name");
        let value = text(&variable["value"]).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
        let state = folder.path("state").display().to_string();
        command.env(name, value.replace("/var/lib/rlaas/state", &state));
    }
}

/// Returns a command of helm for the chart with these files of values.
fn command(helm: &Path, arguments: &[&str], values: &[&str]) -> Command {
    command_for(&project("charts/rlaas"), helm, arguments, values)
}

fn command_for(chart: &Path, helm: &Path, arguments: &[&str], values: &[&str]) -> Command {
    let mut command = Command::new(helm);
    command.args(arguments).arg(chart);
    command.args(["--namespace", "rlaas", "--kube-version", VERSIONS[0]]);
    for name in values {
        let file = project("charts/rlaas/ci").join(format!("{name}-values.yaml"));
        command.arg("--values").arg(file);
    }
    command
}

fn render(helm: &Path, values: &[&str]) -> String {
    finish(&mut command(helm, &["template", "rlaas"], values)).expect("manifests")
}

fn manifests(yaml: &str) -> Manifests {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
    let all = documents.into_iter().filter(Value::is_object).map(|manifest| {
        let name = text(&manifest["metadata"]["name"]).expect("a name");
        (named(&text(&manifest["kind"]).expect("a kind"), &name), manifest)
    });
    all.collect()
}

fn named(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Returns manifests in a form in which those of Helm and of kustomize are equal, without hooks of Helm.
fn comparable(yaml: &str) -> Manifests {
    let mut manifests = manifests(yaml);
    manifests.retain(|_, manifest| manifest["metadata"]["annotations"]["helm.sh/hook"].is_null());
    let simplified = manifests.into_iter().map(|((kind, name), mut manifest)| {
        manifest["metadata"] = json!({});
        if let Some(data) = manifest["data"].as_object_mut() {
            for file in data.values_mut() {
                let content = text(file).expect("a text");
                *file = serde_saphyr::from_str(&content).expect("YAML");
            }
        }
        simplify(&mut manifest);
        ((kind, without_hash(&name).to_owned()), manifest)
    });
    simplified.collect()
}

/// Removes what only Helm adds, hashes in names, and the order of lists of named items.
fn simplify(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !OF_HELM.contains(&&**name));
            fields.values_mut().for_each(simplify);
            fields.retain(|name, field| name != "annotations" || *field != json!({}));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(simplify);
            items.sort_by_key(|item| text(&item["name"]));
        }
        Value::String(string) => *string = without_hash(string).to_owned(),
        _ => {}
    }
}

/// Returns the name that kustomize has appended a hash to.
fn without_hash(name: &str) -> &str {
    ["rlaas-config", "rlaas-tls"]
        .into_iter()
        .find(|base| name.strip_prefix(base).is_some_and(|rest| rest.starts_with('-')))
        .unwrap_or(name)
}

/// Moves what `shared-tls` has in a file of its own into `rlaas.yaml`, where the chart has it.
fn merge_tls(built: &mut Manifests) {
    let tls = built.remove(&named("ConfigMap", "rlaas-tls")).expect("a ConfigMap");
    let config = built.get_mut(&named("ConfigMap", "rlaas-config")).expect("a ConfigMap");
    config["data"]["rlaas.yaml"]["server"]["tls"] =
        tls["data"]["tls.yaml"]["server"]["tls"].clone();
    let deployment = built.get_mut(&named("Deployment", "rlaas")).expect("a Deployment");
    let pod = &mut deployment["spec"]["template"]["spec"];
    for list in ["/volumes", "/containers/0/volumeMounts", "/containers/0/args"] {
        let list = pod.pointer_mut(list).and_then(Value::as_array_mut).expect("a list");
        let all = list.len();
        list.retain(|item| {
            item["name"] != "tls-config" && *item != "--config=/etc/rlaas/tls-config/tls.yaml"
        });
        assert_eq!(list.len(), all - 1);
    }
}

fn assert_same(rendered: &Manifests, built: &Manifests) {
    assert_eq!(rendered.keys().collect::<Vec<_>>(), built.keys().collect::<Vec<_>>());
    for (name, manifest) in rendered {
        let pretty = |one: &Value| serde_json::to_string_pretty(one).expect("JSON");
        let (rendered, built) = (pretty(manifest), pretty(&built[name]));
        assert!(rendered == built, "{name:?} of the chart: {rendered}\nof kustomize: {built}");
    }
}

/// Returns the paths of the values that a schema lists.
fn paths(schema: &Value, path: &str) -> Vec<String> {
    let properties = schema["properties"].as_object();
    // The settings of the program are in its own reference.
    let is_of_program = ["rules", "rate-limiter", "settings"].contains(&path);
    let is_closed = schema["additionalProperties"] == false && !is_of_program;
    let Some(properties) = properties.filter(|_| is_closed) else {
        return vec![path.to_owned()];
    };
    let inner = properties.iter().flat_map(|(name, inner)| {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        paths(inner, &path)
    });
    inner.collect()
}
