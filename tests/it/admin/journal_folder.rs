//! The folder of the journal: one that can't be used, and a disk without space.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rlaas_testkit::process::{check, finish, program, rlaas};
use rlaas_testkit::tools::skipped;
use rlaas_testkit::{TempDir, eventually};
use rustix::process::{Pid, Resource, Rlimit, geteuid, prlimit};
use tonic::Code;

use super::admin;
use super::journal::{TIMEOUT, ban, bans, start};

/// Runs the program with this folder, without the rights of root, who may do everything. It must
/// not start, and say why.
fn assert_refused(folder: &Path, named: &Path, reason: &str) {
    let mut command = Command::new(program());
    if geteuid().is_root() {
        command = Command::new("unshare");
        command.arg("--user").arg(program());
    }
    command.env_remove("REDIS_URL").env_remove("RUST_LOG").arg("serve");
    let path = format!("store.memory.journal.path={}", folder.display());
    for setting in [&*path, "server.listen=127.0.0.1:0", "server.http=127.0.0.1:0"] {
        command.args(["--set", setting]);
    }
    let (code, _, log) = finish(command.output().expect("the program"));
    assert_eq!(code, 1, "{log}");
    assert!(log.contains(reason), "{reason}: {log}");
    assert!(log.contains("store.memory.journal.path"), "{log}");
    assert!(log.contains(&named.display().to_string()), "{log}");
}

/// Returns `true` if a process may have a namespace with these options of `unshare`.
fn may_unshare(options: &[&str]) -> bool {
    let tried = Command::new("unshare").args(options).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_named() {
    if geteuid().is_root() && !may_unshare(&["--user"]) {
        let why = "root may read everything, and the system allows no user namespaces";
        return skipped("admin::journal_folder::a_folder_that_cannot_be_used_is_named", why);
    }
    let dir = TempDir::new();
    let folder = dir.path("journal");
    let mut server = start(rlaas(&["serve"]), &folder);
    assert_refused(&folder, &folder, "another process uses");
    ban(&mut admin(&server).await, "alice").await.expect("a ban");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    for path in [Path::new("/proc/rlaas"), Path::new("/dev/null")] {
        assert_refused(path, path, "can't create");
    }
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    };
    let log = folder.join("changes-0000000001.log");
    set_mode(&log, 0);
    assert_refused(&folder, &log, "can't read");
    set_mode(&log, 0o600);
    set_mode(&folder, 0);
    assert_refused(&folder, &folder, "Permission denied");
    set_mode(&folder, 0o700);
    let of_another = dir.path("of another");
    fs::create_dir(&of_another).expect("a folder");
    // Only root can give a folder away. Others find one that is not theirs at the root.
    let is_given = chown(&of_another, Some(12_345), Some(12_345)).is_ok();
    let of_another = if is_given { of_another } else { PathBuf::from("/") };
    assert_refused(&of_another, &of_another.join("lock"), "Permission denied");
    // What was refused has changed nothing.
    let server = start(rlaas(&["serve"]), &folder);
    assert_eq!(bans(&mut admin(&server).await).await.len(), 1);
}

#[tokio::test]
async fn a_limit_of_files_refuses_changes_and_no_decision() {
    let dir = TempDir::new();
    // The shell ignores the signal for files above their limit, so that writes fail instead.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program()).arg("serve");
    command.env_remove("REDIS_URL").env_remove("RUST_LOG");
    let server = start(command, &dir.path("journal"));
    let (mut client, mut admin_client) = (server.client().await, admin(&server).await);
    ban(&mut admin_client, "alice").await.expect("a ban");
    let limit_files = |len| {
        let pid = Pid::from_raw(server.pid().cast_signed()).expect("a process");
        let limit = Rlimit { current: len, maximum: None };
        prlimit(Some(pid), Resource::Fsize, limit).expect("a limit");
    };
    let gauge = async || server.metric("rlaas_journal_failing").await;
    assert_eq!(gauge().await, Some(0.0));
    limit_files(Some(0));
    let status = ban(&mut admin_client, "bob").await.expect_err("files are limited");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("store.memory.journal"), "{status:?}");
    assert!(!status.message().contains(&dir.path("").display().to_string()), "{status:?}");
    assert_eq!(gauge().await, Some(1.0));
    for (user, is_allowed) in [("alice", false), ("bob", true), ("carol", true)] {
        let response = check(&mut client, user).await.expect("a decision");
        assert_eq!(response.allowed, is_allowed, "{user}");
    }
    assert_eq!(bans(&mut admin_client).await.len(), 1);
    limit_files(None);
    eventually("the journal recovers", TIMEOUT, async || gauge().await == Some(0.0)).await;
    ban(&mut admin_client, "bob").await.expect("a ban");
    let log = server.log();
    assert_eq!(log.matches("changes are refused").count(), 1, "{log}");
    assert_eq!(log.matches("changes are accepted").count(), 1, "{log}");
}

