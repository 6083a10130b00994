//! `warmroute-hub inspect` of a hub that asks for TLS and for tokens.

use std::process::{Output, Stdio};

use warmroute::native::load::certificates::Authority;

use crate::client::*;

const OPERATOR: &str = "operator-0123456789";

async fn inspect(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_warmroute-hub"));
    let Output { status, stdout, stderr } =
        command.arg("inspect").args(arguments).stdin(Stdio::null()).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn a_hub_with_tls_is_inspected_with_its_authority_and_a_file_of_tokens_like_its_own() {
    let folder = Folder::new();
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let (cert, key) = folder.write_identity("hub", &ours.issue("hub").unwrap());
    let (ca, other_ca) = (folder.write("ca.pem", &ours.pem()), folder.write("other.pem", &theirs.pem()));
    let tokens = folder.write("operators.tokens", &format!("# new\n{OPERATOR}\n# old\n{OTHER}\n"));
    let calls = folder.write("calls.tokens", &format!("{TOKEN}\n"));
    let hub = hub(&format!(
        "security: {{tls: {{cert: {cert}, key: {key}}}, operations: {{tls: true}}, tokens: [\
         {{file: {tokens}, allow: [operators]}}, {{file: {calls}, allow: [lookups]}}]}}"
    ))
    .await;
    let url = format!("https://localhost:{}", hub.http_address().port());
    let (code, out, said) = inspect(&["--hub", &url, "--ca", &ca, "--token-file", &tokens]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(out.starts_with("hub ") && out.contains("no replicas are followed"), "{out}");

    let plain = url.replace("https", "http");
    let bad = folder.write("bad.tokens", "short\n");
    for (arguments, code, expected) in [
        (vec!["--hub", &url, "--ca", &ca], 1, "401 Unauthorized: it wants a token"),
        (
            vec!["--hub", &url, "--ca", &ca, "--token-file", &calls],
            1,
            "403 Forbidden: the token is not one that allows operators",
        ),
        (vec!["--hub", &url, "--token-file", &tokens], 1, "UnknownIssuer"),
        (vec!["--hub", &url, "--ca", &other_ca, "--token-file", &tokens], 1, "certificate"),
        (vec!["--hub", &plain, "--token-file", &tokens], 1, &plain),
        (vec!["--hub", &plain, "--ca", &ca], 2, "allowed with --ca or --cert is https://host:port"),
        (vec!["--hub", &url, "--ca", "/nowhere/ca"], 2, "/nowhere/ca: cannot be read"),
        (vec!["--hub", &url, "--ca", &key], 2, "no certificate in PEM"),
        (vec!["--hub", &url, "--token-file", &bad], 2, "bad.tokens: line 1 is no token"),
        (vec!["--hub", &url, "--cert", &cert], 2, "--key"),
    ] {
        let (exit, out, said) = inspect(&arguments).await;
        assert_eq!((exit, out.as_str()), (Some(code), ""), "{arguments:?}: {said}");
        assert!(said.contains(expected) && !said.contains(OPERATOR) && !said.contains(TOKEN), "{arguments:?}: {said}");
    }
    hub.shutdown().await;
}

#[tokio::test]
async fn an_operator_known_by_a_certificate_needs_no_token() {
    let folder = Folder::new();
    let authority = Authority::new("ours").unwrap();
    let (cert, key) = folder.write_identity("hub", &authority.issue("hub").unwrap());
    let (own, own_key) = folder.write_identity("operator", &authority.issue("operator").unwrap());
    let ca = folder.write("ca.pem", &authority.pem());
    let tls = format!("tls: {{cert: {cert}, key: {key}, client_ca: {ca}}}, operations: {{tls: true}}");
    let hub = hub(&format!("security: {{{tls}}}")).await;
    let url = format!("https://localhost:{}", hub.http_address().port());
    let (code, out, said) = inspect(&["--hub", &url, "--ca", &ca, "--cert", &own, "--key", &own_key]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(out.starts_with("hub "), "{out}");
    let (code, _, said) = inspect(&["--hub", &url, "--ca", &ca]).await;
    assert!(code == Some(1) && said.contains("401"), "{said}");
    let (code, _, said) = inspect(&["--hub", &url, "--ca", &ca, "--cert", &own, "--key", &key]).await;
    assert!(code == Some(2) && said.contains("operator.pem: does not go with"), "{said}");
    hub.shutdown().await;
}
