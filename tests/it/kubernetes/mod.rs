//! `config/kubernetes`, the chart and the image, compared with the program and, if the tools are installed,
//! with the schemas of Kubernetes.

mod chart;
mod containers;
mod image;
mod manifests;
mod schemas;
mod tls;

use std::path::{Path, PathBuf};

/// Returns the path of a file of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
