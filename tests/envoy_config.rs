//! Every file in `envoy/` is a configuration that Envoy accepts, with the module in place.
#![cfg(feature = "native")]

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use warmroute::native::load::programs::Programs;

    /// Where the samples expect the module.
    const MODULE_IN_SAMPLES: &str = "/etc/envoy/warmroute.wasm";

    #[test]
    fn envoy_accepts_every_sample() {
        let programs = Programs::find().unwrap_or_else(|error| panic!("{error}"));
        let samples = samples(&Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy"));
        assert!(samples.iter().any(|sample| sample.ends_with("envoy.yaml")), "{samples:?}");
        for sample in samples {
            validate(&programs, &sample);
        }
    }

    fn samples(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
    }

    fn validate(programs: &Programs, sample: &Path) {
        let text = std::fs::read_to_string(sample).unwrap();
        assert!(text.contains(MODULE_IN_SAMPLES), "{}: the module is {MODULE_IN_SAMPLES} in samples", sample.display());
        let config = text.replace(MODULE_IN_SAMPLES, &programs.module.display().to_string());
        let output =
            Command::new(&programs.envoy).args(["--mode", "validate", "--config-yaml", &config]).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {log}", sample.display());
        assert!(!log.contains("Deprecated field"), "{}: {log}", sample.display());
    }
}
