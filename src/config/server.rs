//! The sections `server`, `http`, `grpc` and `health`.

use std::time::Duration;

use figment::value::Value;
use rlaas_auth::{HostName, HostNameError, HostNames};

use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, Read, pem_path};
use crate::api::http::{Cors, PageOrigin, PageOriginError};
use crate::server::{
    ConnectionSettings, ListenAddress, ServerSettings, StoreHealth, Tls, TlsError, TlsFiles,
};

const SERVER: Setting = Setting::new("server", "Listeners, connections and the drain.");
const NAME: Setting = Setting::new(
    "name",
    "Name of the cluster for people, which the console shows on every page: up to 64 characters.",
);
const LISTEN: Setting =
    Setting::new("listen", "Addresses of gRPC: one, or a list. Port 0 selects a free port.");
const HTTP: Setting = Setting::new(
    "http",
    "Addresses of HTTP, in the same format: the check endpoints, /metrics, /livez and \
     /readyz.",
);
const CONSOLE: Setting =
    Setting::new("console", "Addresses of the console: pages for people, at /console.");
const METRICS: Setting = Setting::new(
    "metrics",
    "Addresses of /metrics alone, which is then not on server.http. Without it, /metrics on server.http \
     counts all projects as other if another machine can reach an address of server.http, except for \
     callers with the role metrics.",
);
const WORKERS: Setting =
    Setting::new("workers", "Number of worker threads. auto is one for each core.");
const DRAIN: Setting = Setting::new("drain", "The end of the server, after SIGTERM or SIGINT.");
const DRAIN_DELAY: Setting =
    Setting::new("delay", "Delay between health NOT_SERVING and closing the listeners.");
const DRAIN_TIMEOUT: Setting = Setting::new("timeout", "Maximum wait for requests in flight.");
const MAX_CONNECTION_AGE: Setting = Setting::new(
    "max-connection-age",
    "Connections receive GOAWAY at a random point between 50 % and 100 % of this age, so that \
     clients reconnect and load reaches new instances. never is no maximum.",
);
const MAX_CONNECTION_AGE_GRACE: Setting = Setting::new(
    "max-connection-age-grace",
    "Time for streams to end after GOAWAY. Calls in flight always complete.",
);
const KEEPALIVE: Setting =
    Setting::new("keepalive", "HTTP/2 PING frames that find dead connections.");
const KEEPALIVE_INTERVAL: Setting =
    Setting::new("interval", "Time without data from the client after which a PING is sent.");
const KEEPALIVE_TIMEOUT: Setting = Setting::new(
    "timeout",
    "Time without a response to the PING after which the connection is closed.",
);
const LIMITS: Setting = Setting::new("limits", "Bounds for all clients and for each.");
const CONNECTIONS: Setting = Setting::new(
    "connections",
    "Maximum number of open gRPC connections, and the same number for HTTP. The limit of open \
     files may lower it.",
);
const CONNECTIONS_PER_ADDRESS: Setting = Setting::new(
    "connections-per-address",
    "Maximum number from one IPv4 address or one IPv6 /64 network.",
);
const STREAMS: Setting =
    Setting::new("streams", "Maximum number of concurrent calls on one connection.");
const REQUEST_TIME: Setting = Setting::new(
    "request-time",
    "Maximum time for a request to arrive, from its first byte to its last, and for a \
     connection without a request to stay silent. Streams have no such limit.",
);
const HTTP_RESPONSES: Setting = Setting::new("http", "Requests and responses over HTTP.");
const HTTP_HOSTS: Setting = Setting::new(
    "hosts",
    "Names of this server, without port, that a local administrative call may have in Host (over \
     gRPC in :authority), beside localhost and loopback addresses. For calls while auth lists \
     nobody; up to 100.",
);
const HTTP_HEADERS: Setting = Setting::new(
    "headers",
    "Rate limit headers of responses: draft (RateLimit-Policy and RateLimit of the IETF), \
     legacy (RateLimit-Limit, -Remaining, -Reset), both or none. Denials have Retry-After in \
     any case.",
);
const GRPC_RESPONSES: Setting = Setting::new("grpc", "Responses over gRPC.");
const GRPC_HEADERS: Setting = Setting::new(
    "headers",
    "The same headers as metadata of responses to Check, with retry-after. Batches and \
     streams have none: their items differ.",
);
const HEALTH: Setting = Setting::new("health", "Readiness of the server.");
const REQUIRE_STORE: Setting = Setting::new(
    "require-store",
    "true: not ready while the store is unavailable. false: ready once the store has \
     answered. All replicas share the store, so removing them all does not help.",
);

