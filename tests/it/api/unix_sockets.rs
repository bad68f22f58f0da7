//! Unix domain sockets, instead of TCP and in addition to it.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tokio::net::UnixStream;

use rlaas_testkit::process::{Client, Rlaas, check, connect, finish, rlaas, run};
use rlaas_testkit::redis::free_port;
use rlaas_testkit::{TempDir, eventually};

/// Returns the address of a socket in a directory.
fn socket(dir: &TempDir, name: &str) -> String {
    format!("unix:{}", dir.path(name).display())
}

#[tokio::test]
async fn grpc_and_http_are_served_over_unix_sockets() {
    let dir = TempDir::new();
    let (grpc, http) = (socket(&dir, "grpc.sock"), socket(&dir, "http.sock"));
    let settings = [format!("server.listen={grpc}"), format!("server.http={http}")];
    let mut server = Rlaas::start(&settings.each_ref().map(String::as_str));
    assert_eq!(server.grpc(), grpc);
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);
    assert_eq!(server.get("/readyz").await, (200, "ready\n".to_owned()));
    for name in ["grpc.sock", "http.sock"] {
        let mode = std::fs::metadata(dir.path(name)).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o660, "owner and group");
    }
    let _silent = UnixStream::connect(dir.path("grpc.sock")).await.expect("a connection");
    server.signal("TERM");
    eventually("the end", Duration::from_secs(5), async || server.has_ended()).await;
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert!(!dir.path("grpc.sock").exists() && !dir.path("http.sock").exists());
}

#[tokio::test]
async fn unix_socket_and_tcp_reach_the_same_server() {
    let dir = TempDir::new();
    let socket = socket(&dir, "rlaas.sock");
    let server = Rlaas::start(&[&format!("server.listen=127.0.0.1:0,{socket}")]);
    let addresses: Vec<&str> = server.grpc().split(',').collect();
    assert_eq!(addresses[1], socket);
    for (count, address) in addresses.into_iter().enumerate() {
        let mut client = Client::new(connect(address).await);
        let response = check(&mut client, "alice").await.expect("an answer");
        assert_eq!(usize::try_from(response.current_count), Ok(count), "{address}");
    }
}

#[test]
fn commands_accept_unix_socket_addresses() {
    let dir = TempDir::new();
    let socket = socket(&dir, "rlaas.sock");
    let _server = Rlaas::start(&[&format!("server.listen={socket}")]);
    for addr in [socket.clone(), socket.replace("unix:", "unix://")] {
        let (code, out, error) = run(&["check", "alice", "--addr", &addr]);
        assert_eq!(code, 0, "{error}");
        assert!(out.starts_with("allowed  alice: "), "{out}");
        let (code, out, error) = run(&["health", "--addr", &addr]);
        assert_eq!((code, out.as_str()), (0, "SERVING\n"), "{error}");
    }
    let nobody = dir.path("nobody.sock");
    let (code, _, error) = run(&["health", "--addr", &format!("unix:{}", nobody.display())]);
    assert_eq!(code, 2);
    assert!(error.contains("no server at unix:"), "{error}");
}

#[tokio::test]
async fn stale_socket_is_replaced() {
    let dir = TempDir::new();
    let socket = socket(&dir, "rlaas.sock");
    let setting = format!("server.listen={socket}");
    let mut crashed = Rlaas::start(&[&setting]);
    crashed.signal("KILL");
    crashed.wait();
    assert!(dir.path("rlaas.sock").exists(), "left behind");
    let server = Rlaas::start(&[&setting]);
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);
}

#[tokio::test]
async fn socket_in_use_and_other_files_are_not_replaced() {
    let dir = TempDir::new();
    let path = socket(&dir, "rlaas.sock");
    let server = Rlaas::start(&[&format!("server.listen={path}")]);
    let precious = dir.write("precious", "not a socket");
    for taken in [path.clone(), socket(&dir, "precious")] {
        let listen = format!("server.listen={taken}");
        let (code, _, error) =
            run(&["serve", "--set", &listen, "--set", "server.http=127.0.0.1:0"]);
        assert_eq!(code, 1);
        let names = [taken.as_str(), "server.listen", "in use"];
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
    assert_eq!(std::fs::read_to_string(precious).expect("a file"), "not a socket");
    assert!(check(&mut server.client().await, "alice").await.expect("an answer").allowed);
}

#[test]
fn failed_start_leaves_no_socket() {
    let dir = TempDir::new();
    let listen = format!("server.listen={}", socket(&dir, "rlaas.sock"));
    let nowhere = format!("server.http=unix:{}", dir.path("missing/http.sock").display());
    let (code, _, error) = run(&["serve", "--set", &listen, "--set", &nowhere]);
    assert_eq!(code, 1);
    assert!(error.contains("server.http"), "{error}");
    assert!(!dir.path("rlaas.sock").exists());
}

#[test]
fn foreign_socket_at_the_path_is_not_removed() {
    let dir = TempDir::new();
    let path = dir.path("rlaas.sock");
    let mut server = Rlaas::start(&[&format!("server.listen=unix:{}", path.display())]);
    std::fs::remove_file(&path).expect("a socket");
    let _other = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert!(path.exists());
}

#[test]
fn commands_use_the_socket_of_their_environment() {
    let dir = TempDir::new();
    let socket = socket(&dir, "rlaas.sock");
    let _server = Rlaas::start(&[&format!("server.listen={socket}")]);
    let listen = format!("{socket},127.0.0.1:{}", free_port());
    let mut command = rlaas(&["health"]);
    let output = command.env("RLAAS_SERVER__LISTEN", listen).output();
    let (code, out, error) = finish(output.expect("the program"));
    assert_eq!((code, out.as_str()), (0, "SERVING\n"), "{error}");
}
