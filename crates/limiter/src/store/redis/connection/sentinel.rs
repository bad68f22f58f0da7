//! Sentinels: who is the master?
//!
//! All of them are asked at once and the most common answer counts, so that one that is cut off
//! from the others does not lead us to a master that is no more.

use std::collections::HashMap;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{RedisResult, cmd};
use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::store::redis::connection::driver::Wire;
use crate::store::redis::connection::options::{Access, Address};
use crate::store::redis::settings::{RedisUrl, SettingError, Tls};

/// The longest that one sentinel may take.
const PATIENCE: Duration = Duration::from_millis(300);

/// The sentinels of one master.
#[derive(Debug)]
pub(crate) struct Sentinels {
    seats: Vec<Seat>,
    master_name: String,
}

#[derive(Debug)]
struct Seat {
    address: Address,
    access: Access,
    /// Kept open from question to question.
    wire: Mutex<Option<Wire>>,
}

impl Sentinels {
    pub(crate) fn new(
        urls: &[RedisUrl],
        master_name: &str,
        tls: &Tls,
    ) -> Result<Self, SettingError> {
        let seat = |url: &RedisUrl| {
            let access = Access::to_sentinel(url, tls)?;
            Ok(Seat { address: Address::of(url), access, wire: Mutex::default() })
        };
        let seats = urls.iter().map(seat).collect::<Result<_, SettingError>>()?;
        Ok(Self { seats, master_name: master_name.to_owned() })
    }

    /// Where most sentinels say that the master is; `None` if none of them says anything.
    pub(crate) async fn master(&self) -> Option<Address> {
        let answers = self.seats.iter().map(|seat| seat.ask(&self.master_name));
        let mut votes: HashMap<Address, usize> = HashMap::new();
        for answer in join_all(answers).await.into_iter().flatten() {
            *votes.entry(answer).or_default() += 1;
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(address, _)| address)
    }
}

impl Seat {
    async fn ask(&self, master_name: &str) -> Option<Address> {
        // A wait that is given up leaves no connection behind: its answer could come later.
        let mut kept = self.wire.lock().await;
        let asking = async {
            let mut wire = match kept.take() {
                Some(wire) => wire,
                None => self.access.connect(&self.address).await?,
            };
            let answer = query(&mut wire.connection, master_name).await?;
            RedisResult::Ok((wire, answer))
        };
        let (wire, answer) = timeout(PATIENCE, asking).await.ok()?.ok()?;
        *kept = Some(wire);
        let (host, port) = answer?;
        Some(Address::Tcp { host, port })
    }
}

async fn query(
    connection: &mut MultiplexedConnection,
    master_name: &str,
) -> RedisResult<Option<(String, u16)>> {
    cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master_name).query_async(connection).await
}
