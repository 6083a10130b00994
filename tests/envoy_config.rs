//! Every file in `envoy/` is a configuration that Envoy accepts, with the module and what else it names in place.
#![cfg(feature = "native")]

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use rcgen::{KeyPair, PKCS_ED25519};
    use warmroute::native::load::certificates::Authority;
    use warmroute::native::load::programs::Programs;

    /// Where the samples expect the module, and all other files.
    const MODULE_IN_SAMPLES: &str = "/etc/envoy/warmroute.wasm";
    const FOLDER_IN_SAMPLES: &str = "/etc/envoy";

    #[test]
    fn envoy_accepts_every_sample() {
        let programs = Programs::find().unwrap_or_else(|error| panic!("{error}"));
        let folder = std::env::temp_dir().join(format!("warmroute-samples-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let placed = |text: &str| {
            let text = text.replace(MODULE_IN_SAMPLES, &programs.module.display().to_string());
            text.replace(FOLDER_IN_SAMPLES, &folder.display().to_string())
        };
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy");
        write_files(&folder, &placed(&std::fs::read_to_string(samples.join("ecds/warmroute.yaml")).unwrap()));
        let samples = files(&samples);
        assert!(samples.iter().any(|sample| sample.ends_with("envoy.yaml")), "{samples:?}");
        for sample in samples {
            let text = std::fs::read_to_string(&sample).unwrap();
            assert!(text.contains(FOLDER_IN_SAMPLES), "{}: files are in {FOLDER_IN_SAMPLES}", sample.display());
            validate(&programs, &sample, &placed(&text));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// What samples name besides the module: certificates, the keys of an issuer, a filter to be discovered.
    fn write_files(folder: &Path, discovered: &str) {
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let authority = Authority::new("samples").unwrap();
        let identity = authority.issue("envoy").unwrap();
        write("ca.pem", &authority.pem());
        write("envoy.pem", &identity.cert);
        write("envoy.key", &identity.key);
        let key = URL_SAFE_NO_PAD.encode(KeyPair::generate_for(&PKCS_ED25519).unwrap().public_key_raw());
        write(
            "jwks.json",
            &format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": "{key}"}}]}}"#),
        );
        write("warmroute.yaml", discovered);
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
    }

    fn validate(programs: &Programs, sample: &Path, config: &str) {
        let output =
            Command::new(&programs.envoy).args(["--mode", "validate", "--config-yaml", config]).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {log}", sample.display());
        assert!(!log.contains("Deprecated field"), "{}: {log}", sample.display());
    }
}
