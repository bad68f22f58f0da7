//! What the commands that ask a running server share: the way to it.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};

/// The longest wait for a connection and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

const ADDR_HELP: &str = "Where the server answers gRPC: http://host:port or unix:/path \
                         [default: that of RLAAS_SERVER__LISTEN, else http://127.0.0.1:50051]";

/// Where the server is.
#[derive(Args, Clone, Debug)]
pub(super) struct ServerArgs {
    /// Where the server answers gRPC
    #[arg(long, value_name = "URL", help = ADDR_HELP)]
    addr: Option<String>,
}

impl ServerArgs {
    pub(super) async fn connect(&self) -> anyhow::Result<Channel> {
        let addr = self.addr.clone().unwrap_or_else(own_address);
        let has_scheme = addr.contains("://") || addr.starts_with("unix:");
        let with_scheme = if has_scheme { addr.clone() } else { format!("http://{addr}") };
        let endpoint = Endpoint::from_shared(with_scheme)
            .map_err(|_| anyhow!("--addr: valid is http://host:port or unix:/path"))?;
        let channel = endpoint.connect_timeout(TIMEOUT).timeout(TIMEOUT).connect().await;
        channel.with_context(|| format!("no server at {addr} (is `rlaas serve` running?)"))
    }
}

/// Where a server with this environment listens: that is how a container asks its own.
fn own_address() -> String {
    let listen = std::env::var("RLAAS_SERVER__LISTEN");
    let listen = listen.unwrap_or_else(|_| "127.0.0.1:50051".to_owned());
    // Of several the first.
    let listen = listen.split([',', ' ']).next().unwrap_or_default();
    listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")
}

pub(super) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
