//! `security`: who may talk to the hub, and how it is known who they are.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::native::hub::problems::Problems;

/// `security.reload_ms`.
const RELOAD_MS: u64 = 5_000;
/// The most files of tokens.
const MAX_TOKEN_FILES: usize = 256;

/// Who may talk to the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityConfig {
    /// Whether anybody may who can reach it, beyond the loopback interface too. What is configured all the same holds.
    pub insecure: bool,
    /// The hub's certificate, if it has one.
    pub tls: Option<TlsConfig>,
    /// Files of bearer tokens.
    pub tokens: Vec<TokensConfig>,
    /// The HTTP side.
    pub operations: OperationsConfig,
    /// How often files are looked at.
    pub reload: Duration,
}

/// The files for TLS, PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose certificates clients must have; absent, they need none.
    pub client_ca: Option<PathBuf>,
}

/// A file of bearer tokens, one a line, and what they are good for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokensConfig {
    /// The file.
    pub file: PathBuf,
    /// What they allow.
    pub allow: Vec<Access>,
}

/// What a token can be good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// To say what replicas hold: `ReportCacheState`, `PublishEvent`.
    Producers,
    /// To hear all that is known: `Observe`, `StreamCacheEvents`.
    Observers,
    /// To ask: `LookupRoute` and the other calls of the contract.
    Lookups,
    /// To see `/metrics` and `/state`.
    Operators,
}

/// How the HTTP side is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OperationsConfig {
    /// Whether it takes TLS, with the certificate of `security.tls`.
    pub tls: bool,
    /// Whether it shows `/metrics` and `/state` to anybody.
    pub open: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSecurity {
    #[serde(default)]
    insecure: bool,
    tls: Option<TlsConfig>,
    #[serde(default)]
    tokens: Vec<TokensConfig>,
    #[serde(default)]
    operations: OperationsConfig,
    reload_ms: Option<u64>,
}

/// Reads the section, and refuses to be reached by others without it.
pub(super) fn security(
    raw: RawSecurity,
    grpc: Option<SocketAddr>,
    http: Option<SocketAddr>,
    problems: &mut Problems,
) -> SecurityConfig {
    let RawSecurity { insecure, tls, tokens, operations, reload_ms } = raw;
    let reload = problems.millis("security.reload_ms", reload_ms, RELOAD_MS, 100, 600_000);
    if tokens.len() > MAX_TOKEN_FILES {
        problems.add("security.tokens", format!("{} files", tokens.len()), &format!("at most {MAX_TOKEN_FILES}"));
    }
    for (place, tokens) in tokens.iter().enumerate() {
        if tokens.allow.is_empty() {
            let all = "some of producers, observers, lookups, operators";
            problems.add(&format!("security.tokens[{place}].allow"), "[]", all);
        }
    }
    if operations.tls && tls.is_none() {
        problems.add("security.operations.tls", true, "false where there is no security.tls");
    }
    let config = SecurityConfig { insecure, tls, tokens, operations, reload };
    if !insecure {
        grpc.filter(is_reachable).into_iter().for_each(|grpc| config.check_grpc(grpc, problems));
        http.filter(is_reachable).into_iter().for_each(|http| config.check_http(http, problems));
    }
    config
}

