//! The command line: what is refused before the hub starts, and what its log looks like.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::client::Folder;
use crate::hub_support::free_port;
use warmroute::native::load::certificates::Authority;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmroute-hub")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn check_config_names_what_is_wrong_and_so_does_check() {
    let folder = Folder::new();
    let good = folder.write("good.yaml", "reports: {}\n");
    assert_eq!(run(&["check-config", &good]).status.code(), Some(0));
    assert_eq!(run(&["--config", &good, "--check"]).status.code(), Some(0));
    let authority = Authority::new("ours").unwrap();
    let (cert, key) = folder.write_identity("hub", &authority.issue("hub").unwrap());
    let tokens = folder.write("tokens", "sh0rt\n");
    let security = format!("{{tls: {{cert: {cert}, key: {key}}}, tokens: [{{file: {tokens}, allow: [lookups]}}]}}");
    let bad_file = folder.write("file.yaml", &format!("reports: {{}}\nsecurity: {security}\n"));
    let bad_value = folder.write("value.yaml", "reports: {}\nheartbeat_ms: 1\nlimits: {max_streams: 0}\n");
    let open = folder.write("open.yaml", "reports: {}\nlisten: {grpc: '0.0.0.0:0'}\n");
    for (file, lines, expected) in [
        (&bad_file, 1, "tokens: line 1 is no token"),
        (&bad_value, 2, "limits.max_streams is `0`, allowed is 1 to 1000000"),
        (&open, 1, "set security.tls (cert, key) and security.tls.client_ca or security.tokens"),
    ] {
        let (checked, option) = (run(&["check-config", file]), run(&["--config", file, "--check"]));
        let said = text(&checked.stderr);
        assert_eq!((checked.status.code(), option.status.code()), (Some(2), Some(2)), "{said}");
        assert!(said.contains(expected) && !said.contains("sh0rt"), "{said}");
        assert_eq!((said.lines().count(), text(&option.stderr)), (lines, said));
    }
    // A hub with such a configuration does not start either.
    let started = run(&["--config", &open]);
    assert_eq!(started.status.code(), Some(2));
    assert!(text(&started.stderr).contains("0.0.0.0:0"));
}

#[test]
fn help_has_examples_and_the_version_is_the_packages() {
    let help = text(&run(&["--help"]).stdout);
    for expected in ["Examples:", "warmroute-hub check-config hub.yaml", "--log-format <LOG_FORMAT>"] {
        assert!(help.contains(expected), "{help}");
    }
    let version = text(&run(&["--version"]).stdout);
    assert_eq!(version, format!("warmroute-hub {}\n", env!("CARGO_PKG_VERSION")));
    assert!(text(&run(&["check-config", "--help"]).stdout).contains("Example:"));
}

#[tokio::test]
async fn each_line_of_a_structured_log_is_a_json_object() {
    let folder = Folder::new();
    let tokens = folder.write("tokens", "token-0123456789abcdef\n");
    let (grpc, http) = (free_port(), free_port());
    let config = format!(
        "listen: {{grpc: '127.0.0.1:{grpc}', http: '127.0.0.1:{http}'}}\n\
         replicas: [{{id: 'a \"quoted\" one', address: '127.0.0.1:1', kv_events: 'tcp://127.0.0.1:1', model: m}}]\n\
         security: {{tokens: [{{file: {tokens}, allow: [lookups]}}]}}"
    );
    let file = folder.write("hub.yaml", &config);
    let child = Command::new(env!("CARGO_BIN_EXE_warmroute-hub"))
        .args(["--config", &file, "--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while tokio::net::TcpStream::connect(("127.0.0.1", grpc)).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // Something to log: a call without a token.
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{grpc}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let token = Some("wrong-token-that-nobody-may-see");
    let outcome = crate::client::try_all(&channel, token).await;
    assert_eq!(outcome, crate::client::Outcome::all(tonic::Code::Unauthenticated));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
    let log = text(&output.stderr);
    assert!(!log.contains("nobody-may-see"), "{log}");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(lines.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()), "{log}");
    let refused = lines.iter().filter(|line| line["reason"] == "wrong_token").collect::<Vec<_>>();
    assert_eq!(refused.len(), 1, "at most once in a while: {log}");
    assert!(refused[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    // What keeps it from starting is a line of its own.
    let mut bad = std::fs::File::create(folder.path("bad.yaml")).unwrap();
    bad.write_all(b"heartbeat_ms: 1\nreports: {}\n").unwrap();
    let output = run(&["--config", folder.path("bad.yaml").to_str().unwrap(), "--log-format", "json"]);
    let line: Value = serde_json::from_str(text(&output.stderr).trim()).unwrap();
    assert_eq!((output.status.code(), line["level"].as_str()), (Some(2), Some("ERROR")));
}
