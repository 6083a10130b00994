//! A compiled chat template, and rendering with it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::machinery::parse;
use minijinja::{Environment, Value};

use super::anthropic::Trials;
use super::continuation::Continuation;
use super::environment::{environment, syntax};
use super::operands::with_filters;
use super::source::{check_shape, marks_generation, prepare};
use super::{Chat, ContentFormat, InvalidTemplate, LocalTime, Media, RenderError, media};

/// The name under which the environment keeps its one template: without an extension, so nothing is escaped.
const NAME: &str = "chat";

/// Names that a template argument may not have: they are the conversation itself.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// What a render may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One unit pays for an instruction or for about 64 bytes of data, so this many times 64 bytes also bounds the memory.
    pub fuel: u64,
    /// The longest prompt.
    pub output_bytes: usize,
}

/// The special tokens that a template may write, by the names that it knows them by: `bos_token`, `eos_token`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpecialTokens {
    pub(super) named: Vec<(String, String)>,
}

/// A chat template, ready to render.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    special: Vec<(String, Value)>,
    limits: Limits,
    content_format: ContentFormat,
    marks_generation: bool,
    knows_developers: bool,
    /// The length of the last prompt.
    last_bytes: AtomicUsize,
    pub(super) trials: Trials,
}

/// What a conversation comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The text that the engine tokenizes, from its beginning.
    pub text: String,
    /// Whether that is all of it; else something follows that is not text.
    pub complete: bool,
}

/// A buffer that takes no more than it may.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    overflowed: bool,
}

// === impl Limits ===

impl Limits {
    /// A prompt of 2 MB, and the work for a conversation of two thousand messages in most templates; in those that look
    /// through the whole conversation at each message, for some hundred.
    pub const DEFAULT: Limits = Limits { fuel: 1_500_000, output_bytes: 2 << 20 };
}

// === impl SpecialTokens ===

impl SpecialTokens {
    /// The two that most templates write.
    #[must_use]
    pub fn new(bos: Option<&str>, eos: Option<&str>) -> SpecialTokens {
        let named = [("bos_token", bos), ("eos_token", eos)];
        SpecialTokens {
            named: named.iter().filter_map(|(name, token)| Some(((*name).to_owned(), (*token)?.to_owned()))).collect(),
        }
    }

    /// Names and tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, token)| (name.as_str(), token.as_str()))
    }

    /// The token of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, token)| token.as_str())
    }
}

impl FromIterator<(String, String)> for SpecialTokens {
    fn from_iter<Pairs: IntoIterator<Item = (String, String)>>(pairs: Pairs) -> SpecialTokens {
        SpecialTokens { named: pairs.into_iter().collect() }
    }
}

