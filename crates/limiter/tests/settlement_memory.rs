//! The memory that settlements take is what their bound says.

use std::sync::Arc;

use rlaas_limiter::algorithm::{Algorithm, Cost, Limit};
use rlaas_limiter::clock::{Clock, ManualClock, Micros, Timestamp};
use rlaas_limiter::observer::NoObserver;
use rlaas_limiter::operation::{Action, Shard, StoreHit, StoreRequest};
use rlaas_limiter::reservation::{Reservation, ReservationUse};
use rlaas_limiter::rules::{Coupling, Grant, Key};
use rlaas_limiter::store::{MemorySettings, MemoryStore};

const BOUND: usize = 2 << 20;
const MEMORY: Micros = Micros::from_secs(600);

/// Holds a unit of each key under this number, and settles that.
fn settle(store: &MemoryStore, keys: &[Key], grant: &Grant, number: u128) {
    let hold_for = MEMORY;
    for (action, purpose) in [
        (Action::Hold(Cost::ONE), ReservationUse::Reserve { hold_for }),
        (
            Action::Settle(Some(Cost::NONE)),
            ReservationUse::Settle {
                memory: MEMORY,
                ends_at: Timestamp::EPOCH,
                counts_ended: false,
            },
        ),
    ] {
        let hit = |key| {
            let hit = StoreHit::new(key, Algorithm::TokenBucket, grant, action);
            StoreHit { max_holds: Some(10), ..hit }
        };
        let hits: Vec<_> = keys.iter().map(hit).collect();
        let (coupling, shard) = (Coupling::AllOrNothing, Shard::default());
        let reservation = Some(&Reservation { number, purpose });
        let request = StoreRequest { hits: &hits, coupling, shard, once: None, reservation };
        store.execute(request).expect("a reply");
    }
}

#[test]
fn settlements_take_at_most_their_bound() {
    let limit = Limit::new(1_000, Micros::from_secs(60)).expect("a limit");
    let grant = Grant::Limited(limit);
    // One rule with a short name, several with usual ones, and as many as there may be with long ones.
    for (rules, name_len) in [(1, 1), (3, 12), (16, 160)] {
        let names = (0..rules).map(|rule| format!("{rule:0>name_len$}"));
        let keys: Vec<Key> =
            names.map(|name| Key::from_encoded_in("shop", &name, "alice")).collect();
        let clock = Clock::Manual(ManualClock::default());
        let store = MemoryStore::new(MemorySettings::default(), clock, Arc::new(NoObserver));
        let store = store.with_max_reservations(1_000, BOUND);
        settle(&store, &keys, &grant, 0);
        let used = allocation_counter::measure(|| {
            for number in 1..15_000 {
                settle(&store, &keys, &grant, number);
            }
        });
        let used = usize::try_from(used.bytes_current).expect("bytes in use");
        println!("{rules} rules of {name_len} bytes: {used} of {BOUND} bytes");
        assert!(used <= BOUND && used > BOUND / 3, "{rules} rules of {name_len}: {used}");
    }
}
