//! The demo's workload: what users ask, in a fixed order, made from a seed.
//!
//! Assistants share long system prompts, and some have tools. Conversations grow turn by turn, each turn carrying everything
//! said before, the generated answers included, and of assistants with tools a call and its result. Between them come
//! one-off prompts as text. Several lanes run at once, and each lane moves all its conversations on by a turn before the
//! next turn begins, so that between two turns of one conversation there is other work.
//!
//! All of it is text, as chat messages or as it stands; a word is about a token in the demo's vocabulary.

use serde_json::{Value, json};

use super::client::{Chat, Prompt};

/// Lanes that run at once.
const LANES: usize = 4;
/// Conversations in each lane.
const CONVERSATIONS_PER_LANE: usize = 3;
/// Turns of each conversation.
const TURNS: usize = 5;
/// One-off prompts in each lane.
const ONE_OFFS_PER_LANE: usize = 2;
/// Length of a system prompt, in words.
const SYSTEM_PROMPT_WORDS: usize = 750;
/// Length of what a user writes in a turn, in words.
const TURN_WORDS: usize = 180;
/// Length of a one-off prompt, in words.
const ONE_OFF_WORDS: usize = 600;

/// More than a round takes; apart from it, no multiple of it is one of an opening.
const SEEDS_PER_ROUND: usize = 1_000_003;

/// What the assistants are for; each has a system prompt. The tool that it can call, if it has one.
const ASSISTANTS: [(&str, Option<&str>); 4] = [
    ("travel desk", Some("search_trains")),
    ("code review", None),
    ("recipe book", None),
    ("tax helper", Some("look_up")),
];

const WORDS: [&str; 32] = [
    "about", "after", "answer", "before", "careful", "check", "city", "cost", "detail", "early", "follow", "given",
    "list", "month", "never", "number", "order", "please", "price", "question", "reason", "result", "short", "source",
    "step", "suggest", "table", "teach", "train", "under", "which", "write",
];

/// Everything that is asked.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What conversations begin with: system prompts and tools.
    pub openings: Vec<Chat>,
    /// What runs at once.
    pub lanes: Vec<Lane>,
}

/// Requests that follow one another.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The conversations of this lane.
    pub conversations: Vec<Conversation>,
    /// What is asked, in order.
    pub steps: Vec<Step>,
}

/// One request of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next turn of the lane's conversation at this place.
    Turn(usize),
    /// A prompt that nobody asked before.
    OneOff {
        /// What it is called.
        name: String,
        /// The prompt.
        prompt: Prompt,
    },
}

/// A conversation, as far as it has got.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// What it is called.
    pub name: String,
    /// Turns so far.
    pub turn: usize,
    said: Chat,
    words: Words,
}

/// Words in a random order that is always the same.
#[derive(Clone, Debug)]
struct Words(u64);

// === impl Workload ===

impl Default for Workload {
    /// 68 requests in 4 lanes.
    fn default() -> Workload {
        Workload::of_round(0)
    }
}

impl Workload {
    /// The same openings in every round, and what is asked after them in none of the others.
    pub fn of_round(round: usize) -> Workload {
        let openings: Vec<Chat> = ASSISTANTS.iter().map(|(name, tool)| opening(name, *tool)).collect();
        let lanes = (0..LANES).map(|lane| Lane::new(lane, round, &openings)).collect();
        Workload { openings, lanes }
    }

    /// How many requests it makes.
    pub fn requests(&self) -> usize {
        self.lanes.iter().map(|lane| lane.steps.len()).sum()
    }
}

// === impl Lane ===

impl Lane {
    fn new(lane: usize, round: usize, openings: &[Chat]) -> Lane {
        let conversation = |place| {
            let number = lane * CONVERSATIONS_PER_LANE + place;
            Conversation::new(number, round, openings.iter().cycle().nth(number).cloned().unwrap_or_default())
        };
        let turns = (0..TURNS).flat_map(|_| (0..CONVERSATIONS_PER_LANE).map(Step::Turn));
        let mut steps: Vec<Step> = turns.collect();
        for place in 0..ONE_OFFS_PER_LANE {
            let number = lane * ONE_OFFS_PER_LANE + place;
            steps.insert((place + 1) * steps.len() / (ONE_OFFS_PER_LANE + 1), one_off(number, round));
        }
        Lane { conversations: (0..CONVERSATIONS_PER_LANE).map(conversation).collect(), steps }
    }
}

// === impl Conversation ===

impl Conversation {
    fn new(number: usize, round: usize, opening: Chat) -> Conversation {
        let words = Words::seeded(seed(round, number + 1));
        Conversation { name: format!("chat-{number:02}"), turn: 0, said: opening, words }
    }

    /// The prompt of the next turn: all that was said, and what the user asks now.
    pub fn ask(&mut self) -> Prompt {
        self.turn += 1;
        let content = self.words.text(TURN_WORDS);
        self.said.messages.push(json!({ "role": "user", "content": content }));
        Prompt::Chat(self.said.clone())
    }

