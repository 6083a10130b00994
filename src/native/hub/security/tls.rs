//! From PEM files to how a listener takes TLS. TLS 1.2 and 1.3, by rustls with ring.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::native::hub::config::TlsConfig;

/// What the files have in them.
pub struct Pem<'a> {
    pub cert: &'a [u8],
    pub key: &'a [u8],
    pub client_ca: Option<&'a [u8]>,
}

/// How the gRPC side takes TLS, and how the HTTP side would: there a client may come without a certificate, since probes
/// have none.
///
/// # Errors
/// What is wrong with which file.
pub fn configs(pem: &Pem<'_>, names: &TlsConfig) -> Result<(Arc<ServerConfig>, Arc<ServerConfig>), Vec<String>> {
    let provider = Arc::new(ring::default_provider());
    let mut problems = Vec::new();
    let chain = noted(certificates(pem.cert, &names.cert), &mut problems);
    let key = PrivateKeyDer::from_pem_slice(pem.key);
    let key = noted(key.map_err(|error| at(&names.key, &format!("no private key: {error}"))), &mut problems);
    let roots = pem.client_ca.zip(names.client_ca.as_deref()).map(|(pem, name)| authorities(pem, name));
    let roots = roots.and_then(|roots| noted(roots, &mut problems));
    let (Some(chain), Some(key), true) = (chain, key, problems.is_empty()) else { return Err(problems) };
    let config = |required: bool, protocols: &[&[u8]]| {
        let verifier = roots.clone().map(|roots| verifier(roots, &provider, required)).transpose()?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let wrong = |error| at(&names.cert, &format!("does not go with {}: {error}", names.key.display()));
        let mut config = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(wrong)?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Arc::new(config))
    };
    let grpc = config(true, &[b"h2"]).map_err(|problem: String| vec![problem])?;
    let http = config(false, &[b"h2", b"http/1.1"]).map_err(|problem| vec![problem])?;
    Ok((grpc, http))
}

fn verifier(
    roots: Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| error.to_string())
}

fn certificates(pem: &[u8], name: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| at(name, &error.to_string()))?;
    if certificates.is_empty() { Err(at(name, "no certificate in PEM")) } else { Ok(certificates) }
}

fn authorities(pem: &[u8], name: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, name)? {
        roots.add(certificate).map_err(|error| at(name, &error.to_string()))?;
    }
    Ok(Arc::new(roots))
}

fn at(name: &Path, problem: &str) -> String {
    format!("{}: {problem}", name.display())
}

fn noted<T>(result: Result<T, String>, problems: &mut Vec<String>) -> Option<T> {
    result.map_err(|problem| problems.push(problem)).ok()
}
