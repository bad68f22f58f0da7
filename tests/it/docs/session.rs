//! One page's surroundings: a folder, servers on free ports, and a shell that finds the program.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rlaas_testkit::TempDir;
use rlaas_testkit::process::{Rlaas, program, signal};
use rlaas_testkit::redis::{RedisServer, free_port};
use rlaas_testkit::tools::{cache_dir, fetch, finish};

use super::markdown::root;
use crate::examples::workbench::copy;

/// Entries at the top of the repository that a page does not see.
const HIDDEN: [&str; 2] = ["target", ".git"];
/// The longest that a command may take, in seconds.
const MAX_SECONDS: &str = "60";
/// The longest that downloads and builds of a recipe may take, and that its program runs, in seconds.
const MAX_SECONDS_OF_PACKAGES: &str = "900";
/// The version of grpcurl that is run.
const GRPCURL: &str = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3";

/// Runs the commands of one page. They see the files of the repository in a folder of their own, and
/// servers under the addresses of the text: a default one until a command starts another.
pub(super) struct Session {
    pub(super) dir: TempDir,
    server: Option<Rlaas>,
    redis: Option<RedisServer>,
    program: Option<Program>,
    /// The port that stands for 8000 in a recipe.
    program_port: Option<u16>,
    tools: String,
}

/// A program that serves, beside the server; it ends when this is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        signal(self.0.id(), "TERM");
        let _status = self.0.wait();
    }
}

/// What a command has printed, errors included.
#[derive(Debug)]
pub(super) struct Printed {
    pub(super) code: i32,
    pub(super) text: String,
}

impl Printed {
    fn by(mut command: Command) -> Self {
        let output = command.stdin(Stdio::null()).output().expect("bash");
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        Self { code: output.status.code().unwrap_or(-1), text }
    }
}

impl Session {
    pub(super) fn new() -> Self {
        let session = Self { program_port: None, ..Self::of_recipe() };
        for entry in fs::read_dir(root()).expect("the repository") {
            let name = entry.expect("an entry").file_name();
            if !HIDDEN.iter().any(|hidden| name == *hidden) {
                let link = session.dir.path(".").join(&name);
                std::os::unix::fs::symlink(root().join(&name), link).expect("a link");
            }
        }
        session
    }

    /// An empty folder, for the programs of a recipe.
    pub(super) fn of_recipe() -> Self {
        let dir = TempDir::new();
        dir.write(".curlrc", "silent\nshow-error\n");
        let tools = String::new();
        let program_port = Some(free_port());
        Self { dir, server: None, redis: None, program: None, program_port, tools }
    }

    /// Makes a tool available that is not part of the machine's setup.
    ///
    /// # Errors
    ///
    /// Why it can't be had.
    pub(super) fn need(&mut self, tool: &str) -> Result<(), String> {
        if tool == "nginx" {
            return finish(Command::new(tool).arg("-v")).map(drop);
        }
        assert_eq!(tool, "grpcurl", "nothing fetches {tool}");
        let bin = cache_dir("grpcurl");
        if !bin.join(tool).exists() {
            let mut go = Command::new("go");
            fetch(go.args(["install", GRPCURL]).env("GOBIN", &bin))?;
        }
        self.tools = format!("{}:", bin.display());
        Ok(())
    }

    /// Runs a script. A command that serves goes on until the next one or the end of the page.
    pub(super) fn run(&mut self, script: &str) -> Printed {
        let script = script.replace("cargo run --release", "rlaas serve");
        assert!(!script.contains("cargo "), "a block that builds must be notrun: {script}");
        if script.contains(":6379") || script.contains("-p 6379") {
            self.redis.get_or_insert_with(RedisServer::start);
        }
        if is_serve(&script) {
            self.serve(&script);
            return Printed { code: 0, text: String::new() };
        }
        if self.server.is_none() {
            self.server = Some(Rlaas::start(&[]));
        }
        let mut command = self.bash(MAX_SECONDS, &script);
        // The commands that ask look here; those that show the configuration would show it.
        if let Some(server) = self.server.as_ref().filter(|_| !script.contains("config")) {
            command.env("RLAAS_SERVER__LISTEN", server.grpc());
        }
        let Printed { code, text } = Printed::by(command);
        // The default ports of `check-config` may be taken on this machine.
        let is_taken = |line: &&str| {
            line.starts_with("warning: server.") && line.contains(": can't listen on 127.0.0.1:")
        };
        let lines = text.split_inclusive('\n').filter(|line| !is_taken(line));
        Printed { code, text: lines.collect() }
    }

    /// Runs a script that installs the packages of the repository, of which `CHECKOUT` has a copy, and others.
    pub(super) fn install(&mut self, script: &str) -> Printed {
        copy(&root().join("clients"), &self.dir.path("checkout/clients"), &mut String::new());
        let mut command = self.bash(MAX_SECONDS_OF_PACKAGES, script);
        let cache = cache_dir("recipes");
        for (variable, name) in [
            ("PIP_CACHE_DIR", "pip"),
            ("npm_config_cache", "npm"),
            ("GOMODCACHE", "go-modules"),
            ("GOCACHE", "go-build"),
        ] {
            command.env(variable, cache.join(name));
        }
        // Else Go's cache is read-only, and `target` can't be deleted.
        command.envs([("GOFLAGS", "-modcacherw"), ("GOTOOLCHAIN", "local")]);
        Printed::by(command)
    }

