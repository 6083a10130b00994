//! `envoy/production.yaml`: hubs over TLS with certificates on both sides, tenants from a JWT, health checks, retries.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey};
use warmroute::native::load::certificates::Authority;

use super::*;

const SAMPLE: &str = include_str!("../../../envoy/production.yaml");

/// Who signs tokens.
struct Issuer(KeyPair);

// === impl Issuer ===

impl Issuer {
    fn new() -> Issuer {
        Issuer(KeyPair::generate_for(&PKCS_ED25519).unwrap())
    }

    fn jwks(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key_raw());
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "1", "x": x }] })
            .to_string()
    }

    fn token(&self, tenant: &str) -> String {
        let head = json!({ "alg": "EdDSA", "typ": "JWT", "kid": "1" });
        let claims = json!({ "iss": "https://issuer.example", "aud": "llm", "sub": "test", "tenant": tenant });
        let [head, claims] = [head, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{head}.{claims}");
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()).unwrap());
        format!("Bearer {signed}.{signature}")
    }
}

/// The hub's security, and everything that the sample expects under `/etc/envoy`.
fn write_files(folder: &Folder, issuer: &Issuer) -> Yaml {
    let authority = Authority::new("production").unwrap();
    folder.write("ca.pem", &authority.pem());
    for name in ["envoy", "hub"] {
        let identity = authority.issue(name).unwrap();
        folder.write(&format!("{name}.pem"), &identity.cert);
        folder.write(&format!("{name}.key"), &identity.key);
    }
    folder.write("jwks.json", &issuer.jwks());
    let file = |name: &str| folder.0.join(name).display().to_string();
    let tls = json!({ "cert": file("hub.pem"), "key": file("hub.key"), "client_ca": file("ca.pem") });
    serde_norway::to_value(json!({ "tls": tls })).unwrap()
}

/// The sample on this machine, where certificates are for `localhost`.
fn sample(folder: &Folder) -> Yaml {
    let text = folder.placed(SAMPLE).replace("hub.example", "localhost");
    let mut sample: Yaml = serde_norway::from_str(&text).unwrap();
    let plugin = &mut envoy_config::filter(&mut sample).unwrap()["typed_config"]["config"]["configuration"]["value"];
    *plugin = telling(plugin);
    sample
}

#[tokio::test(flavor = "multi_thread")]
async fn hubs_have_certificates_and_tenants_are_proved() {
    let (folder, issuer) = (Folder::new("production"), Issuer::new());
    let security = write_files(&folder, &issuer);
    let sample = sample(&folder);
    let mut stack = stack(|options| {
        // The other one is not there: the filter goes on from it to the one that is.
        run_instead(options, sample, &["hub_b"]);
        options.edit_hub = Some(Box::new(move |config, _| {
            config["security"] = security;
            for replica in config["replicas"].as_sequence_mut().unwrap() {
                replica["tenant"] = "acme".into();
            }
        }));
    })
    .await;
    let token = issuer.token("acme");
    let dress = |head: Builder| head.header("authorization", &token).header("x-tenant", "someone");
    shows_a_match("production.yaml", &stack, &dress).await;
    reads_bodies("production.yaml", &stack, &dress).await;

    // Another tenant holds nothing; a request without a token, or with one of another issuer, gets nowhere.
    let other = issuer.token("other");
    let answer = send(&stack, probe_head(&tokens(1, 160)).header("authorization", &other), "/v1/probe", "").await;
    assert_eq!(answer.header("x-inferencecache-reason-code"), "UNKNOWN_TENANT");
    let forged = Issuer::new().token("acme");
    for head in [probe_head(&tokens(1, 160)), probe_head(&tokens(1, 160)).header("authorization", forged)] {
        assert_eq!(send(&stack, head, "/v1/probe", "").await.status, 401);
    }

    // The best of the list is down: the next one answers. The hub is stopped first, or it would say so.
    stack.hub.kill().await.unwrap();
    stack.engines[1].kill().await.unwrap();
    let head = dress(probe_head(&tokens(1, 160))).header("content-type", "application/json");
    let answer = send(&stack, head, "/v1/completions", body(&tokens(1, 160))).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-inferencecache-replica-id")), (200, "engine-1"));
    assert_ne!(engine_of(&answer), 1);
}
