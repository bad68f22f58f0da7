//! The sections `server`, `http`, `grpc` and `health`.

use std::time::Duration;

use figment::value::Value;

use super::section::Section;
use super::tls;
use super::values::{self, Read};
use crate::api::LimitHeaders;
use crate::server::{ConnectionSettings, ServerSettings, StoreHealth};

pub(super) fn read(root: &mut Section<'_>) -> ServerSettings {
    let mut section = root.section("server");
    let listen = section.read("listen", "127.0.0.1:50051", values::addresses);
    let http = section.read("http", "127.0.0.1:8080", values::addresses);
    let workers = section.read("workers", "auto", values::workers);
    let tls = tls::read(&mut section);
    let connection = connection(&mut section);
    let mut drain = section.section("drain");
    let drain_delay = drain.read("delay", "0s", values::pause);
    let drain_timeout = drain.read("timeout", "30s", values::pause);
    drain.close();
    section.close();
    let http_headers = limit_headers(root, "http", "draft");
    let grpc_headers = limit_headers(root, "grpc", "none");
    let store_health = store_health(root);
    ServerSettings {
        listen,
        http,
        tls,
        workers,
        connection,
        drain_delay,
        drain_timeout,
        store_health,
        http_headers,
        grpc_headers,
    }
}

fn limit_headers(
    root: &mut Section<'_>,
    section: &'static str,
    default: &'static str,
) -> LimitHeaders {
    let mut section = root.section(section);
    let headers = section.read("headers", default, values::limit_headers);
    section.close();
    headers
}

fn connection(server: &mut Section<'_>) -> ConnectionSettings {
    let max_age = server.read("max-connection-age", "30m", max_age);
    let max_age_grace = server.read("max-connection-age-grace", "10s", values::pause);
    let mut keepalive = server.section("keepalive");
    let keepalive_interval = keepalive.read("interval", "20s", timeout);
    let keepalive_timeout = keepalive.read("timeout", "20s", timeout);
    keepalive.close();
    let mut limits = server.section("limits");
    let connections = limits.read("connections", "10000", values::count(1_000_000));
    let connections_per_address =
        limits.read("connections-per-address", "1000", values::count(1_000_000));
    let streams = limits.read("streams", "1024", values::count(65_536));
    let request_time = limits.read("request-time", "10s", timeout);
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
    let mut section = root.section("health");
    let require_store = section.read("require-store", "false", values::boolean);
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
