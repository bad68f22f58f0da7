//! Sentinel: which server is the master.
//!
//! All sentinels are queried at once, and the most common reply counts. So a sentinel that is cut
//! off from the others does not lead to a master that was replaced.

use std::collections::HashMap;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{RedisResult, cmd};
use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Address;
use super::options::ConnectOptions;
use crate::store::redis::settings::{RedisUrl, SettingError, Tls};

/// Timeout of a query to one sentinel.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(300);

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct Sentinels {
    sentinels: Vec<Sentinel>,
    master_name: String,
}

#[derive(Debug)]
struct Sentinel {
    address: Address,
    options: ConnectOptions,
    /// Connection that is kept open between queries.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Sentinels {
    /// Creates the sentinels. They are connected on first use.
    ///
    /// # Errors
    ///
    /// [`SettingError::Tls`] if the certificates are invalid.
    pub(crate) fn new(
        urls: &[RedisUrl],
        master_name: &str,
        tls: &Tls,
    ) -> Result<Self, SettingError> {
        let sentinel = |url: &RedisUrl| {
            let options = ConnectOptions::for_sentinel(url, tls)?;
            let address = Address::from_url(url);
            Ok(Sentinel { address, options, connection: Mutex::default() })
        };
        let sentinels = urls.iter().map(sentinel).collect::<Result<_, SettingError>>()?;
        Ok(Self { sentinels, master_name: master_name.to_owned() })
    }

    /// Returns the master that most sentinels report; `None` if no sentinel reports one.
    pub(crate) async fn master(&self) -> Option<Address> {
        let replies =
            self.sentinels.iter().map(|sentinel| sentinel.query_master(&self.master_name));
        let mut votes: HashMap<Address, usize> = HashMap::new();
        for reply in join_all(replies).await.into_iter().flatten() {
            *votes.entry(reply).or_default() += 1;
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(address, _)| address)
    }
}

impl Sentinel {
    async fn query_master(&self, master_name: &str) -> Option<Address> {
        // After a timeout the connection is dropped, because the reply could still arrive.
        let mut kept = self.connection.lock().await;
        let query = async {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.options.connect(&self.address).await?,
            };
            let mut command = cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(master_name);
            let reply: Option<(String, u16)> = command.query_async(&mut connection).await?;
            RedisResult::Ok((connection, reply))
        };
        let (connection, reply) = timeout(SENTINEL_TIMEOUT, query).await.ok()?.ok()?;
        *kept = Some(connection);
        let (host, port) = reply?;
        Some(Address::Tcp { host, port })
    }
}
