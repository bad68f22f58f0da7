//! Compiles the protos for `crates/proto`: to Rust code and to a descriptor set. Needs no protoc.

use std::error::Error;
use std::path::PathBuf;

use protox::Compiler;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    for proto in [
        "ratelimit.proto",
        "reservation.proto",
        "ratelimit/admin/v1/admin.proto",
        "ratelimit/admin/v1/projects.proto",
        "envoy/service/ratelimit/v3/rls.proto",
        "kuadrant/service/ratelimit/v1/kuadrantrls.proto",
        "envoy/service/discovery/v3/discovery.proto",
        "ratelimit/config/ratelimit/v3/rls_conf.proto",
    ] {
        compiler.open_file(proto)?;
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .build_client(cfg!(feature = "client"))
        .build_server(cfg!(feature = "server"))
        .build_transport(false)
        .extern_path(".google.rpc.Status", "::tonic_types::Status")
        .include_file("protos.rs")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
