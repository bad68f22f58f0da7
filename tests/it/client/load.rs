//! The load generator as a library. `cli::bench` tests its measurements.

use std::time::Duration;

use rlaas_client::load::{
    Distribution, Length, Load, LoadError, LoadPlan, LoadSettings, LoadStats,
};
use rlaas_client::{Client, ConnectError};
use rlaas_testkit::process::Rlaas;
use rlaas_testkit::redis::free_port;

const PLAN: LoadPlan =
    LoadPlan { rate: None, warm_up: Duration::ZERO, length: Length::Duration(super::TIMEOUT) };

#[tokio::test]
async fn load_rejects_invalid_settings_and_unreachable_servers() {
    let unreachable = Client::builder(format!("127.0.0.1:{}", free_port()));
    let settings = LoadSettings::default();
    for wrong in [
        LoadSettings { connections: 0, ..settings.clone() },
        LoadSettings { streams: 0, ..settings.clone() },
        LoadSettings { ids: 0, ..settings.clone() },
    ] {
        let error = Load::start(&unreachable, &wrong).await.expect_err("settings");
        assert!(matches!(error, LoadError::Settings(_)), "{wrong:?}: {error}");
    }
    let error = Load::start(&unreachable, &settings).await.expect_err("nobody");
    assert!(matches!(error, LoadError::Connect(ConnectError::Unreachable(_))), "{error}");
}

#[tokio::test]
async fn stopped_load_reports_its_measurement() {
    let server = Rlaas::start(&[]);
    let distribution = Distribution::Zipf(1.0);
    let settings = LoadSettings { plan: PLAN, distribution, ..LoadSettings::default() };
    let mut load = Load::start(&Client::builder(server.grpc()), &settings).await.expect("a load");
    let mut stats = LoadStats::default();
    while stats.measured.calls == 0 {
        tokio::task::yield_now().await;
        stats.add(&load.take_stats());
    }
    load.stop();
    load.finished().await.expect("no panic");
    let measured = load.measured(stats).expect("a result");
    assert!(measured.is_interrupted && measured.unanswered == 0, "{measured:?}");
    let counted = server.metric_sum("rlaas_decisions_total", &[]).await;
    assert_eq!(measured.stats.measured.decisions(), counted);
}
