//! The demo's workload: what users ask, in a fixed order, made from a seed.
//!
//! Assistants share long system prompts. Conversations grow turn by turn, each turn carrying everything said before,
//! the generated answers included. Between them come one-off prompts as text. Several lanes run at once, and each lane
//! moves all its conversations on by a turn before the next turn begins, so that between two turns of one
//! conversation there is other work.
//!
//! Prompts are token ids in the fake engine's vocabulary, where a token is one byte of UTF-8.

use super::client::Prompt;

/// Lanes that run at once.
const LANES: usize = 4;
/// Conversations in each lane.
const CONVERSATIONS_PER_LANE: usize = 3;
/// Turns of each conversation.
const TURNS: usize = 5;
/// One-off prompts in each lane.
const ONE_OFFS_PER_LANE: usize = 2;
/// Length of a system prompt, in tokens: 48 blocks.
const SYSTEM_PROMPT_TOKENS: usize = 768;
/// Length of what a user writes in a turn, in tokens.
const TURN_TOKENS: usize = 180;
/// Length of a one-off prompt, in tokens.
const ONE_OFF_TOKENS: usize = 600;

/// What the assistants are for; each has a system prompt.
const ASSISTANTS: [&str; 4] = ["travel desk", "code review", "recipe book", "tax helper"];

const WORDS: [&str; 32] = [
    "about", "after", "answer", "before", "careful", "check", "city", "cost", "detail", "early", "follow", "given",
    "list", "month", "never", "number", "order", "please", "price", "question", "reason", "result", "short", "source",
    "step", "suggest", "table", "teach", "train", "under", "which", "write",
];

/// Everything that is asked.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The system prompts that conversations share.
    pub system_prompts: Vec<Prompt>,
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
    said: String,
    words: Words,
}

/// Words in a random order that is always the same.
#[derive(Clone, Debug)]
struct Words(u64);

// === impl Workload ===

impl Default for Workload {
    /// 68 requests in 4 lanes.
    fn default() -> Workload {
        let system_prompts: Vec<String> = ASSISTANTS.iter().map(|name| system_prompt(name)).collect();
        let lanes = (0..LANES).map(|lane| Lane::new(lane, &system_prompts)).collect();
        let system_prompts = system_prompts.iter().map(|text| token_ids(text)).collect();
        Workload { system_prompts, lanes }
    }
}

impl Workload {
    /// How many requests it makes.
    pub fn requests(&self) -> usize {
        self.lanes.iter().map(|lane| lane.steps.len()).sum()
    }
}

// === impl Lane ===

impl Lane {
    fn new(lane: usize, system_prompts: &[String]) -> Lane {
        let conversation = |place| {
            let number = lane * CONVERSATIONS_PER_LANE + place;
            let system_prompt = system_prompts.iter().cycle().nth(number).cloned().unwrap_or_default();
            Conversation::new(number, system_prompt)
        };
        let turns = (0..TURNS).flat_map(|_| (0..CONVERSATIONS_PER_LANE).map(Step::Turn));
        let mut steps: Vec<Step> = turns.collect();
        for place in 0..ONE_OFFS_PER_LANE {
            let number = lane * ONE_OFFS_PER_LANE + place;
            steps.insert((place + 1) * steps.len() / (ONE_OFFS_PER_LANE + 1), one_off(number));
        }
        Lane { conversations: (0..CONVERSATIONS_PER_LANE).map(conversation).collect(), steps }
    }
}

// === impl Conversation ===

impl Conversation {
    fn new(number: usize, system_prompt: String) -> Conversation {
        Conversation {
            name: format!("chat-{number:02}"),
            turn: 0,
            said: system_prompt,
            words: Words::seeded(number + 1),
        }
    }

    /// The prompt of the next turn: all that was said, and what the user asks now.
    pub fn ask(&mut self) -> Prompt {
        self.turn += 1;
        self.said.push_str("\nuser: ");
        self.said.push_str(&self.words.text(TURN_TOKENS));
        self.said.push_str("\nassistant: ");
        token_ids(&self.said)
    }

    /// Takes in the answer.
    pub fn answered(&mut self, text: &str) {
        self.said.push_str(text);
    }
}

fn system_prompt(assistant: &str) -> String {
    let mut words = Words::seeded(assistant.len() * 1000 + assistant.bytes().map(usize::from).sum::<usize>());
    let opening = format!("system: you are the {assistant}. ");
    let rest = words.text(SYSTEM_PROMPT_TOKENS.saturating_sub(opening.len()));
    opening + &rest
}

fn one_off(number: usize) -> Step {
    let prompt = Prompt::Text(Words::seeded(1_000 + number).text(ONE_OFF_TOKENS));
    Step::OneOff { name: format!("one-off-{number}"), prompt }
}

fn token_ids(text: &str) -> Prompt {
    Prompt::TokenIds(text.bytes().map(u32::from).collect())
}

// === impl Words ===

impl Words {
    fn seeded(seed: usize) -> Words {
        Words(seed as u64)
    }

    /// Text of exactly so many bytes.
    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            text.push_str(self.next());
            text.push(' ');
        }
        text.truncate(bytes);
        text
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

    fn ids(prompt: &Prompt) -> &[u32] {
        match prompt {
            Prompt::TokenIds(ids) => ids,
            Prompt::Text(_) => &[],
        }
    }

    #[test]
    fn every_turn_extends_the_one_before_and_its_answer() {
        let mut conversation = Conversation::new(0, system_prompt("travel desk"));
        let first = conversation.ask();
        conversation.answered("xyz");
        let second = conversation.ask();
        let expected: Vec<u32> = ids(&first).iter().copied().chain("xyz".bytes().map(u32::from)).collect();
        assert!(ids(&second).starts_with(&expected));
        assert_eq!(ids(&first).len(), SYSTEM_PROMPT_TOKENS + "\nuser: \nassistant: ".len() + TURN_TOKENS);
    }

    #[test]
    fn system_prompts_differ_and_open_the_conversations() {
        let mut workload = Workload::default();
        let opening = workload.lanes[0].conversations[1].ask();
        assert!(ids(&opening).starts_with(ids(&workload.system_prompts[1])));
        assert_ne!(workload.system_prompts[0], workload.system_prompts[1]);
    }

    #[test]
    fn all_turns_and_one_offs_are_asked() {
        let workload = Workload::default();
        assert_eq!(workload.requests(), LANES * (CONVERSATIONS_PER_LANE * TURNS + ONE_OFFS_PER_LANE));
        let turns = workload.lanes[0].steps.iter().filter(|step| matches!(step, Step::Turn(_))).count();
        assert_eq!(turns, CONVERSATIONS_PER_LANE * TURNS);
    }
}
