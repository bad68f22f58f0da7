//! Output of `serve` at a terminal: colors, and a command to try.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use rlaas_testkit::process::{finish, rlaas, run, signal};
use rlaas_testkit::tls::{Certificate, Certificates};

const LISTEN: [&str; 2] = ["server.listen=127.0.0.1:0", "server.http=127.0.0.1:0"];

/// A server whose standard output and standard error are a terminal.
struct AtTerminal {
    terminal: Child,
    server: u32,
    lines: BufReader<ChildStdout>,
}

impl AtTerminal {
    fn start(settings: &[&str], environment: &[(&str, &str)]) -> Self {
        let settings = [&LISTEN[..], settings].concat();
        let settings: Vec<_> = settings.iter().map(|one| format!("--set '{one}'")).collect();
        let program = env!("CARGO_BIN_EXE_rlaas");
        let command = format!("echo $$; exec {program} serve {}", settings.join(" "));
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        terminal.env_remove("NO_COLOR").env_remove("RUST_LOG").envs(environment.iter().copied());
        let spawned = terminal.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut terminal = spawned.expect("script, of util-linux");
        let mut lines = BufReader::new(terminal.stdout.take().expect("a pipe"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("the id of the process");
        Self { terminal, server: first.trim().parse().expect("a number"), lines }
    }

    /// Returns the output up to and including the suggested command.
    fn shown(&mut self) -> String {
        let mut shown = String::new();
        while !shown.lines().any(|line| line.starts_with("try: ")) {
            let read = self.lines.read_line(&mut shown).expect("text");
            assert!(read > 0, "the server has ended: {shown}");
        }
        shown.replace('\r', "")
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        signal(self.server, "KILL");
        let _already_gone = self.terminal.wait();
    }
}

/// Returns the arguments of the suggested command.
fn proposed(shown: &str) -> Vec<String> {
    let line = shown.lines().find_map(|line| line.strip_prefix("try: rlaas "));
    let line = line.unwrap_or_else(|| panic!("no suggested command: {shown}"));
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn terminal_logs_are_colored_unless_no_color_is_set() {
    for (environment, has_colours) in
        [(&[][..], true), (&[("NO_COLOR", "")], true), (&[("NO_COLOR", "1")], false)]
    {
        let shown = AtTerminal::start(&[], environment).shown();
        assert!(shown.contains("serving"), "{shown}");
        assert_eq!(shown.contains('\u{1b}'), has_colours, "{environment:?}: {shown}");
    }
}

#[test]
fn check_command_is_suggested_only_at_a_terminal() {
    let shown = AtTerminal::start(&[], &[]).shown();
    assert_eq!(proposed(&shown)[..3], ["check", "alice", "--addr"]);
    assert!(proposed(&shown)[3].starts_with("http://127.0.0.1:"), "{shown}");
    let shown = AtTerminal::start(&["server.listen=0.0.0.0:0"], &[]).shown();
    assert!(proposed(&shown)[3].starts_with("http://127.0.0.1:"), "{shown}");

    let mut command = rlaas(&["serve", "--set", LISTEN[0], "--set", LISTEN[1]]);
    let mut server =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let mut log = BufReader::new(server.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("serving") {
        line.clear();
        assert!(log.read_line(&mut line).expect("text") > 0, "the server has ended");
    }
    signal(server.id(), "TERM");
    let (code, out, _) = finish(server.wait_with_output().expect("its end"));
    assert_eq!((code, out.as_str()), (0, ""));
}

#[test]
fn suggested_command_works_with_tls() {
    let certificates = Certificates::make();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let ca = path(certificates.authority());
    let cert = path(certificates.certificate(Certificate::Client));
    let key = path(certificates.key(Certificate::Client));
    let server_certificate = [
        format!("server.tls.cert={}", path(certificates.certificate(Certificate::Server))),
        format!("server.tls.key={}", path(certificates.key(Certificate::Server))),
    ];
    let client_ca = format!("server.tls.client-ca={ca}");
    for settings in [&server_certificate[..], &[&server_certificate[..], &[client_ca]].concat()] {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let mut server = AtTerminal::start(&settings, &[]);
        // Words in capitals are placeholders.
        let command = server.shown().replace("--ca FILE", &format!("--ca {ca}"));
        let command = command.replace("--cert FILE", &format!("--cert {cert}"));
        let command = command.replace("--key FILE", &format!("--key {key}"));
        let options = proposed(&command);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (code, out, error) = run(&options);
        assert_eq!(code, 0, "{command}: {out}{error}");
    }
}
