//! Where the stack's programs are: Envoy, the module, the hub, the fake engine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs of a stack.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Envoy, 1.36 or later.
    pub envoy: PathBuf,
    /// The module, as `make wasm` leaves it.
    pub module: PathBuf,
    /// `warmroute-hub`.
    pub hub: PathBuf,
    /// `fake-engine`.
    pub fake_engine: PathBuf,
}

/// A program that is not there, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingProgram {
    /// What is missing.
    pub what: String,
    /// How to get it.
    pub remedy: String,
}

// === impl Programs ===

impl Programs {
    /// Finds all four: the binaries beside the running one (a test binary is one folder below them), the module in
    /// `$WARMROUTE_MODULE` or in the target folder, Envoy as in [`find_envoy`].
    ///
    /// # Errors
    /// For the first that is missing.
    pub fn find() -> Result<Programs, MissingProgram> {
        let binaries = binaries_folder()?;
        let binary = |name: &str| {
            let remedy = "cargo build --features native --bins";
            existing(binaries.join(name), remedy)
        };
        Ok(Programs {
            hub: binary("warmroute-hub")?,
            fake_engine: binary("fake-engine")?,
            module: find_module(&binaries)?,
            envoy: find_envoy()?,
        })
    }
}

/// The Envoy in `$WARMROUTE_ENVOY`, else the one that `scripts/tools.py envoy` finds or fetches.
///
/// # Errors
/// When the variable names no file, or the script fails; its own message says why.
pub fn find_envoy() -> Result<PathBuf, MissingProgram> {
    if let Some(path) = std::env::var_os("WARMROUTE_ENVOY").filter(|path| !path.is_empty()) {
        return existing(PathBuf::from(path), "WARMROUTE_ENVOY has to be the path of an Envoy");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/tools.py");
    let missing = |why: String| MissingProgram {
        what: format!("Envoy ({why})"),
        remedy: "set WARMROUTE_ENVOY to its path".into(),
    };
    let output = Command::new("python3")
        .arg(&script)
        .arg("envoy")
        .output()
        .map_err(|error| missing(format!("python3 {}: {error}", script.display())))?;
    if !output.status.success() {
        return Err(missing(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    existing(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()), "set WARMROUTE_ENVOY to its path")
}

fn find_module(binaries: &Path) -> Result<PathBuf, MissingProgram> {
    let path = std::env::var_os("WARMROUTE_MODULE")
        .filter(|path| !path.is_empty())
        .map_or_else(|| binaries.join("../warmroute.wasm"), PathBuf::from);
    existing(path, "make wasm")
}

fn binaries_folder() -> Result<PathBuf, MissingProgram> {
    let running = std::env::current_exe().ok();
    let folder = running.as_deref().and_then(Path::parent).map(|folder| {
        let tests = folder.ends_with("deps") || folder.ends_with("examples");
        if tests { folder.parent().unwrap_or(folder) } else { folder }
    });
    folder.map(Path::to_path_buf).ok_or_else(|| MissingProgram {
        what: "the folder of the running program".into(),
        remedy: "run it by its path".into(),
    })
}

fn existing(path: PathBuf, remedy: &str) -> Result<PathBuf, MissingProgram> {
    path.canonicalize().map_err(|_| MissingProgram { what: path.display().to_string(), remedy: remedy.to_owned() })
}

// === impl MissingProgram ===

impl std::fmt::Display for MissingProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is missing: {}", self.what, self.remedy)
    }
}

impl std::error::Error for MissingProgram {}