const HTTP_CORS: Setting = Setting::new(
    "cors",
    "Origins whose pages may read decisions (POST /v1/check, GET and POST /check), such as \
     https://app.example; up to 100. Never for administration.",
);

pub(super) fn read(root: &mut Section<'_>) -> ServerSettings {
    let mut section = root.section(SERVER);
    let name = section.read(NAME, "", name);
    let listen = section.read(LISTEN, "127.0.0.1:50051", values::addresses);
    let http = section.read(HTTP, "127.0.0.1:8080", values::addresses);
    let console = section.read(CONSOLE, "off", or_off);
    let metrics = section.read(METRICS, "off", or_off);
    let workers = section.read(WORKERS, "auto", values::workers);
    let (tls, tls_for_http) = read_tls(&mut section);
    let connection = connection(&mut section);
    let mut drain = section.section(DRAIN);
    let drain_delay = drain.read(DRAIN_DELAY, "0s", values::pause);
    let drain_timeout = drain.read(DRAIN_TIMEOUT, "30s", values::pause);
    drain.close();
    section.close();
    let mut http_section = root.section(HTTP_RESPONSES);
    let http_headers = http_section.read(HTTP_HEADERS, "draft", values::limit_headers);
    let http_hosts = http_section.read(HTTP_HOSTS, "", hosts);
    let http_cors = http_section.read(HTTP_CORS, "", cors);
    http_section.close();
    let mut grpc_section = root.section(GRPC_RESPONSES);
    let grpc_headers = grpc_section.read(GRPC_HEADERS, "none", values::limit_headers);
    grpc_section.close();
    let store_health = store_health(root);
    ServerSettings {
        listen,
        name,
        http,
        console,
        metrics,
        tls,
        tls_for_http,
        workers,
        connection,
        drain_delay,
        drain_timeout,
        store_health,
        http_hosts,
        http_cors,
        http_headers,
        grpc_headers,
    }
}

fn name(value: &Value) -> Read<String> {
    let is_shown = |c: char| !c.is_control() && (c == ' ' || !c.is_whitespace());
    let name = values::scalar(value).filter(|text| {
        text.chars().count() <= 64 && text.trim() == text && text.chars().all(is_shown)
    });
    let name = name.ok_or(Invalid::new("must be up to 64 visible characters"))?;
    Ok((name.clone(), name))
}

fn or_off(value: &Value) -> Read<Vec<ListenAddress>> {
    const VALID: &str = "must be off or host:port, such as 127.0.0.1:8081, or unix:/path of up to 107 \
                         bytes; or a list of addresses";
    match value {
        // YAML reads off as false.
        Value::Bool(_, false) => Ok((Vec::new(), "off".to_owned())),
        _ if value.as_str() == Some("off") => Ok((Vec::new(), "off".to_owned())),
        _ => values::addresses(value).map_err(|_| Invalid::new(VALID)),
    }
}

fn cors(value: &Value) -> Read<Option<Cors>> {
    let texts = values::any_listed(value).map_err(|_| PageOriginError)?;
    if texts.len() > Cors::MAX {
        return Err(Invalid::new("must be at most 100 origins"));
    }
    let origins = texts.iter().map(|text| text.parse()).collect::<Result<Vec<PageOrigin>, _>>()?;
    Ok((Cors::new(origins), format!("[{}]", texts.join(", "))))
}

fn hosts(value: &Value) -> Read<HostNames> {
    let texts = values::any_listed(value).map_err(|_| HostNameError)?;
    if texts.len() > HostNames::MAX {
        return Err(Invalid::new("must be at most 100 names"));
    }
    let names: Vec<HostName> = texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    Ok((HostNames::new(names), format!("[{}]", texts.join(", "))))
}

