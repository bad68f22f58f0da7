# Short names for the commands of this project: `just --list`. Not needed for anything.

# Runs the gate, or some of its steps: format lint test valkey doc
gate *steps:
    tests/run.sh {{ steps }}

# Starts the service with the settings of config/rlaas.yaml
run *arguments:
    cargo run -- serve --config config/rlaas.yaml {{ arguments }}

# Formats the code
format:
    cargo fmt

# Runs clippy with warnings denied
lint:
    cargo lint

# Runs the integration tests whose names contain the filter: `just test faults::`
test filter="":
    cargo test --test it -- {{ filter }}

# Checks spelling, protos, licenses, workflows, scripts and the book
check *tools:
    scripts/lint.sh {{ tools }}

# Opens the documentation of the crates
doc:
    cargo doc --workspace --no-deps --open

# Opens the book
book:
    scripts/tool.sh mdbook serve docs --open

# Fuzzes each target, or the named ones
fuzz seconds="60" *targets:
    scripts/fuzz.sh {{ seconds }} {{ targets }}

# Writes the third-party notices anew
notices:
    scripts/notices.sh --update

# Builds the image and tries it
image:
    scripts/image.sh

# Makes every artefact of a release, or some steps, and tries it; publishes nothing
release-dry-run *steps:
    scripts/release.sh {{ steps }}
