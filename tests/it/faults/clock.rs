//! The clock of the memory store follows the wall time of the machine.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rlaas::clock::Micros;
use rlaas_testkit::process::{Client, Rlaas, check, rlaas};
use rlaas_testkit::redis::clock_shim;
use rlaas_testkit::service::T0;
use rlaas_testkit::{TempDir, eventually};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A server with the memory store, a limit of 1 an hour, and a wall time that the test sets.
struct MovedClock {
    server: Rlaas,
    clock: File,
    _dir: TempDir,
}

impl MovedClock {
    fn start() -> Self {
        let dir = TempDir::new();
        let path = dir.write("clock", "");
        let clock = File::options().write(true).open(&path).expect("the clock file");
        set(&clock, 0);
        let mut command = rlaas(&["serve"]);
        command.env("LD_PRELOAD", clock_shim()).env("TEST_CLOCK_FILE", &path);
        let rule = [
            "rate-limiter.use-algo=fixed-window",
            "rate-limiter.max-requests=1",
            "rate-limiter.window-size=1h",
        ];
        Self { server: Rlaas::start_with(command, &rule), clock, _dir: dir }
    }
}

fn set(clock: &File, seconds: i64) {
    let moved = T0.as_micros().saturating_add_signed(seconds * 1_000_000);
    clock.write_all_at(&moved.to_le_bytes(), 0).expect("the clock file");
}

async fn is_allowed(client: &mut Client, user: &str) -> bool {
    check(client, user).await.expect("an answer").allowed
}

/// Waits until a new user gets a window that ends in this number of minutes.
async fn wait_for_window_ending_in(client: &mut Client, minutes: u64) {
    let mut user = 0;
    eventually("the clock is followed", TIMEOUT, async || {
        user += 1;
        let answer = check(client, &format!("{minutes}-{user}")).await.expect("an answer");
        let left = answer.reset_after.expect("a time").seconds;
        Micros::from_secs(left.unsigned_abs()).as_secs_ceil().div_ceil(60) == minutes
    })
    .await;
}

#[tokio::test]
async fn memory_store_follows_changes_of_wall_time() {
    let moved = MovedClock::start();
    let mut client = moved.server.client().await;
    // T0 is 15 minutes into its hour.
    wait_for_window_ending_in(&mut client, 45).await;
    assert!(is_allowed(&mut client, "alice").await);
    assert!(!is_allowed(&mut client, "alice").await);
    // 65 minutes after T0: the next window.
    set(&moved.clock, 65 * 60);
    wait_for_window_ending_in(&mut client, 40).await;
    assert!(is_allowed(&mut client, "alice").await);
    assert!(!is_allowed(&mut client, "alice").await);
    // Half a window back, in the previous window: the clock is frozen, and no unit is granted twice.
    set(&moved.clock, 35 * 60);
    assert!(!is_allowed(&mut client, "alice").await);
    // 170 minutes before T0, more than a window back: the clock follows, with at most one extra
    // refill.
    set(&moved.clock, -170 * 60);
    wait_for_window_ending_in(&mut client, 35).await;
    assert!(is_allowed(&mut client, "alice").await);
    assert!(!is_allowed(&mut client, "alice").await);
}
