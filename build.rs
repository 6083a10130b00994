//! Compiles the protobuf files with protox, so that no system `protoc` is needed.
//! The gRPC service code, and all of the public contract, is generated with the `native` feature only.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");

    #[cfg(feature = "native")]
    services()?;

    #[cfg(not(feature = "native"))]
    {
        let files = protox::compile(["warmroute/v1/observation.proto"], ["proto"])?;
        prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    }

    Ok(())
}

/// Messages and services, and their descriptors for server reflection.
#[cfg(feature = "native")]
fn services() -> Result<(), Box<dyn Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files([
        "warmroute/v1/observation.proto",
        "inferencecache/v1alpha1/inferencecache.proto",
        "smg/kv_events.proto",
    ])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::native::hub::contract::codec::MessageCodec")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
