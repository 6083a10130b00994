//! Whether a configuration of the hub is good: the file, and the files and directories that it names.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{Failure, say};
use crate::native::hub::https::{self, Trust};
use crate::native::hub::models::ModelsDirectory;
use crate::native::hub::policies::PolicyDirectory;
use crate::native::hub::security::Security;
use crate::native::hub::{HubConfig, discovery_problems};

/// The arguments of `check-config`.
#[derive(Args, Debug)]
pub struct CheckConfigArguments {
    /// The configuration, YAML
    file: PathBuf,
}

/// Says what is wrong, and what is not used, which alone is no failure.
///
/// # Errors
/// When something is wrong: one line for each thing.
pub fn run(arguments: &CheckConfigArguments) -> Result<(), Failure> {
    let refused = |problems: Vec<String>| Failure::Refused(problems.join("\n"));
    let config = read_config(&arguments.file).map_err(refused)?;
    check(&config).map_err(refused)
}

/// The configuration in a file.
///
/// # Errors
/// When it cannot be read or is not valid: one line for each problem, beginning with the path.
pub fn read_config(path: &Path) -> Result<HubConfig, Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| vec![format!("cannot be read: {error}")]);
    let config = text.and_then(|text| HubConfig::from_yaml(&text).map_err(|invalid| invalid.problems));
    config.map_err(|problems| problems.iter().map(|problem| format!("{}: {problem}", path.display())).collect())
}

/// Looks at the certificates, the tokens, the files of replicas, the CachePolicies and the models' directories. Says what is not used.
///
/// # Errors
/// When something is wrong: one line for each thing, then one for each that is not used.
pub fn check(config: &HubConfig) -> Result<(), Vec<String>> {
    let (mut problems, mut notes) = (Security::problems(&config.security), Vec::new());
    let trust = Trust { ca: config.metrics_ca.as_deref(), ..Trust::default() };
    problems.extend(https::connector(trust).err().map(|problem| format!("metrics_ca: {problem}")));
    problems.extend(discovery_problems(&config.discovery));
    if let Some(policies) = &config.policies {
        let reading = PolicyDirectory::new(&policies.directory).read();
        problems.extend(reading.problems);
        notes.extend(reading.unused);
    }
    if let Some(tokenizers) = &config.tokenizers {
        let reading = ModelsDirectory::new(tokenizers.clone()).read();
        problems.extend(reading.problems);
        notes.extend(reading.notes);
    }
    if problems.is_empty() {
        notes.iter().for_each(say);
        return Ok(());
    }
    problems.extend(notes);
    Err(problems)
}
