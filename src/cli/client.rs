//! What the commands that ask a running server share: the way to it.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};

/// The longest wait for a connection and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where the server is.
#[derive(Args, Clone, Debug)]
pub(super) struct ServerArgs {
    /// Where the server answers gRPC
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:50051")]
    addr: String,
}

impl ServerArgs {
    pub(super) async fn connect(&self) -> anyhow::Result<Channel> {
        let with_scheme = if self.addr.contains("://") {
            self.addr.clone()
        } else {
            format!("http://{}", self.addr)
        };
        let endpoint = Endpoint::from_shared(with_scheme)
            .map_err(|_| anyhow!("--addr: valid is http://host:port"))?;
        let channel = endpoint.connect_timeout(TIMEOUT).timeout(TIMEOUT).connect().await;
        channel.with_context(|| format!("no server at {} (is `rlaas serve` running?)", self.addr))
    }
}

pub(super) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
