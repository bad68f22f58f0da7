//! Wrong tokens at the sign-in: each one of an address is answered later than the one before it. A right token
//! never waits.
//!
//! A wrong token names no account, so addresses alone are counted, in the memory of this instance.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Micros, Timestamp};

/// Time until the first wrong token of an address is answered. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// Time after the last wrong token of an address at which its number is forgotten.
const MAX_AGE: Micros = Micros::from_secs(10 * 60);
/// Most addresses that are remembered. Above it the oldest one is forgotten.
const MAX_ADDRESSES: usize = 10_000;

/// The wrong tokens of each address.
#[derive(Debug)]
pub(super) struct WrongTokens {
    clock: Clock,
    counts: Mutex<TokenCounts>,
}

#[derive(Debug, Default)]
struct TokenCounts {
    /// Number of wrong tokens, and the time of the last one.
    by_address: HashMap<Option<IpAddr>, (u32, Timestamp)>,
    /// Oldest first.
    order: VecDeque<Option<IpAddr>>,
}

impl WrongTokens {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, counts: Mutex::default() }
    }

    /// Counts a wrong token of an address, and waits until it may be answered.
    #[expect(clippy::disallowed_methods, reason = "the time is what tokens are guessed slowly by")]
    pub(super) async fn answer_later(&self, address: Option<IpAddr>) {
        tokio::time::sleep(self.count(address)).await;
    }

    /// Counts a wrong token of an address. Returns the time after which it is answered.
    fn count(&self, address: Option<IpAddr>) -> Duration {
        let now = self.clock.now();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = counts.by_address.get(&address).copied();
        if known.is_none() {
            if counts.order.len() == MAX_ADDRESSES
                && let Some(oldest) = counts.order.pop_front()
            {
                counts.by_address.remove(&oldest);
            }
            counts.order.push_back(address);
        }
        let recent = known.filter(|(_, last)| now.since(*last) < MAX_AGE);
        let before = recent.map_or(0, |(number, _)| number);
        counts.by_address.insert(address, (before.saturating_add(1), now));
        FIRST_DELAY.saturating_mul(2_u32.saturating_pow(before)).min(MAX_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::timeout;

    use super::*;
    use crate::clock::ManualClock;

    fn wrong_tokens() -> (WrongTokens, ManualClock) {
        let clock = ManualClock::new(Timestamp::EPOCH + MAX_AGE);
        (WrongTokens::new(Clock::Manual(clock.clone())), clock)
    }

    fn address(number: usize) -> IpAddr {
        let number = u32::try_from(number).expect("a small number");
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn each_wrong_token_of_an_address_is_answered_later_and_all_are_forgotten() {
        let (wrong, clock) = wrong_tokens();
        let millis = |number| wrong.count(Some(address(number))).as_millis();
        let delays: Vec<_> = (0..8).map(|_| millis(1)).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!((millis(2), wrong.count(None)), (100, FIRST_DELAY), "other addresses");
        for _ in 0..100 {
            assert_eq!(millis(1), 5_000);
        }
        clock.set(clock.now() + MAX_AGE - Micros::from_micros(1));
        assert_eq!(millis(1), 5_000);
        clock.set(clock.now() + MAX_AGE);
        assert_eq!((millis(1), millis(1)), (100, 200), "10 min after the last");
    }

    #[test]
    fn a_bounded_number_of_addresses_is_remembered() {
        let (wrong, _) = wrong_tokens();
        for number in 0..MAX_ADDRESSES {
            assert_eq!(wrong.count(Some(address(number))), FIRST_DELAY);
        }
        assert_eq!(wrong.count(Some(address(0))), FIRST_DELAY * 2);
        assert_eq!(wrong.count(Some(address(MAX_ADDRESSES))), FIRST_DELAY);
        assert_eq!(wrong.count(Some(address(1))), FIRST_DELAY * 2, "not the oldest");
        assert_eq!(wrong.count(Some(address(0))), FIRST_DELAY, "the oldest is forgotten");
        let counts = wrong.counts.lock().expect("no panic");
        assert_eq!((counts.by_address.len(), counts.order.len()), (MAX_ADDRESSES, MAX_ADDRESSES));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_token_waits_for_its_time() {
        let (wrong, _) = wrong_tokens();
        for delay in [FIRST_DELAY, FIRST_DELAY * 2] {
            let almost = delay.mul_f64(0.99);
            let mut answer = Box::pin(wrong.answer_later(Some(address(1))));
            assert!(timeout(almost, &mut answer).await.is_err(), "{delay:?}");
            assert!(timeout(delay.mul_f64(0.02), answer).await.is_ok(), "{delay:?}");
        }
    }
}