/// Whether others than this machine may reach it.
fn is_reachable(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

// === impl SecurityConfig ===

impl SecurityConfig {
    /// Whether calls need a bearer token.
    pub fn asks_for_tokens(&self) -> bool {
        self.allows(|access| access != Access::Operators)
    }

    /// Whether `/metrics` and `/state` are shown to those alone who have a bearer token for it, or a certificate.
    pub fn guards_operations(&self) -> bool {
        !self.operations.open && (self.allows(|access| access == Access::Operators) || self.knows_operators())
    }

    fn knows_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    fn knows_operators(&self) -> bool {
        self.operations.tls && self.knows_clients()
    }

    fn allows(&self, wanted: impl Fn(Access) -> bool) -> bool {
        self.tokens.iter().any(|tokens| tokens.allow.iter().any(|access| wanted(*access)))
    }

    fn check_grpc(&self, grpc: SocketAddr, problems: &mut Problems) {
        let mut missing = Vec::new();
        if self.tls.is_none() {
            missing.push("security.tls (cert, key)");
        }
        if !self.knows_clients() && !self.asks_for_tokens() {
            missing.push("security.tls.client_ca or security.tokens");
        }
        refuse("listen.grpc", grpc, &missing, "security.insecure: true to serve whoever can reach it", problems);
    }

    fn check_http(&self, http: SocketAddr, problems: &mut Problems) {
        let mut missing = Vec::new();
        if !self.operations.open {
            if !self.operations.tls {
                missing.push("security.operations.tls");
            }
            if !self.guards_operations() && !self.knows_clients() {
                missing.push("security.tls.client_ca or a token that allows operators");
            }
        }
        let open = "security.operations.open: true to show /metrics and /state to whoever can reach it";
        refuse("listen.http", http, &missing, open, problems);
    }
}

fn refuse(field: &str, address: SocketAddr, missing: &[&str], otherwise: &str, problems: &mut Problems) {
    if !missing.is_empty() {
        let missing = missing.join(" and ");
        problems.add_line(format!(
            "{field} is `{address}`, which others can reach: set {missing}, or an address such as 127.0.0.1, or {otherwise}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use crate::native::hub::HubConfig;

    fn problems(more: &str) -> Vec<String> {
        match HubConfig::from_yaml(&format!("reports: {{}}\n{more}")) {
            Ok(_) => Vec::new(),
            Err(invalid) => invalid.problems,
        }
    }

    const TOKENS: &str = "tokens: [{file: t, allow: [producers, observers, lookups, operators]}]";

    #[test]
    fn on_loopback_nothing_is_needed() {
        for grpc in ["127.0.0.1:0", "127.1.2.3:0", "'[::1]:0'", "'[::ffff:127.0.0.1]:0'"] {
            assert_eq!(problems(&format!("listen: {{grpc: {grpc}, http: {grpc}}}")), [""; 0]);
        }
    }

    #[test]
    fn others_are_let_in_by_what_is_said_alone() {
        let others = "listen: {grpc: '0.0.0.0:9', http: '[::]:8'}\n";
        let both = problems(others);
        assert_eq!(
            both,
            [
                "listen.grpc is `0.0.0.0:9`, which others can reach: set security.tls (cert, key) and \
                 security.tls.client_ca or security.tokens, or an address such as 127.0.0.1, or security.insecure: true to \
                 serve whoever can reach it",
                "listen.http is `[::]:8`, which others can reach: set security.operations.tls and security.tls.client_ca \
                 or a token that allows operators, or an address such as 127.0.0.1, or security.operations.open: true to \
                 show /metrics and /state to whoever can reach it",
            ]
        );
        let found = |security: &str| {
            let problems = problems(&format!("{others}security: {{{security}}}"));
            let of = |field: &str| problems.iter().any(|problem| problem.starts_with(field));
            assert_eq!(problems.len(), usize::from(of("listen.grpc")) + usize::from(of("listen.http")), "{problems:?}");
            (of("listen.grpc"), of("listen.http"))
        };
        let tls = "tls: {cert: c, key: k}";
        assert_eq!(found("insecure: true"), (false, false));
        assert_eq!(found("operations: {open: true}"), (true, false));
        assert_eq!(found(TOKENS), (true, true), "a token that everybody can read");
        assert_eq!(found(tls), (true, true), "anybody");
        assert_eq!(found(&format!("{tls}, {TOKENS}")), (false, true));
        assert_eq!(found(&format!("{tls}, {TOKENS}, operations: {{tls: true}}")), (false, false));
        assert_eq!(found("tls: {cert: c, key: k, client_ca: a}, operations: {tls: true}"), (false, false));
        let (grpc, _) = found(&format!("{tls}, tokens: [{{file: t, allow: [operators]}}], operations: {{open: true}}"));
        assert!(grpc, "a token that allows no call");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(
            problems("security: {tokens: [{file: t, allow: []}], operations: {tls: true}, reload_ms: 1}"),
            [
                "security.reload_ms is `1`, allowed is 100 to 600000",
                "security.tokens[0].allow is `[]`, allowed is some of producers, observers, lookups, operators",
                "security.operations.tls is `true`, allowed is false where there is no security.tls",
            ]
        );
        assert!(problems("security: {tokens: [{file: t, allow: [everything]}]}")[0].contains("unknown variant"));
        assert!(problems("security: {insecur: true}")[0].contains("unknown field"));
    }
}
