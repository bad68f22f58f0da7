//! The requests that a server keeps in memory, and other rules that a call of the library tries on
//! them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use rlaas::clock::Clock;
use rlaas::config::{Config, Sources};
use rlaas::server::Server;
use rlaas::store::{MemorySettings, MemoryStore, Store};
use rlaas::telemetry::metrics::Metrics;
use rlaas::telemetry::record::{TrafficRecorder, WantedRequests};
use rlaas_limiter::Limiter;
use rlaas_simulation::simulation::{NoteKind, SimulationSettings};
use rlaas_testkit::eventually;
use rlaas_testkit::process::{Client, check, connect};
use tokio::sync::oneshot;

const TIMEOUT: Duration = Duration::from_secs(20);

fn config(settings: &[(&str, &str)]) -> Config {
    let setting = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let arguments = settings.iter().map(setting).collect();
    let config = Config::load(&Sources { arguments, ..Sources::default() });
    config.unwrap_or_else(|problems| panic!("{problems}"))
}

#[tokio::test]
async fn other_rules_are_tried_on_the_requests_that_a_server_decided() {
    let live = config(&[
        ("server.listen", "127.0.0.1:0"),
        ("server.http", "127.0.0.1:0"),
        ("server.workers", "2"),
        ("server.drain.delay", "0s"),
        ("telemetry.preview.keep", "15m"),
        ("rate-limiter.max-requests", "5"),
    ]);
    let candidate = config(&[("rate-limiter.max-requests", "3")]).rules;
    let metrics = Metrics::new();
    let preview = live.telemetry.preview;
    let recorder = TrafficRecorder::start(None, preview, metrics.record.clone());
    let recorder = recorder.expect("a thread");
    let metrics = Arc::new(metrics.with_recorder(recorder.clone()));
    let store = MemoryStore::new(MemorySettings::default(), Clock::default(), metrics.clone());
    let limiter = Limiter::new(live.rules.clone(), Store::Memory(store), metrics.clone());
    let server = Server::bind(live.server, limiter, metrics).await.expect("free ports");
    let address = server.grpc_addresses()[0].to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let recent = recorder.recent().expect("a preview");
    let report = || {
        let against = Some(live.rules.clone());
        let settings = SimulationSettings::new(candidate.clone());
        let settings = SimulationSettings { against, ..settings };
        let wanted = WantedRequests::default();
        recent.simulate(settings, &wanted, || ControlFlow::Continue(())).expect("a report")
    };
    let load = async {
        // Each connection has its worker.
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(Client::new(connect(&address).await));
        }
        for _ in 0..10 {
            for client in &mut clients {
                for user in ["alice", "bob"] {
                    check(client, user).await.expect("a decision");
                }
            }
        }
        let all = async || report().simulation.all.requests == 40;
        eventually("the workers send their requests", TIMEOUT, all).await;
        drop(stop);
    };
    let stopping = async {
        let _dropped = stopped.await;
    };
    let (ended, ()) = tokio::join!(server.serve(stopping), load);
    ended.expect("threads");
    let report = report();
    let default = &report.simulation.rule("default").expect("a rule").counts;
    assert_eq!((default.requests, default.refused), (40, 34), "three of each user pass");
    assert_eq!((default.allowed_to_refused, report.simulation.recorded_refusals), (4, 30));
    assert_eq!((report.dropped, report.notes[0].kind), (0, NoteKind::OneInstance));
}
