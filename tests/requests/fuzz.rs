//! Requests in every state of decay, from fixed seeds: nothing panics, and slower readings agree.

use serde_json::{Map, Value};
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::request::{NoAdapters, RequestChain, RequestHead, names, read_body, read_head};
use warmroute::routing::policy::Strategy;
use warmroute::routing::reason::Detail;

use crate::{PATHS, bodies, config, headers, inputs, resolve};

/// Bodies in every state of decay, on the paths of all APIs: nothing panics, and what counts as JSON agrees with serde_json.
///
/// serde_json is asked twice, because the body's reader is in between: stricter than skipping a value, which takes any
/// bytes in a string, and looser than building one, which wants valid text and numbers that fit.
#[test]
fn mutated_bodies_never_panic_and_agree_with_serde_json_on_what_is_json() {
    let config = config(&Map::new());
    let inputs = PATHS.map(inputs);
    let seeds: Vec<Vec<u8>> = bodies().collect();
    let mut random = SplitMix(0x5eed);
    for round in 0..60_000 {
        let body = match round % 8 {
            0 => (0..random.below(200)).map(|_| random.next() as u8).collect(),
            1 => {
                let alphabet = br#"{}[]",:\ 0123456789-.eEtrufalsn"#;
                (0..random.below(40)).map(|_| alphabet[random.below(alphabet.len())]).collect()
            }
            _ => mutated(&seeds[random.below(seeds.len())], &mut random),
        };
        let request = read_body(body.clone(), &inputs[random.below(PATHS.len())], &config, &mut NoAdapters);
        let refusal = match request {
            Ok(request) => {
                resolve(&request, Strategy::default()).err().filter(|detail| *detail == Detail::MalformedJson)
            }
            Err(refusal) => Some(refusal.detail),
        };
        let refusal = refusal.map(Detail::as_str);
        let malformed = refusal == Some("malformed_json") || refusal == Some("empty_body");
        let text = String::from_utf8_lossy(&body);
        if malformed {
            assert!(serde_json::from_slice::<Map<String, Value>>(&body).is_err(), "refused: {text}");
        } else {
            let skipped = serde_json::from_slice::<serde::de::IgnoredAny>(&body);
            assert!(skipped.is_ok(), "accepted: {text}");
        }
    }
}

/// Token prompts against a reading that goes through a whole `serde_json::Value`.
#[test]
fn mutated_token_prompts_agree_with_a_naive_reading() {
    let config = config(&Map::new());
    let (inputs, _) = read_head(&RequestHead { headers: &[] }, None, &config, &mut NoAdapters);
    let mut random = SplitMix(7);
    let mut read = 0;
    for _ in 0..20_000 {
        let separator = [",", ", ", " ,", "\n, "][random.below(4)];
        let ids: Vec<String> = (0..random.below(40)).map(|_| random_id(&mut random)).collect();
        let body = format!(r#"{{"model":"llama","prompt":[{}],"n":1}}"#, ids.join(separator));
        let body = if random.below(2) == 0 { mutated(body.as_bytes(), &mut random) } else { body.into_bytes() };
        let Some(expected) = naive(&body) else { continue };
        let request = read_body(body.clone(), &inputs, &config, &mut NoAdapters).map_err(|refusal| refusal.detail);
        let found = request.and_then(|request| resolve(&request, Strategy::default()));
        let found = found.map(|resolved| resolved.chain).map_err(|detail| detail.as_str());
        assert_eq!(found, expected, "{}", String::from_utf8_lossy(&body));
        read += usize::from(expected.is_ok());
    }
    assert!(read > 2_000, "only {read} bodies had a chain");
}

/// Heads in every state of decay.
#[test]
fn mutated_heads_never_panic() {
    let config = config(&Map::new());
    let mut random = SplitMix(99);
    for _ in 0..20_000 {
        let mut headers = headers(10, &[], &[]);
        for name in names::INPUT {
            if random.below(3) == 0 {
                let values: [&[u8]; 6] = [b"llama", b"16,16", b"ea06fc71a5ee6e88", b"", b"-1", b"16"];
                headers.push((name.to_owned(), values[random.below(values.len())].to_vec()));
            }
        }
        for (_, value) in &mut headers {
            if random.below(4) == 0 {
                *value = mutated(value, &mut random);
            }
        }
        let (inputs, _) = read_head(&RequestHead { headers: &headers }, Some("acme"), &config, &mut NoAdapters);
        let _ = read_body(br#"{"model":"llama","prompt":[1,2,3]}"#.to_vec(), &inputs, &config, &mut NoAdapters);
    }
}

/// A few bytes changed, inserted, removed, repeated, or the end cut off.
pub fn mutated(seed: &[u8], random: &mut SplitMix) -> Vec<u8> {
    let interesting = br#"{}[]",:\ 0e.-"#;
    let mut body = seed.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(body.len() + 1);
        let byte =
            if random.below(2) == 0 { interesting[random.below(interesting.len())] } else { random.next() as u8 };
        match random.below(5) {
            0 => body.insert(at, byte),
            1 if at < body.len() => body[at] = byte,
            2 if at < body.len() => drop(body.remove(at)),
            3 => body.truncate(at),
            _ => {
                let piece = body[at..(at + random.below(20)).min(body.len())].to_vec();
                body.splice(at..at, piece);
            }
        }
    }
    body
}

/// An id of any length, now and then one that is not allowed.
fn random_id(random: &mut SplitMix) -> String {
    match random.below(200) {
        0 => "-1".to_owned(),
        1 => "4294967296".to_owned(),
        2 => "1.0".to_owned(),
        3 => "01".to_owned(),
        4 => "99999999999999999999999".to_owned(),
        _ => (random.next() as u32 >> random.below(32)).to_string(),
    }
}

/// The chain of a body with a token prompt, or the detail. `None` if the prompt is no array of numbers, or the body holds
/// anything that `Value` reads otherwise.
fn naive(body: &[u8]) -> Option<Result<RequestChain, &'static str>> {
    if body.is_empty() {
        return Some(Err("empty_body"));
    }
    let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(body) else {
        let skipped = serde_json::from_slice::<serde::de::IgnoredAny>(body);
        return skipped.is_err().then_some(Err("malformed_json"));
    };
    if fields.get("model")?.as_str()? != "llama" {
        return None;
    }
    let prompt = fields.get("prompt")?.as_array()?;
    if prompt.is_empty() {
        return Some(Err("no_prompt"));
    }
    if !prompt.iter().all(Value::is_number) {
        return None;
    }
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let Some(ids) = prompt.iter().map(id).collect::<Option<Vec<u32>>>() else { return Some(Err("wrong_type")) };
    let block_size = BlockSize::DEFAULT;
    let hashes: Vec<u64> = prefix_hashes(&ids, block_size, None).map(|hash| hash.0).collect();
    Some(if hashes.is_empty() { Err("short_prompt") } else { Ok(RequestChain::Prefixes { hashes, block_size }) })
}

/// The generator of Steele, Lea and Flood: the same numbers on every machine.
pub struct SplitMix(pub u64);

// === impl SplitMix ===

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }
}
