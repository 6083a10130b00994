//! Compiles the protobuf files with protox, so that no system `protoc` is needed.
//! The gRPC service code is generated with the `native` feature only.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["warmroute/v1/observation.proto"], ["proto"])?;

    #[cfg(feature = "native")]
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;

    #[cfg(not(feature = "native"))]
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;

    Ok(())
}