    /// Starts a program that serves on the port 8000 of the text, until the next one or the end of the page.
    pub(super) fn start_program(&mut self, script: &str) -> Printed {
        // Its port is free again before the next one needs it.
        self.program = None;
        let log = self.dir.path("program.log");
        let command = format!("exec {}", script.trim());
        let mut command = self.bash(MAX_SECONDS_OF_PACKAGES, &command);
        command.stdout(File::create(&log).expect("a file")).stdin(Stdio::null());
        let program = command.spawn().expect("bash");
        let (id, port) = (program.id(), self.program_port.expect("the port of a recipe"));
        self.program = Some(Program(program));
        let listens = format!("until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do");
        let waits = format!("{listens} kill -0 {id} || break; sleep 0.05; done; kill -0 {id}");
        let Printed { code, text } = Printed::by(self.bash(MAX_SECONDS, &waits));
        let log = fs::read_to_string(log).expect("a log");
        Printed { code, text: format!("{text}{log}") }
    }

    /// Kills the server. Its addresses stay those of the text.
    pub(super) fn kill_server(&mut self) {
        let server = self.server.as_mut().expect("a server");
        server.signal("KILL");
        server.wait();
    }

    fn serve(&mut self, script: &str) {
        self.server = None;
        let command = script.trim().split(" #").next().expect("a first part");
        let script = format!("exec env {} \"$@\"", self.with_ports(command));
        let mut bash = self.in_folder("bash");
        bash.args(["-c", &script, "bash"]);
        // A busy machine is no subject here.
        self.server = Some(Rlaas::start_with(bash, &["store.redis.timeout=10s"]));
    }

    /// Replaces the ports of the text by those of the servers.
    fn with_ports(&self, script: &str) -> String {
        let mut script = script.to_owned();
        if let Some(port) = self.program_port {
            script = script.replace("8000", &port.to_string());
        }
        if let Some(server) = &self.server {
            script = script.replace(":50051", &format!(":{}", port(server.grpc())));
            script = script.replace(":8080", &format!(":{}", port(server.http())));
        }
        if let Some(redis) = &self.redis {
            script = script.replace(":6379", &format!(":{}", redis.port()));
            script = script.replace("-p 6379", &format!("-p {}", redis.port()));
        }
        script
    }

    /// A script with the ports of the servers, which prints errors too, and ends after `seconds`.
    fn bash(&self, seconds: &str, script: &str) -> Command {
        let mut command = self.in_folder("timeout");
        let script = format!("exec 2>&1\n{}", self.with_ports(script));
        command.args(["--kill-after=10", seconds, "bash", "-c", &script]);
        command
    }

    /// A command in the page's folder, which finds the program and the tools.
    fn in_folder(&self, name: &str) -> Command {
        let program = program();
        let bin = program.parent().expect("a folder").display();
        let path = std::env::var("PATH").expect("a path");
        let mut command = Command::new(name);
        command
            .current_dir(self.dir.path("."))
            .env("PATH", format!("{}{bin}:{path}", self.tools))
            .env("CURL_HOME", self.dir.path("."))
            .env("CHECKOUT", self.dir.path("checkout"))
            .env_remove("REDIS_URL")
            .env_remove("RUST_LOG")
            .env_remove("RLAAS_TOKEN")
            .env_remove("RLAAS_API_KEY");
        command
    }

    /// Writes a file, with the ports of the servers.
    pub(super) fn write(&mut self, name: &str, text: &str) {
        if text.contains(":6379") {
            self.redis.get_or_insert_with(RedisServer::start);
        }
        assert!(!Path::new(name).is_absolute(), "{name} is outside of the page's folder");
        let folder = self.dir.path(name).parent().expect("a folder").to_owned();
        fs::create_dir_all(folder).expect("a folder of the page");
        // A busy machine is no subject here: nginx passes what has no answer in time.
        let text = text.replace("_timeout 50ms", "_timeout 10s");
        self.dir.write(name, &self.with_ports(&text));
    }
}

/// Returns `true` if a script is one command that serves.
fn is_serve(script: &str) -> bool {
    let words = script.split_whitespace().skip_while(|word| word.contains('='));
    let words: Vec<&str> = words.take(2).collect();
    words == ["rlaas", "serve"] && script.trim().lines().count() == 1
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().expect("a port")
}

#[test]
fn commands_that_serve_are_known() {
    assert!(is_serve("rlaas serve --config my.yaml\n"));
    assert!(is_serve("REDIS_URL=redis://127.0.0.1:6379 rlaas serve"));
    for other in ["rlaas check alice", "echo rlaas serve", "rlaas serve\nrlaas check alice"] {
        assert!(!is_serve(other), "{other}");
    }
}
