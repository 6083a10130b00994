//! The way to a server over HTTP or HTTPS, as its URL says: to engines' metrics, and from `inspect` to a hub.
//!
//! In: files of PEM, read once. Whom they name is trusted, or else whom the system trusts. TLS is 1.2 and 1.3, by rustls with
//! ring.

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Connects to either.
pub type Connector = HttpsConnector<HttpConnector>;

/// Whom to trust, and whom to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust<'a> {
    /// The authorities of servers; `None` for those of the system.
    pub ca: Option<&'a Path>,
    /// The certificate to show, and its private key.
    pub identity: Option<(&'a Path, &'a Path)>,
}

/// A connector for requests over HTTP/1.1.
///
/// # Errors
/// What is wrong with which file.
pub fn connector(trust: Trust<'_>) -> Result<Connector, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots(trust.ca)?);
    let config = match trust.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let private = PrivateKeyDer::from_pem_slice(&read(key)?);
            let private = private.map_err(|error| at(key, &format!("no private key: {error}")))?;
            let wrong = |error| at(cert, &format!("does not go with {}: {error}", key.display()));
            builder.with_client_auth_cert(certificates(cert)?, private).map_err(wrong)?
        }
    };
    Ok(HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build())
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        // None at all is no error here: most talk to no server with TLS.
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| at(path, &error.to_string()))?;
            }
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| at(path, &error.to_string()))?;
    if found.is_empty() { Err(at(path, "no certificate in PEM")) } else { Ok(found) }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| at(path, &format!("cannot be read: {error}")))
}

fn at(path: &Path, problem: &str) -> String {
    format!("{}: {problem}", path.display())
}
