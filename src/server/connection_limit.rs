//! How many connections there may be, in total and from one address.
//!
//! Only those that have sent something take a seat: silence is bounded where it is waited for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{info, warn};

/// Seats of one front. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Seats(Arc<Hall>);

#[derive(Debug)]
struct Hall {
    most: u32,
    most_per_address: u32,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: u32,
    by_address: HashMap<IpAddr, u32>,
    /// Since the last time that a tenth was free.
    was_full: bool,
}

/// Why a connection gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// All are taken.
    Full,
    /// Its address has as many as it may.
    AddressFull,
    /// It has sent nothing for too long, or while too many others did not either.
    Silent,
}

impl Refusal {
    /// As a label of a metric.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::AddressFull => "address_full",
            Self::Silent => "silent",
        }
    }
}

impl Seats {
    pub(super) fn new(most: u32, most_per_address: u32) -> Self {
        Self(Arc::new(Hall { most, most_per_address, taken: Mutex::default() }))
    }

    /// A seat for a connection from this address; those of Unix sockets have none.
    pub(super) fn take(&self, address: Option<IpAddr>) -> Result<Seat, Refusal> {
        let address = address.map(host);
        let mut taken = self.taken();
        if taken.total >= self.0.most {
            if !taken.was_full {
                taken.was_full = true;
                warn!(
                    connections = self.0.most,
                    "refusing connections (server.limits.connections)"
                );
            }
            return Err(Refusal::Full);
        }
        if let Some(address) = address {
            let count = taken.by_address.entry(address).or_default();
            if *count >= self.0.most_per_address {
                return Err(Refusal::AddressFull);
            }
            *count += 1;
        }
        taken.total += 1;
        drop(taken);
        Ok(Seat { seats: self.clone(), address })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one connection takes until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    address: Option<IpAddr>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        taken.total -= 1;
        if let Some(address) = self.address
            && let Some(count) = taken.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&address);
            }
        }
        if taken.was_full && taken.total <= self.seats.0.most / 10 * 9 {
            taken.was_full = false;
            info!("accepting connections again");
        }
    }
}

/// Who an address belongs to: of IPv6 the network, for one host has all of its addresses.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            const NETWORK: u128 = !0 << 64;
            Ipv6Addr::from_bits(address.to_bits() & NETWORK).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::labels::CONNECTION_REFUSALS;

    #[test]
    fn metrics_know_every_reason() {
        let refusals = [Refusal::Full, Refusal::AddressFull, Refusal::Silent];
        assert_eq!(refusals.map(Refusal::reason), CONNECTION_REFUSALS);
    }

    #[test]
    fn a_seat_is_free_again_when_it_is_left() {
        let seats = Seats::new(3, 2);
        let [one, same, other] =
            ["2001:db8::1", "2001:db8::2", "::ffff:192.0.2.1"].map(|text| text.parse().ok());
        let first = seats.take(one).expect("a seat");
        let _second = seats.take(same).expect("a seat");
        assert_eq!(seats.take(one).err(), Some(Refusal::AddressFull), "one network, one host");
        let _third = seats.take(other).expect("a seat");
        assert_eq!(seats.take(None).err(), Some(Refusal::Full));
        drop(first);
        let _again = seats.take(one).expect("a seat");
        assert_eq!(seats.take(None).err(), Some(Refusal::Full));
    }

    #[test]
    fn addresses_that_are_gone_are_forgotten() {
        let seats = Seats::new(1, 1);
        for last in 0..=255 {
            drop(seats.take(Some([192, 0, 2, last].into())).expect("a seat"));
        }
        assert!(seats.taken().by_address.is_empty());
    }
}
