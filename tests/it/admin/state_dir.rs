//! `state-dir` of a memory store: all that it is told, and who may write there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, check, finish, rlaas};

use super::admin;
use super::journal::{ban, bans};

const RULE: &str = "rate-limiter={max-requests: 5, window-size: 86400, overridable: true}";

#[tokio::test]
async fn state_dir_alone_keeps_counters_and_changes() {
    let dir = TempDir::new();
    let state_dir = format!("state-dir={}", dir.path("state").display());
    let elsewhere = format!("store.memory.journal.path={}", dir.path("journal").display());
    let off = "store.memory.journal.path=off";
    // Settings, bans that are there at the start, and units of a user that are left then.
    for (settings, banned, left) in [
        (&[&*state_dir][..], 0, 5),
        (&[&*state_dir], 1, 4),
        (&[&*state_dir, off], 0, 3),
        (&[&*state_dir, &elsewhere], 0, 2),
        (&[&*state_dir, &elsewhere], 1, 1),
        (&[&*state_dir], 1, 0),
    ] {
        let mut server = Rlaas::start(&[settings, &[RULE]].concat());
        let (mut client, mut admin_client) = (server.client().await, admin(&server).await);
        assert_eq!(bans(&mut admin_client).await.len(), banned, "{settings:?}");
        let checked = check(&mut client, "alice").await.expect("a decision");
        assert_eq!(checked.remaining, (left - 1).max(0), "{settings:?}");
        ban(&mut admin_client, "bob").await.expect("a ban");
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    }
    assert!(dir.path("state").join("changes-0000000001.log").exists());
    assert!(dir.path("state").join("snapshot.states").exists());
    assert!(!dir.path("journal").join("snapshot.states").exists());
}

#[tokio::test]
async fn a_state_dir_that_all_may_write_to_is_warned_of() {
    for (mode, is_warned) in [(0o777, true), (0o1777, true), (0o702, true), (0o770, false)] {
        let dir = TempDir::new();
        let state = dir.path("state");
        fs::create_dir(&state).expect("a folder");
        fs::set_permissions(&state, Permissions::from_mode(mode)).expect("its owner");
        let server = Rlaas::start(&[&format!("state-dir={}", state.display())]);
        let log = server.log();
        let warned = log.contains("every user of this machine can write to state-dir");
        assert_eq!(warned, is_warned, "{mode:o}: {log}");
    }
}

#[test]
fn a_pipe_in_place_of_a_lock_ends_the_program_with_its_name() {
    for name in ["lock", "snapshot.lock", "snapshot.states", "changes-0000000001.log"] {
        let dir = TempDir::new();
        let state = dir.path("state");
        fs::create_dir(&state).expect("a folder");
        let made = std::process::Command::new("mkfifo").arg(state.join(name)).status();
        assert!(made.expect("mkfifo").success());
        let mut command = rlaas(&["serve"]);
        let state_dir = format!("state-dir={}", state.display());
        for setting in [&*state_dir, "server.listen=127.0.0.1:0", "server.http=127.0.0.1:0"] {
            command.args(["--set", setting]);
        }
        let (code, _, log) = finish(command.output().expect("the program"));
        assert_eq!(code, 1, "{name}: {log}");
        let named = state.join(name).display().to_string();
        assert!(log.contains(&named) && log.contains("must be a file"), "{name}: {log}");
    }
}
