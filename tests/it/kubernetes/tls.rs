//! The variant with TLS: its configuration, its probes and its mounts.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::manifests::{document, secret, text, with_secret};
use super::project;
use rlaas_testkit::process::{Rlaas, rlaas};

#[test]
fn tls_variant_answers_its_own_probes() {
    let folder = project("config/kubernetes/shared-tls");
    let secret = secret();
    let mut command = rlaas(&["serve", "--config"]);
    command.arg(project("config/kubernetes/shared/rlaas.yaml"));
    command.arg("--config").arg(with_secret(&folder.join("tls.yaml"), &secret));
    let server =
        Rlaas::start_with(command, &["store.backend=memory", "server.metrics=127.0.0.1:0"]);

    let patch = document(&folder.join("deployment.yaml"));
    let container = &patch["spec"]["template"]["spec"]["containers"][0];
    let probes = ["startupProbe", "readinessProbe", "livenessProbe"].map(|kind| &container[kind]);
    for probe in probes {
        // The kubelet cannot probe gRPC over TLS.
        assert!(probe["grpc"].is_null() && probe.get("grpc").is_some(), "{probe}");
        let asked = &probe["httpGet"];
        assert_eq!((&asked["scheme"], &asked["port"]), (&"HTTPS".into(), &"http".into()));
        let answer = get(server.http(), &text(&asked["path"]).expect("a path"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[test]
fn tls_variant_mounts_the_files_it_reads() {
    let folder = project("config/kubernetes/shared-tls");
    let patch = document(&folder.join("deployment.yaml"));
    let pod = &patch["spec"]["template"]["spec"];
    let mounted = |volume: &str| {
        let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
        let mount = mounts.iter().find(|mount| mount["name"] == volume).expect("a mount");
        text(&mount["mountPath"]).expect("a path")
    };
    let settings = document(&folder.join("tls.yaml"));
    let file = |key: &str| text(&settings["server"]["tls"][key]).expect("a path");
    assert_eq!(file("cert"), format!("{}/tls.crt", mounted("tls")));
    assert_eq!(file("key"), format!("{}/tls.key", mounted("tls")));
    let argument = &document(&folder.join("arguments.yaml"))[0]["value"];
    assert_eq!(*argument, format!("--config={}/tls.yaml", mounted("tls-config")));
    let certificate = document(&folder.join("certificate.yaml"));
    assert_eq!(certificate["spec"]["secretName"], pod["volumes"][1]["secret"]["secretName"]);
}

/// Sends a GET over HTTPS without verifying the certificate, as the kubelet does.
fn get(address: &str, path: &str) -> String {
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl");
    let request = format!("GET {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n");
    let mut input = client.stdin.take().expect("a pipe");
    input.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    let mut output = client.stdout.take().expect("a pipe");
    output.read_to_string(&mut answer).expect("UTF-8");
    client.wait().expect("a child process");
    answer
}
