//! The command line of envoyproxy/ratelimit, in whose place this program may be started.

use std::env;
use std::ffi::OsString;
use std::path::Path;

/// Returns the arguments without those of envoyproxy/ratelimit, and the names of these.
///
/// Arguments are left out if the program was started as `ratelimit` with `CONFIG_TYPE` set, and the first one is
/// an option that this program does not have. Options of `serve` stay.
pub(super) fn without_foreign(given: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let text =
        |at| given.get(at).map_or("".into(), |argument: &OsString| argument.to_string_lossy());
    let is_ratelimit = Path::new(&*text(0)).file_name().is_some_and(|name| name == "ratelimit");
    let name = text(1).split('=').next().unwrap_or_default().to_owned();
    let is_own = matches!(&*name, "--config" | "--set" | "--help" | "--version");
    let is_configured = env::var_os("CONFIG_TYPE").is_some_and(|value| !value.is_empty());
    if !(is_ratelimit && name.starts_with("--") && !is_own && is_configured) {
        return (given, Vec::new());
    }
    let mut given = given.into_iter();
    let (mut kept, mut ignored) = (Vec::from_iter(given.next()), Vec::new());
    while let Some(argument) = given.next() {
        let text = argument.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        if matches!(name, "--config" | "--set") {
            kept.push(argument);
            kept.extend((name == text).then(|| given.next()).flatten());
        } else if name.starts_with('-') {
            ignored.push(name.to_owned());
        }
    }
    (kept, ignored)
}
