//! The tools of `warmroute-hub` as a process: `compile-tokenizer`, `tokenize`, `verify`, and what `--check` says of models.
//!
//! What an engine answers to `verify` was made by `model_tools/record.py` with the reference.
#![cfg(feature = "native")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use warmroute::model::Package;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/models/demo-bytes");

/// Ids by the SHA-256 of a request's body.
type Answers = HashMap<String, Vec<u32>>;

fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_warmroute-hub"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A path of its own, not there yet.
fn path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("warmroute-tools-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// An HTTP server that gives `answer` for each body, one connection a request.
fn server(answer: impl Fn(&[u8]) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || serve(stream.unwrap(), &*answer));
        }
    });
    url
}

fn serve(stream: TcpStream, answer: &dyn Fn(&[u8]) -> (u16, String)) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    assert_eq!(first, "POST /tokenize HTTP/1.1\r\n");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, text) = answer(&body);
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", text.len());
    reader.get_mut().write_all(format!("{head}{text}").as_bytes()).unwrap();
}

fn answers() -> Answers {
    serde_json::from_str(include_str!("model_tools/answers.json")).unwrap()
}

fn ids(answers: &Answers, body: &[u8]) -> Vec<u32> {
    let key: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    let ids = answers.get(&key);
    ids.unwrap_or_else(|| panic!("not recorded: {}", String::from_utf8_lossy(body))).clone()
}

fn tokenized(ids: &[u32]) -> (u16, String) {
    (200, json!({"tokens": ids, "count": ids.len(), "max_model_len": 4096}).to_string())
}

fn verify(engine: &str) -> Output {
    run(&["verify", "--engine", engine, "--model", "demo", MODEL], "")
}

#[test]
fn compile_tokenizer_says_what_the_model_is_and_writes_its_package() {
    let package = path("package");
    let output = run(&["compile-tokenizer", MODEL, "-o", package.to_str().unwrap()], "");
    let (said, bytes) = (stdout(&output), std::fs::read(&package).unwrap());
    std::fs::remove_file(&package).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let version = Package::version(&bytes).unwrap();
    for line in [
        "kind           byte-level BPE".to_owned(),
        "chat template  yes".to_owned(),
        format!("digest         {:032x}", version.digest.0),
        format!("package        {} bytes in {} parts", bytes.len(), version.parts()),
    ] {
        assert!(said.contains(&line), "{line}: {said}");
    }
    let template = std::fs::read_to_string(format!("{MODEL}/chat_template.jinja")).unwrap();
    assert_eq!(Package::decode(bytes).unwrap().chat_template, Some(template));
}

#[test]
fn a_directory_that_is_not_used_is_exit_code_2_and_the_reason() {
    let directory = path("refused");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("tokenizer.json"), r#"{"model": {"type": "WordPiece", "vocab": {}}}"#).unwrap();
    let name = directory.to_str().unwrap();
    for tool in ["compile-tokenizer", "tokenize"] {
        let output = run(&[tool, name], "");
        assert_eq!(output.status.code(), Some(2));
        let expected = format!("{name}: tokenizer.json: model.type is WordPiece, supported is BPE\n");
        assert_eq!(stderr(&output), expected);
    }
    let config = directory.join("hub.yaml");
    let yaml = format!(
        "reports: {{}}\nmodels: [{{model_id: m, block_size: 16}}, {{model_id: n, block_size: 16}}]\n\
                        tokenizers: {{directory: '{}', models: {{m: {}}}}}\n",
        directory.parent().unwrap().display(),
        directory.file_name().unwrap().to_str().unwrap()
    );
    std::fs::write(&config, yaml).unwrap();
    let check = run(&["--config", config.to_str().unwrap(), "--check"], "");
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(check.status.code(), Some(2));
    let said = stderr(&check);
    assert!(said.starts_with("m: ") && said.contains("tokenizer.json: model.type is WordPiece"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("n: ") && line.contains("is not there")), "{said}");
}

