//! The examples `check` of the packages in `clients`, each built once for all tests.

use std::process::Command;
use std::sync::LazyLock;

use super::workbench::Workbench;

/// An example, or `None` if it can't be built, and the tests are skipped.
pub(super) type Example = LazyLock<Option<BuiltExample>>;

pub(super) static GO: Example = LazyLock::new(|| {
    let build: &[&str] = &["go", "build", "-o", "bin/check", "./examples/check"];
    let bench = Workbench::new("clients/go");
    let is_ready = bench.is_ready(&[&["go", "mod", "download"]], &[build]);
    is_ready.then_some(BuiltExample { bench, command: &["bin/check"] })
});

pub(super) static PYTHON: Example = LazyLock::new(|| {
    let install =
        "python3 -m pip install -q --disable-pip-version-check --retries 1 --upgrade . --target";
    let bench = Workbench::new("clients/python");
    let packages = bench.packages().display().to_string();
    let install: Vec<&str> = install.split(' ').chain([&*packages]).collect();
    let is_ready = bench.is_ready(&[&install], &[]);
    is_ready.then_some(BuiltExample { bench, command: &["python3", "examples/check.py"] })
});

pub(super) static NODE: Example = LazyLock::new(|| {
    let bench = Workbench::new("clients/node");
    let install: &[&str] = &["npm", "ci", "--fetch-retries=1"];
    let is_ready = bench.is_ready(&[install], &[&["npm", "run", "build"]]);
    is_ready.then_some(BuiltExample { bench, command: &["node", "examples/check.js"] })
});

#[derive(Debug)]
pub(super) struct BuiltExample {
    bench: Workbench,
    command: &'static [&'static str],
}

impl BuiltExample {
    /// Returns a command that runs the example.
    pub(super) fn command(&self) -> Command {
        self.bench.command(self.command[0], &self.command[1..])
    }
}