    /// Takes in the answer. With tools that is a call, to which the client adds the result.
    pub fn answered(&mut self, text: &str) {
        let mut answer = json!({ "role": "assistant", "content": text });
        let Some(tool) = self.said.tools.first().and_then(|tool| tool.pointer("/function/name")).cloned() else {
            self.said.messages.push(answer);
            return;
        };
        let id = format!("call-{}", self.turn);
        let arguments = json!({ "query": self.words.text(3) }).to_string();
        if let Some(fields) = answer.as_object_mut() {
            let call = json!({ "id": id, "type": "function", "function": { "name": tool, "arguments": arguments } });
            fields.insert("tool_calls".to_owned(), json!([call]));
        }
        let result = json!({ "results": [self.words.text(12)] }).to_string();
        self.said.messages.extend([answer, json!({ "role": "tool", "tool_call_id": id, "content": result })]);
    }
}

fn opening(assistant: &str, tool: Option<&str>) -> Chat {
    let mut words = Words::seeded(assistant.len() * 1000 + assistant.bytes().map(usize::from).sum::<usize>());
    let content = format!("You are the {assistant}. {}", words.text(SYSTEM_PROMPT_WORDS));
    Chat {
        messages: vec![json!({ "role": "system", "content": content })],
        tools: tool.into_iter().map(described).collect(),
    }
}

fn described(tool: &str) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": tool,
            "description": "Search the source and list each result",
            "parameters": {
                "type": "object",
                "properties": { "query": { "type": "string", "description": "What to search" } },
                "required": ["query"],
            },
        },
    })
}

fn one_off(number: usize, round: usize) -> Step {
    let prompt = Prompt::Text(Words::seeded(seed(round, 1_000 + number)).text(ONE_OFF_WORDS));
    Step::OneOff { name: format!("one-off-{number}"), prompt }
}

/// Of what is the `number`th in a round.
fn seed(round: usize, number: usize) -> usize {
    round.wrapping_mul(SEEDS_PER_ROUND).wrapping_add(number)
}

// === impl Words ===

impl Words {
    fn seeded(seed: usize) -> Words {
        Words(seed as u64)
    }

    /// Text of so many words.
    fn text(&mut self, words: usize) -> String {
        (0..words).map(|_| self.next()).collect::<Vec<_>>().join(" ")
    }

    /// A linear congruential generator (Knuth's MMIX constants); the high bits are the random ones.
    fn next(&mut self) -> &'static str {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (self.0 >> 33) as usize % WORDS.len();
        WORDS.get(place).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(prompt: Prompt) -> Chat {
        match prompt {
            Prompt::Chat(chat) => chat,
            other => panic!("{other:?} is no conversation"),
        }
    }

    #[test]
    fn every_turn_extends_the_one_before_and_its_answer() {
        let workload = Workload::default();
        for conversation in &workload.lanes[0].conversations {
            let mut conversation = conversation.clone();
            let first = chat(conversation.ask());
            conversation.answered("xyz");
            let second = chat(conversation.ask());
            assert_eq!(first.messages, second.messages[..first.messages.len()]);
            assert_eq!(second.messages[first.messages.len()]["content"], "xyz");
            let roles: Vec<&str> = second.messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
            let expected: &[&str] = if first.tools.is_empty() {
                &["system", "user", "assistant", "user"]
            } else {
                &["system", "user", "assistant", "tool", "user"]
            };
            assert_eq!(roles, expected);
        }
    }

    #[test]
    fn openings_differ_and_some_have_tools() {
        let mut workload = Workload::default();
        let asked = chat(workload.lanes[0].conversations[1].ask());
        assert!(asked.messages.starts_with(&workload.openings[1].messages));
        assert_ne!(workload.openings[0].messages, workload.openings[1].messages);
        assert_eq!(workload.openings.iter().filter(|opening| opening.tools.is_empty()).count(), 2);
    }

    #[test]
    fn rounds_have_their_openings_in_common_and_nothing_else() {
        let (mut first, mut second) = (Workload::default(), Workload::of_round(1));
        assert_eq!(first.openings, second.openings);
        let asked = |workload: &mut Workload| chat(workload.lanes[0].conversations[0].ask()).messages;
        let (first, second) = (asked(&mut first), asked(&mut second));
        assert_eq!(first[0], second[0]);
        assert_ne!(first[1], second[1]);
    }

    #[test]
    fn all_turns_and_one_offs_are_asked() {
        let workload = Workload::default();
        assert_eq!(workload.requests(), LANES * (CONVERSATIONS_PER_LANE * TURNS + ONE_OFFS_PER_LANE));
        let turns = workload.lanes[0].steps.iter().filter(|step| matches!(step, Step::Turn(_))).count();
        assert_eq!(turns, CONVERSATIONS_PER_LANE * TURNS);
    }
}