/// Mounts a file system of 512 KiB that no other process sees.
const SMALL_DISK: &str =
    "mount -t tmpfs -o size=512k,mode=0700 rlaas \"$1\" && shift && exec \"$@\"";
const NAMESPACES: [&str; 3] = ["--user", "--map-root-user", "--mount"];

#[tokio::test]
async fn a_full_disk_refuses_changes_and_no_decision() {
    let dir = TempDir::new();
    let disk = dir.path("disk");
    fs::create_dir(&disk).expect("a folder");
    let on_disk = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(NAMESPACES).args(["sh", "-c", SMALL_DISK, "sh"]).arg(&disk).arg(program);
        command
    };
    if !on_disk(Path::new("true")).output().is_ok_and(|output| output.status.success()) {
        let why = "the system allows no mounts in user namespaces";
        return skipped("admin::journal_folder::a_full_disk_refuses_changes_and_no_decision", why);
    }
    let mut command = on_disk(&program());
    command.arg("serve").env_remove("REDIS_URL").env_remove("RUST_LOG");
    let mut server = start(command, &disk.join("journal"));
    // The disk, as the process sees it.
    let disk = PathBuf::from(format!("/proc/{}/root{}", server.pid(), disk.display()));
    let (mut client, mut admin_client) = (server.client().await, admin(&server).await);
    ban(&mut admin_client, "alice").await.expect("a ban");

    fill(&disk.join("filler"));
    // The last page of the file has space for some changes.
    let mut banned = 1;
    let status = loop {
        match ban(&mut admin_client, &format!("user {banned}")).await {
            Ok(_) => banned += 1,
            Err(status) => break status,
        }
        assert!(banned < 1_000, "the disk is not full");
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("store.memory.journal"), "{status:?}");
    let gauge = async || server.metric("rlaas_journal_failing").await;
    assert_eq!(gauge().await, Some(1.0));
    for user in [format!("user {banned}"), "bob".to_owned()] {
        assert!(check(&mut client, &user).await.expect("a decision").allowed, "{user}");
    }
    assert!(!check(&mut client, "alice").await.expect("a decision").allowed);
    assert_eq!(bans(&mut admin_client).await.len(), banned);
    ban(&mut admin_client, "carol").await.expect_err("a full disk");

    fs::remove_file(disk.join("filler")).expect("the file");
    eventually("the journal recovers", TIMEOUT, async || gauge().await == Some(0.0)).await;
    ban(&mut admin_client, "dave").await.expect("a ban");
    let log = server.log();
    assert!(log.contains("No space left on device"), "{log}");
    assert_eq!(log.matches("changes are accepted").count(), 1, "{log}");
    let kept = bans(&mut admin_client).await;
    assert_eq!(kept.len(), banned + 1);

    // The disk ends with the process.
    let copy = dir.path("copy");
    fs::create_dir(&copy).expect("a folder");
    for file in fs::read_dir(disk.join("journal")).expect("the folder") {
        let file = file.expect("a file");
        if file.file_name().to_string_lossy().starts_with("changes-") {
            fs::copy(file.path(), copy.join(file.file_name())).expect("a copy");
        }
    }
    server.signal("KILL");
    server.wait();
    let server = start(rlaas(&["serve"]), &copy);
    assert_eq!(bans(&mut admin(&server).await).await, kept);
}

/// Writes a file that takes all space.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file");
    let error = loop {
        if let Err(error) = file.write_all(&[0; 4096]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
}
