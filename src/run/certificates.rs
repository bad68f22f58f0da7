//! Reloads the server's certificates when their files change, and on SIGHUP. If the new files are not
//! valid, the old certificates stay in force.
//!
//! Certificates are reloaded independently of the configuration: a mistake in a rule must not let a
//! certificate expire.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rlaas_telemetry::metrics::{CertificateLabels, Metrics};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::config::Watch;
use crate::server::{Tls, Validity};

/// Time between two checks of the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Follows the files of the certificates.
pub(super) struct CertificateReloader {
    tls: Tls,
    metrics: Arc<Metrics>,
    hangups: Signal,
    watch: Watch,
}

impl CertificateReloader {
    /// Reports the validity of the current certificates.
    ///
    /// # Errors
    ///
    /// If the SIGHUP handler can't be installed.
    pub(super) fn new(tls: Tls, metrics: Arc<Metrics>) -> io::Result<Self> {
        let watch = Watch::new(tls.paths());
        let hangups = signal(SignalKind::hangup())?;
        let certificates = Self { tls, metrics, hangups, watch };
        certificates.report_validities();
        Ok(certificates)
    }

    /// Reloads on each change or SIGHUP. Never returns.
    pub(super) async fn run(mut self) {
        // The files may have changed between their first read and the first snapshot of `watch`.
        self.reload().await;
        let mut ticks = interval(POLL_INTERVAL);
        loop {
            let is_due = tokio::select! {
                _ = self.hangups.recv() => true,
                _ = ticks.tick() => self.watch.has_settled(),
            };
            if is_due && self.reload().await {
                info!("certificates reloaded");
            }
        }
    }

    /// Reads the files. Returns `true` if their certificates are in force now.
    async fn reload(&self) -> bool {
        let tls = self.tls.clone();
        let read = spawn_blocking(move || tls.reload().map_err(|error| error.to_string())).await;
        // A panic of the parser is a failed reload.
        let read = read.unwrap_or_else(|panic| Err(panic.to_string()));
        match read {
            Ok(()) => self.report_validities(),
            Err(ref problem) => {
                error!(problem, "certificate reload failed: the old certificates stay in force");
            }
        }
        self.metrics.tls_last_reload_successful.set(i64::from(read.is_ok()));
        read.is_ok()
    }

    /// Exports the expiry of each certificate, and warns of those that are not valid now.
    fn report_validities(&self) {
        let now = Clock::default().now();
        for (certificate, Validity { not_before, not_after }) in self.tls.validities() {
            if now < not_before {
                warn!(certificate, "certificate not valid yet");
            } else if now > not_after {
                warn!(certificate, "certificate expired");
            }
            let seconds = i64::try_from(not_after.as_millis() / 1000).unwrap_or(i64::MAX);
            let labels = CertificateLabels { certificate };
            self.metrics.tls_certificate_expiry.get_or_create(&labels).set(seconds);
        }
    }
}
