//! Errors of `check` and `health` without a response: one line that names the cause and the remedy.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use rlaas_testkit::process::{Rlaas, run};
use rlaas_testkit::redis::free_port;
use rlaas_testkit::tls::{Certificate, Certificates};

/// Starts a server that handles every connection with `handle`, and returns its address.
fn serve_each(handle: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || handle(connection));
        }
    });
    address
}

/// Reads until the client closes the connection.
fn drain(mut connection: TcpStream) {
    let mut buffer = [0; 1024];
    while connection.read(&mut buffer).is_ok_and(|read| read > 0) {}
}

fn reply_in_http_1(mut connection: TcpStream) {
    let _gone = connection.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    drain(connection);
}

fn reply_as_redis(mut connection: TcpStream) {
    let _gone = connection.write_all(b"-ERR unknown command 'PRI'\r\n");
    drain(connection);
}

/// Asserts that `check` and `health` fail with exactly this message.
fn assert_explained(options: &[&str], expected: &str) {
    for command in [&["check", "alice"][..], &["health"]] {
        let (code, out, error) = run(&[command, options].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{options:?}: {error}");
        assert_eq!(error, format!("rlaas: {expected}\n"), "{options:?}");
    }
}

/// Returns the message about a server that does not answer gRPC, or not without TLS or a certificate.
fn no_grpc(addr: &str) -> String {
    let remedy = match addr.strip_prefix("https://") {
        Some(_) => "with --cert and --key if it requires a client certificate".to_owned(),
        None => format!("https://{addr} with --ca if it requires TLS"),
    };
    format!("{addr} does not answer gRPC: --addr must be an address of server.listen, {remedy}")
}

#[test]
fn unreachable_server_is_explained() {
    let unreachable = format!("127.0.0.1:{}", free_port());
    assert_explained(
        &["--addr", &unreachable],
        &format!("no server at {unreachable}: connection refused (is `rlaas serve` running?)"),
    );
    assert_explained(
        &["--addr", "unix:/nowhere"],
        "no server at unix:/nowhere: no such file or directory (is `rlaas serve` running?)",
    );
}

#[test]
fn slow_server_is_explained() {
    let silent = serve_each(drain);
    for addr in [silent.clone(), format!("https://{silent}")] {
        assert_explained(
            &["--addr", &addr, "--timeout", "100ms"],
            &format!("no response from {addr} within 100ms (--timeout)"),
        );
    }
    for wrong in ["0s", "2h", "5", "soon"] {
        let (code, _, error) = run(&["check", "alice", "--timeout", wrong]);
        assert_eq!(code, 2);
        assert!(error.contains("--timeout") && error.contains("must be a duration"), "{error}");
    }
}

#[test]
fn other_protocol_is_explained() {
    for other in [serve_each(reply_in_http_1), serve_each(reply_as_redis)] {
        assert_explained(&["--addr", &other], &no_grpc(&other));
    }
    let closing = serve_each(drop);
    let plain = Rlaas::start(&[]);
    for other in [&*closing, plain.http()] {
        assert_explained(&["--addr", other], &no_grpc(other));
    }
    assert_explained(
        &["--addr", &format!("https://{}", plain.grpc())],
        &format!("https://{0} does not speak TLS: try http://{0}", plain.grpc()),
    );
}

#[test]
fn tls_errors_are_explained() {
    let certificates = Certificates::make();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let start = |certificate, more: &[&str]| {
        let cert = format!("server.tls.cert={}", path(certificates.certificate(certificate)));
        let key = format!("server.tls.key={}", path(certificates.key(certificate)));
        Rlaas::start(&[&[&*cert, &key], more].concat())
    };
    let ca = path(certificates.authority());
    let tls = start(Certificate::Server, &[]);
    assert_explained(&["--addr", tls.grpc()], &no_grpc(tls.grpc()));
    let http = format!("https://{}", tls.http());
    assert_explained(&["--addr", &http, "--ca", &ca], &no_grpc(&http));

    let url = format!("https://{}", tls.grpc());
    let not_trusted =
        |url: &str, why: &str| format!("the certificate of {url} is not trusted: {why}");
    let unknown = "unknown issuer, --ca must name the file of its authority";
    assert_explained(&["--addr", &url], &not_trusted(&url, unknown));
    for (certificate, why) in [
        (Certificate::Expired, "it has expired"),
        (Certificate::WrongHost, "it is for another host name"),
    ] {
        let server = start(certificate, &[]);
        let url = format!("https://{}", server.grpc());
        assert_explained(&["--addr", &url, "--ca", &ca], &not_trusted(&url, why));
    }

    let mutual = start(Certificate::Server, &[&format!("server.tls.client-ca={ca}")]);
    let url = format!("https://{}", mutual.grpc());
    let options = ["--addr", &url, "--ca", &ca];
    assert_explained(&options, &no_grpc(&url));
    let cert = path(certificates.certificate(Certificate::ForeignClient));
    let key = path(certificates.key(Certificate::ForeignClient));
    let refused = "must be an address of server.listen, and --cert a certificate that it accepts";
    assert_explained(
        &[&options[..], &["--cert", &cert, "--key", &key]].concat(),
        &format!("{url} does not answer gRPC: --addr {refused}"),
    );
}
