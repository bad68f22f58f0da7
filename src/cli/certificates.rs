//! Certificates: read again when their files change, and on SIGHUP. Wrong ones leave the old in
//! force.
//!
//! They do not wait for the rest of the configuration: a mistake in a rule must not let a
//! certificate run out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::config::Watch;
use crate::server::{Tls, Validity};
use crate::telemetry::metrics::{CertificateLabels, Metrics};

/// Time between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Keeps the certificates as their files are.
pub(super) struct CertificateReloader {
    tls: Tls,
    metrics: Arc<Metrics>,
    hangups: Signal,
    watch: Watch,
}

impl CertificateReloader {
    /// Tells of the certificates with which the server starts.
    ///
    /// # Errors
    ///
    /// If SIGHUP can't be listened to.
    pub(super) fn new(tls: Tls, metrics: Arc<Metrics>) -> io::Result<Self> {
        let watch = Watch::new(tls.paths());
        let hangups = signal(SignalKind::hangup())?;
        let certificates = Self { tls, metrics, hangups, watch };
        certificates.report_validities();
        Ok(certificates)
    }

    /// Follows the files and SIGHUP, for ever.
    pub(super) async fn run(mut self) {
        // They were read before they were watched: what has changed since would go unseen.
        self.reload().await;
        let mut ticks = interval(POLL_INTERVAL);
        loop {
            let wanted = tokio::select! {
                _ = self.hangups.recv() => true,
                _ = ticks.tick() => self.watch.has_settled(),
            };
            if wanted && self.reload().await {
                info!("certificates reloaded");
            }
        }
    }

    /// Are the certificates of the files in force now?
    async fn reload(&self) -> bool {
        let tls = self.tls.clone();
        let read = spawn_blocking(move || tls.reload().map_err(|error| error.to_string())).await;
        // A panic while reading is a file that was not read.
        let read = read.unwrap_or_else(|panic| Err(panic.to_string()));
        match read {
            Ok(()) => self.report_validities(),
            Err(ref problem) => {
                error!(problem, "certificates not reloaded: the old ones stay in force");
            }
        }
        self.metrics.tls_last_reload_successful.set(i64::from(read.is_ok()));
        read.is_ok()
    }

    fn report_validities(&self) {
        let now = Clock::default().now();
        for (certificate, Validity { not_before, not_after }) in self.tls.validities() {
            if now < not_before {
                warn!(certificate, "not valid yet");
            } else if now > not_after {
                warn!(certificate, "expired");
            }
            let seconds = i64::try_from(not_after.as_millis() / 1000).unwrap_or(i64::MAX);
            let labels = CertificateLabels { certificate };
            self.metrics.tls_certificate_expiry.get_or_create(&labels).set(seconds);
        }
    }
}
