//! The accept loop: takes connections and hands them to the workers in turn.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::workers::Intake;

/// The longest that a new connection may stay silent.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that wait for their first byte; the oldest go first.
const MOST_SILENT: usize = 1024;
/// Pause after a failure to accept: file descriptors are short, and spinning does not help.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts until it is dropped, and drops the connections that are still silent then.
pub(super) async fn run(listener: TcpListener, intake: Intake) {
    let mut silent = JoinSet::new();
    let mut short_of_something = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((connection, _)) if silent.len() < MOST_SILENT => {
                    short_of_something = false;
                    silent.spawn(admit(connection, intake.clone()));
                }
                Ok(_) => debug!("too many silent connections"),
                Err(error) => {
                    if !short_of_something {
                        warn!(%error, "can't accept connections");
                        short_of_something = true;
                    }
                    pause().await;
                }
            },
            Some(_) = silent.join_next() => {}
        }
    }
}

/// Hands a connection over with its first byte: a worker that drains waits for every connection
/// it has, and one that says nothing would hold it up.
async fn admit(connection: TcpStream, intake: Intake) {
    match timeout(FIRST_BYTE_TIMEOUT, connection.peek(&mut [0])).await {
        Ok(Ok(1..)) => {
            if let Err(error) = hand_over(connection, intake).await {
                debug!(%error, "connection lost before its first request");
            }
        }
        Ok(Ok(0)) => debug!("connection closed before its first byte"),
        Ok(Err(error)) => debug!(%error, "connection lost before its first byte"),
        Err(_elapsed) => debug!("connection stayed silent"),
    }
}

async fn hand_over(connection: TcpStream, mut intake: Intake) -> io::Result<()> {
    connection.set_nodelay(true)?;
    intake.take(connection.into_std()?).await;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "there is no event that says descriptors are back")]
async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