fn connection(server: &mut Section<'_>) -> ConnectionSettings {
    let max_age = server.read(MAX_CONNECTION_AGE, "30m", max_age);
    let max_age_grace = server.read(MAX_CONNECTION_AGE_GRACE, "10s", values::pause);
    let mut keepalive = server.section(KEEPALIVE);
    let keepalive_interval = keepalive.read(KEEPALIVE_INTERVAL, "20s", timeout);
    let keepalive_timeout = keepalive.read(KEEPALIVE_TIMEOUT, "20s", timeout);
    keepalive.close();
    let mut limits = server.section(LIMITS);
    let connections = limits.read(CONNECTIONS, "10000", values::count(1_000_000));
    let connections_per_address =
        limits.read(CONNECTIONS_PER_ADDRESS, "1000", values::count(1_000_000));
    let streams = limits.read(STREAMS, "1024", values::count(65_536));
    let request_time = limits.read(REQUEST_TIME, "10s", timeout);
    limits.close();
    ConnectionSettings {
        max_age,
        max_age_grace,
        keepalive_interval,
        keepalive_timeout,
        connections,
        connections_per_address,
        streams,
        request_time,
    }
}

fn store_health(root: &mut Section<'_>) -> StoreHealth {
    let mut section = root.section(HEALTH);
    let require_store = section.read(REQUIRE_STORE, "false", values::boolean);
    section.close();
    if require_store { StoreHealth::Required } else { StoreHealth::Reported }
}

fn max_age(value: &Value) -> Read<Option<Duration>> {
    const VALID: &str = "must be never or a duration from 1s to 30d, such as 30m";
    if value.as_str() == Some("never") {
        return Ok((None, "never".to_owned()));
    }
    let range = Duration::from_secs(1)..=Duration::from_hours(30 * 24);
    let (age, shown) = values::duration(value, range, VALID)?;
    Ok((Some(age), shown))
}

fn timeout(value: &Value) -> Read<Duration> {
    let range = Duration::from_secs(1)..=Duration::from_hours(1);
    values::duration(value, range, "must be a duration from 1s to 1h, such as 20s")
}

const TLS: Setting = Setting::new(
    "tls",
    "TLS for TCP connections; Unix domain sockets are not encrypted. The files are reloaded \
     when they change.",
);
const CERT: Setting = Setting::new("cert", "PEM file of the server's certificate chain.")
    .example("/etc/rlaas/tls.crt");
const KEY: Setting =
    Setting::new("key", "PEM file of the certificate's private key.").example("/etc/rlaas/tls.key");
const CLIENT_CA: Setting = Setting::new(
    "client-ca",
    "PEM file of authorities. Clients need a certificate of one of them, except for metrics \
     and probes.",
)
.example("/etc/rlaas/ca.crt");

const TLS_FOR_HTTP: Setting = Setting::new(
    "http",
    "false: server.http and server.metrics are not encrypted, for probes and scrapes; default true. \
     With client-ca, server.http then refuses all that a caller needs a certificate for.",
)
.example("false");

/// Reads the section. Returns `None` without it, or after it reported a problem; and whether HTTP is
/// encrypted, too.
fn read_tls(server: &mut Section<'_>) -> (Option<Tls>, bool) {
    let mut section = server.section(TLS);
    let given = ["cert", "key", "client-ca", "http"].iter().any(|key| section.has(key));
    for key in ["cert", "key"].into_iter().filter(|key| given && !section.has(key)) {
        section.refuse(key, Invalid::new("missing: a certificate and its key belong together"));
    }
    let files = section.optional(CERT, pem_path).zip(section.optional(KEY, pem_path));
    let client_ca = section.optional(CLIENT_CA, pem_path);
    let for_http = section.optional(TLS_FOR_HTTP, values::boolean).unwrap_or(true);
    let files = files.map(|(cert, key)| TlsFiles { cert, key, client_ca });
    let refuse = |error: TlsError| section.refuse(error.setting, error);
    let tls = files.and_then(|files| {
        files.problems().into_iter().for_each(refuse);
        if section.is_valid() { Tls::load(files).map_err(refuse).ok() } else { None }
    });
    section.close();
    (tls, for_http)
}
