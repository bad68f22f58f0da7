//! What `config/kubernetes` and the image say of the program, held against the program; and the
//! manifests against the schemas of Kubernetes, where the tools for that are there.

mod containers;
mod image;
mod manifests;
mod schemas;
mod tls;

use std::path::{Path, PathBuf};

/// A file of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