#[test]
fn tokenize_takes_a_text_standard_input_or_a_conversation() {
    let object = |output: Output| -> Value {
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let text = "A text, with l\u{fc}ck.";
    let given = object(run(&["tokenize", MODEL, "--json", "--text", text, "--no-special-tokens"], ""));
    let piped = object(run(&["tokenize", MODEL, "--json", "--no-special-tokens"], text));
    assert_eq!(given, piped);
    assert_eq!(given["ids"].as_array().unwrap().len(), given["pieces"].as_array().unwrap().len());
    assert_eq!((&given["prompt"], &given["complete"]), (&Value::Null, &json!(true)));

    let chat = r#"{"messages": [{"role": "user", "content": "Hello"}]}"#;
    let chat = object(run(&["tokenize", MODEL, "--json", "--chat", "-"], chat));
    let prompt = "<|begin|><|role|>user<|text|>Hello<|end|><|role|>assistant<|text|>";
    assert_eq!(chat["prompt"], prompt);
    let pieces: Vec<&str> = chat["pieces"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
    assert_eq!(pieces.concat(), prompt);
    let lines = stdout(&run(&["tokenize", MODEL], "Hello"));
    assert!(lines.ends_with(" ids\n") && lines.contains("  \""), "{lines}");
    let refused = run(&["tokenize", MODEL, "--chat", "-"], r#"{"messages": [{"role": "other", "content": "x"}]}"#);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).starts_with("-: "), "{}", stderr(&refused));
}

#[test]
fn what_would_have_no_effect_is_a_bad_command_line() {
    for more in [
        &["--text", "x", "--api", "responses"][..],
        &["--api", "responses"],
        &["--text", "x", "--utc-offset-minutes", "1441"],
        &["--text", "x", "--utc-offset-minutes", "-1441"],
    ] {
        let output = run(&[&["tokenize", MODEL][..], more].concat(), "");
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stdout(&output));
    }
    assert!(run(&["tokenize", MODEL, "--text", "x", "--utc-offset-minutes", "-1440"], "").status.success());
}

#[test]
fn an_engine_that_agrees_is_exit_code_0() {
    let recorded = answers();
    let count = recorded.len();
    let engine = server(move |body| tokenized(&ids(&recorded, body)));
    let output = verify(&engine);
    let said = stdout(&output);
    assert!(output.status.success(), "{said}{}", stderr(&output));
    assert!(said.starts_with(&format!("{engine} serves demo up to 4096 tokens\n")), "{said}");
    assert!(said.ends_with(&format!("verify: {count} prompts, 0 differ\n")), "{said}");
    assert!(said.contains("ok       chat `tool call`: "), "{said}");
}

#[test]
fn one_wrong_id_is_named() {
    let recorded = answers();
    let engine = server(move |body| {
        let mut ids = ids(&recorded, body);
        let fields: Value = serde_json::from_slice(body).unwrap();
        if fields["prompt"] == "The quick brown fox jumps over the lazy dog." && fields["add_special_tokens"] == false {
            ids[3] += 1;
        }
        tokenized(&ids)
    });
    let output = verify(&engine);
    assert_eq!(output.status.code(), Some(1));
    let said = stdout(&output);
    let differing: Vec<&str> = said.lines().filter(|line| line.starts_with("DIFFERS")).collect();
    assert_eq!(differing.len(), 1, "{said}");
    assert!(differing[0].starts_with("DIFFERS  text `sentence`, bare: at id 3, after \"The "), "{differing:?}");
    assert!(differing[0].contains(" here, ") && differing[0].contains(" at the engine ("), "{differing:?}");
    let named: Vec<u32> = differing[0].split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(named.windows(2).any(|pair| pair[0] + 1 == pair[1]), "both ids: {named:?}");
}

#[test]
fn an_engine_without_tokenize_or_that_refuses_is_exit_code_1() {
    let output = verify(&server(|_| (404, r#"{"detail": "Not Found"}"#.to_owned())));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the engine has no /tokenize"), "{}", stderr(&output));

    let output = verify(&server(|_| (404, r#"{"message": "The model `demo` does not exist."}"#.to_owned())));
    assert!(stderr(&output).contains("does not exist"), "{}", stderr(&output));

    let recorded = answers();
    let output =
        verify(&server(move |body| match serde_json::from_slice::<Value>(body).unwrap()["messages"].is_array() {
            true => (400, "no template".to_owned()),
            false => tokenized(&ids(&recorded, body)),
        }));
    assert_eq!(output.status.code(), Some(1));
    let said = stdout(&output);
    assert!(said.contains("the engine refuses it: 400 Bad Request: no template"), "{said}");

    let closed = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    assert_eq!(verify(&closed).status.code(), Some(1));
    assert_eq!(verify("https://engine").status.code(), Some(2));
}

#[test]
fn without_a_configuration_or_a_tool_the_command_line_is_bad() {
    let output = run(&[], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--config"), "{}", stderr(&output));
    let help = run(&["--help"], "");
    for tool in ["compile-tokenizer", "tokenize", "verify", "Examples:"] {
        assert!(stdout(&help).contains(tool), "{tool}: {}", stdout(&help));
    }
}