// === impl ChatTemplate ===

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// The source has a syntax error, uses what is not supported, or is so large or so nested that it could not be
    /// rendered in bounded space.
    pub fn compile(source: &str, special: &SpecialTokens, limits: Limits) -> Result<ChatTemplate, InvalidTemplate> {
        let syntax = syntax()?;
        let prepared = prepare(source, &syntax)?;
        let marks_generation = marks_generation(source, &syntax);
        let tree = parse(&prepared, NAME, syntax.clone())?;
        check_shape(&tree)?;
        let content_format = ContentFormat::of(&tree);
        let prepared = with_filters(&prepared, &tree);
        let mut environment = environment(limits);
        environment.set_syntax(syntax);
        environment.add_template_owned(NAME, prepared)?;
        let special = special.named.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str()))).collect();
        Ok(ChatTemplate {
            environment,
            source: source.to_owned(),
            special,
            limits,
            content_format,
            marks_generation,
            knows_developers: source.contains("'developer'") || source.contains("\"developer\""),
            last_bytes: AtomicUsize::new(0),
            trials: Trials::default(),
        })
    }

    /// What it was compiled from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The form in which the template takes content, as vLLM detects it.
    #[must_use]
    pub fn content_format(&self) -> ContentFormat {
        self.content_format
    }

    /// Whether the template names the role `developer`, as vLLM looks for it.
    pub(super) fn knows_developers(&self) -> bool {
        self.knows_developers
    }

    /// Whether plain Jinja2 renders these messages with the template, without what `transformers` adds to it: no functions, no
    /// tokens, no tag that marks an answer.
    ///
    /// # Errors
    ///
    /// That takes more work than a render may.
    pub(super) fn renders_bare(&self, messages: Value) -> Result<bool, RenderError> {
        if self.marks_generation {
            return Ok(false);
        }
        let variables = [
            ("messages", messages),
            ("add_generation_prompt", Value::from(false)),
            ("raise_exception", Value::UNDEFINED),
        ];
        match self.render_with(Value::from_pairs(variables)) {
            Ok(_) => Ok(true),
            Err(RenderError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renders a conversation as the engine does whose wall clock shows `clock`.
    ///
    /// # Errors
    ///
    /// See [`RenderError`].
    pub fn render(&self, chat: &Chat, clock: LocalTime) -> Result<Prompt, RenderError> {
        if let Some(media) = chat.media {
            return self.render_up_to(chat, media, clock);
        }
        if !chat.continue_final_message {
            return Ok(Prompt { text: self.render_plain(chat, clock)?, complete: true });
        }
        let continuation = Continuation::of(chat, &self.source)?;
        let rendered = self.render_plain(continuation.chat(), clock)?;
        Ok(Prompt { text: continuation.cut(rendered)?, complete: true })
    }

    /// The prompt in front of the first part that is not text.
    fn render_up_to(&self, chat: &Chat, media: Media, clock: LocalTime) -> Result<Prompt, RenderError> {
        let mut text = self.render_plain(chat, clock)?;
        let whole = text.len();
        for variant in media::variants(chat, media)? {
            let known = media::common(&text, &self.render_plain(&variant, clock)?).len();
            text = text.get(..known).unwrap_or_default().to_owned();
        }
        if text.len() == whole {
            return Err(RenderError::refused("the template writes nothing at the place of the media"));
        }
        Ok(Prompt { text, complete: false })
    }

    fn render_plain(&self, chat: &Chat, clock: LocalTime) -> Result<String, RenderError> {
        self.render_with(self.context(chat, clock)?)
    }

    fn render_with(&self, context: Value) -> Result<String, RenderError> {
        let template = self.environment.get_template(NAME)?;
        // A prompt is often a little longer than the one before it.
        let before = self.last_bytes.load(Ordering::Relaxed);
        let bytes = Vec::with_capacity(before.saturating_add(before / 16).min(self.limits.output_bytes));
        let mut out = Bounded { bytes, limit: self.limits.output_bytes, overflowed: false };
        let result = template.render_captured_to(context, &mut out).map(drop);
        if out.overflowed {
            return Err(RenderError::TooLong);
        }
        result?;
        self.last_bytes.store(out.bytes.len(), Ordering::Relaxed);
        String::from_utf8(out.bytes).map_err(|_| RenderError::refused("the prompt is not UTF-8"))
    }

    /// The variables of the template. Later ones hide earlier ones of the same name.
    fn context(&self, chat: &Chat, clock: LocalTime) -> Result<Value, RenderError> {
        if let Some((name, _)) = chat.arguments.iter().find(|(name, _)| RESERVED.contains(&name.as_str())) {
            return Err(RenderError::refused(format!("chat_template_kwargs may not name {name:?}")));
        }
        let none_or = |value: &Option<Value>| value.clone().unwrap_or_else(|| Value::from(()));
        let fixed = [
            ("strftime_now", Value::from_function(move |format: &str| clock.strftime(format))),
            ("messages", chat.aliased_messages()),
            ("tools", none_or(&chat.tools)),
            ("documents", none_or(&chat.documents)),
            ("add_generation_prompt", Value::from(chat.add_generation_prompt)),
        ];
        let named = self.special.iter().chain(&chat.arguments).map(|(name, value)| (name.as_str(), value.clone()));
        Ok(Value::from_pairs(fixed.into_iter().chain(named)))
    }
}

// === impl Bounded ===

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(bytes.len()) > self.limit {
            self.overflowed = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
