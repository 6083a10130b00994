//! Certificates for a local stack: an authority, and what it signs for this machine.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, Error, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// What a certificate is good for on this machine.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its private key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub cert: String,
    /// The private key.
    pub key: String,
}

// === impl Authority ===

impl Authority {
    /// An authority of its own.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn new(name: &str) -> Result<Authority, Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Authority { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// Its own certificate, PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server or a client on this machine.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn issue(&self, name: &str) -> Result<Identity, Error> {
        let mut params = CertificateParams::new(NAMES.map(str::to_owned))?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { cert, key: key.serialize_pem() })
    }
}
