//! Protos to code and descriptor set; nothing else, and no protoc.

use std::error::Error;
use std::path::PathBuf;

use protox::Compiler;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    for proto in ["ratelimit.proto", "envoy/service/ratelimit/v3/rls.proto"] {
        compiler.open_file(proto)?;
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("ratelimit.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .extern_path(".google.rpc.Status", "::tonic_types::Status")
        .compile_fds(compiler.file_descriptor_set())?;
    // The service once more, with answers that are written without a message between: see
    // src/api/wire.rs.
    let served = out.join("served");
    std::fs::create_dir_all(&served)?;
    let mut served = tonic_prost_build::configure()
        .build_client(false)
        .out_dir(served)
        .codec_path("crate::api::wire::Codec")
        .extern_path(".google.rpc.Status", "::tonic_types::Status")
        .extern_path(".ratelimit.v1", "crate::api::proto");
    for answer in ["CheckResponse", "CheckBatchResponse", "CheckResult"] {
        let path = format!(".ratelimit.v1.{answer}");
        served = served.extern_path(path, "crate::api::wire::Written");
    }
    served.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
