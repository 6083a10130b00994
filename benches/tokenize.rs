//! Time to load a tokenizer and to encode a prompt of 100 KB: a chat with nothing remembered, the same chat one turn
//! later, and Chinese text.
//!
//! Runs on the tokenizers that `scripts/tokenizers.py` has installed, of those named below, else on a small one. The
//! expected ids, by number and XXH3-64, were compared with PyPI `tokenizers` 0.23.3.

use std::cell::RefCell;
use std::fmt::Write;
use std::hint::black_box;
use std::path::PathBuf;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use warmroute::tokenize::{Limits, Specials, Tokenizer, Workspace, compile};
use xxhash_rust::xxh3::xxh3_64;

const PROMPT_BYTES: usize = 100_000;
const MEMO_BYTES: usize = 4 << 20;

/// A tokenizer, the marks around its turns, and what the chat and the Chinese text encode to.
struct Subject {
    name: &'static str,
    turn: &'static str,
    end: &'static str,
    chat: (usize, u64),
    chinese: (usize, u64),
}

const SMALL: Subject = Subject {
    name: "small",
    turn: "<one>user\n",
    end: "<two>\n",
    chat: (73697, 0x4128_05a4_b921_c857),
    chinese: (91064, 0xb46c_7c72_785e_58e5),
};
const INSTALLED: [Subject; 3] = [
    Subject {
        name: "llama3_1",
        turn: "<|start_header_id|>user<|end_header_id|>\n\n",
        end: "<|eot_id|>",
        chat: (30938, 0x7bdf_aaf5_5a8d_3579),
        chinese: (25605, 0xad6c_76d9_c078_75f6),
    },
    Subject {
        name: "qwen3",
        turn: "<|im_start|>user\n",
        end: "<|im_end|>\n",
        chat: (33886, 0x8033_a06b_d8c2_5ded),
        chinese: (20768, 0x9125_b5fe_751e_cc24),
    },
    Subject {
        name: "gemma3",
        turn: "<start_of_turn>user\n",
        end: "<end_of_turn>\n",
        chat: (35973, 0xbecb_900f_b43f_85c1),
        chinese: (21406, 0x10bf_b31e_a043_3b24),
    },
];

fn benches(criterion: &mut Criterion) {
    let mut found = 0;
    for subject in &INSTALLED {
        if let Ok(json) = std::fs::read(installed(subject.name)) {
            found += 1;
            measure(criterion, subject, &json);
        }
    }
    if found == 0 {
        measure(criterion, &SMALL, include_bytes!("../tests/tokenizers/small/cl100k.json"));
    }
}

fn installed(name: &str) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    cache.join("warmroute/tokenizers").join(format!("{name}.json"))
}

fn measure(criterion: &mut Criterion, subject: &Subject, json: &[u8]) {
    let artifact = compile(json).unwrap_or_default();
    let loaded = Tokenizer::load(artifact.clone());
    assert!(loaded.is_ok(), "{}: {:?}", subject.name, loaded.err());
    let Ok(tokenizer) = loaded else { return };
    let (chat, last) = chat(subject);
    let chinese = chinese();
    check(subject.name, "chat", &tokenizer, &chat, subject.chat);
    check(subject.name, "chinese", &tokenizer, &chinese, subject.chinese);

    let mut group = criterion.benchmark_group(format!("tokenize/{}", subject.name));
    group.bench_function("load", |bencher| {
        bencher.iter_batched(|| artifact.clone(), Tokenizer::load, BatchSize::LargeInput);
    });
    group.throughput(Throughput::Bytes(chat.len() as u64));
    for (name, text) in [("chat_cold", &chat), ("chinese_cold", &chinese)] {
        group.bench_function(name, |bencher| {
            let fresh = || Workspace::new(0);
            bencher.iter_batched_ref(
                fresh,
                |workspace| encode(&tokenizer, black_box(text), workspace),
                BatchSize::SmallInput,
            );
        });
    }
    // The turns before are remembered, the last one is new each time.
    let workspace = RefCell::new(Workspace::new(MEMO_BYTES));
    let mut turn = 0;
    group.bench_function("chat_next_turn", |bencher| {
        let next = || {
            turn += 1;
            format!(
                "{}{}This is turn {turn}.\n{}",
                before_last(&chat, last),
                subject.turn,
                chat.get(last..).unwrap_or_default()
            )
        };
        bencher.iter_batched(
            next,
            |text| encode(&tokenizer, black_box(&text), &mut workspace.borrow_mut()),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn before_last(chat: &str, last: usize) -> &str {
    chat.get(..last).unwrap_or_default()
}

fn encode(tokenizer: &Tokenizer, text: &str, workspace: &mut Workspace) -> Vec<u32> {
    tokenizer.encode(text, Specials::None, &Limits::default(), workspace).unwrap_or_default()
}

/// The ids are the expected ones, with and without a memo.
fn check(name: &str, what: &str, tokenizer: &Tokenizer, text: &str, expected: (usize, u64)) {
    let mut workspace = Workspace::new(MEMO_BYTES);
    for _ in 0..2 {
        let ids = encode(tokenizer, text, &mut workspace);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!((ids.len(), xxh3_64(&bytes)), expected, "{name}: ids of the {what}");
    }
}

/// A growing chat, and where its last turn begins.
fn chat(subject: &Subject) -> (String, usize) {
    const SENTENCES: [&str; 6] = [
        "The router keeps a table of which replica holds which blocks, and asks it before each request.",
        "When nothing is known about a prefix, it lets the proxy choose as it always did.",
        "Please compare both runs, and tell me why the second one was slower than the first!",
        "    for block in chain.iter().take(16) {\n        total += block.len() as u64;\n    }\n",
        "1. measure; 2. change one thing (only one); 3. measure again: it's 42.5% or 1,337 ms.",
        "{\"replica\": \"10.0.0.7:8000\", \"matched_tokens\": 4096, \"reason\": \"PREFIX_MATCH\"}",
    ];
    let (mut text, mut last) = (String::new(), 0);
    for turn in 0.. {
        if text.len() >= PROMPT_BYTES {
            break;
        }
        last = text.len();
        text += subject.turn;
        let _ = writeln!(text, "This is turn {turn}.");
        for line in 0..12 {
            let at = (turn * 5 + line * line) % SENTENCES.len();
            text += SENTENCES.get(at).copied().unwrap_or_default();
            let _ = writeln!(text, " (line {line} of turn {turn})");
        }
        text += subject.end;
    }
    (text, last)
}

/// Chinese sentences in a random order, with numbers.
fn chinese() -> String {
    const SENTENCES: [&str; 8] = [
        "路由器记得每个副本缓存了哪些前缀，",
        "所以同样的开头只需要计算一次。",
        "第二次请求通常比第一次快得多；",
        "如果什么都不知道，就照原来的方式转发。",
        "请把下面的会议记录翻译成英文，并列出三个要点：",
        "今天下午的演示定在十四点三十分，地点是二楼的会议室。",
        "这段代码为什么会报错？请一步一步地解释给我听。",
        "模型的上下文越长，重新计算所花费的时间就越多，",
    ];
    let mut state = 1_u64;
    let mut text = String::new();
    while text.len() < PROMPT_BYTES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (state >> 40) as usize;
        text += SENTENCES.get(number % SENTENCES.len()).copied().unwrap_or_default();
        if number.is_multiple_of(11) {
            let _ = writeln!(text, "{number}");
        }
    }
    text
}

criterion_group!(all, benches);
criterion_main!(all);
