//! Bearer tokens: which there are, and what they are good for.
//!
//! A file has one token a line; empty lines and those that begin with `#` do not count. With the old and the new token in it,
//! or in two files, clients change over one by one. Tokens are kept as SHA-256 digests, and compared in constant time with
//! all that there are.

use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use crate::native::hub::config::{Access, TokensConfig};

/// Shorter ones can be guessed.
const LEAST_BYTES: usize = 16;
/// The longest token, in bytes.
const MOST_BYTES: usize = 4_096;

/// Ends when the token is not valid any more.
#[derive(Clone, Debug, Default)]
pub struct Revoked(CancellationToken);

/// What a token allows.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    allow: Vec<Access>,
    revoked: Revoked,
}

/// All tokens.
#[derive(Default)]
pub struct TokenSet {
    tokens: Vec<Token>,
}

struct Token {
    digest: [u8; 32],
    grant: Grant,
}

// === impl TokenSet ===

impl TokenSet {
    /// The tokens in these files; those that were there `before` are the same ones still.
    ///
    /// # Errors
    /// A line for each file that is wrong.
    pub fn new(files: &[(&TokensConfig, &[u8])], before: Option<&TokenSet>) -> Result<TokenSet, Vec<String>> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut problems = Vec::new();
        for (config, bytes) in files {
            match tokens_in(bytes, &config.file) {
                Ok(found) => found.into_iter().for_each(|token| add(&mut tokens, token, &config.allow)),
                Err(problem) => problems.push(problem),
            }
        }
        for token in &mut tokens {
            let same = |other: &&Token| other.digest == token.digest && other.grant.allow == token.grant.allow;
            if let Some(same) = before.and_then(|before| before.tokens.iter().find(same)) {
                token.grant.revoked = same.grant.revoked.clone();
            }
        }
        if problems.is_empty() { Ok(TokenSet { tokens }) } else { Err(problems) }
    }

    /// What `token` allows, if it is one of these.
    pub fn grant(&self, token: &[u8]) -> Option<&Grant> {
        let digest = digest(token);
        // All are looked at: how long it takes says nothing of which it is.
        self.tokens.iter().fold(None, |found, token| {
            let is_it = bool::from(token.digest.ct_eq(&digest));
            if is_it { Some(&token.grant) } else { found }
        })
    }

    /// Ends what began with a token that `new` does not have, or that allows something else there.
    pub fn end_those_not_in(&self, new: &TokenSet) {
        let stays = |token: &Token| {
            new.tokens.iter().any(|other| other.digest == token.digest && other.grant.allow == token.grant.allow)
        };
        self.tokens.iter().filter(|token| !stays(token)).for_each(|token| token.grant.revoked.0.cancel());
    }
}

/// A token that stands in several files allows what they all do.
fn add(tokens: &mut Vec<Token>, token: &[u8], allow: &[Access]) {
    let digest = digest(token);
    let place = tokens.iter().position(|other| other.digest == digest).unwrap_or(tokens.len());
    if place == tokens.len() {
        tokens.push(Token { digest, grant: Grant::default() });
    }
    let Some(token) = tokens.get_mut(place) else { return };
    for access in allow {
        if !token.grant.allow.contains(access) {
            token.grant.allow.push(*access);
        }
    }
}

/// The first token of a file, for a client to show.
///
/// # Errors
/// What is wrong with the file, without showing any of it.
pub fn first_token<'a>(bytes: &'a [u8], name: &Path) -> Result<&'a [u8], String> {
    let tokens = tokens_in(bytes, name)?;
    tokens.first().copied().ok_or_else(|| format!("{}: no token in it", name.display()))
}

/// The lines of a file. What is wrong is said without showing any.
fn tokens_in<'a>(bytes: &'a [u8], name: &Path) -> Result<Vec<&'a [u8]>, String> {
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    let mut tokens = Vec::new();
    for (place, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#")) {
        if !is_token(line) {
            let (line, name) = (place + 1, name.display());
            let allowed = "letters, digits and any of -._~+/=";
            return Err(format!(
                "{name}: line {line} is no token, allowed are {LEAST_BYTES} to {MOST_BYTES} {allowed}"
            ));
        }
        tokens.push(line);
    }
    if tokens.is_empty() { Err(format!("{}: no token in it", name.display())) } else { Ok(tokens) }
}

/// RFC 6750, section 2.1.
fn is_token(token: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    (LEAST_BYTES..=MOST_BYTES).contains(&token.len()) && token.iter().all(allowed)
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

// === impl Grant ===

impl Grant {
    /// Whether it is good for this.
    pub fn allows(&self, access: Access) -> bool {
        self.allow.contains(&access)
    }

    /// Whether it is good for some call.
    pub fn allows_calls(&self) -> bool {
        self.allow.iter().any(|access| *access != Access::Operators)
    }

    /// Ends when the token is not valid any more.
    pub fn revoked(&self) -> Revoked {
        self.revoked.clone()
    }
}

// === impl Revoked ===

impl Revoked {
    /// That of the token with which this call began.
    pub fn of<T>(request: &Request<T>) -> Revoked {
        request.extensions().get::<Revoked>().cloned().unwrap_or_default()
    }

    /// How a stream ends when its token is not valid any more; not before that.
    pub async fn status(&self) -> Status {
        self.0.cancelled().await;
        Status::unauthenticated("the bearer token is not valid any more")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(file: &str, allow: &[Access]) -> TokensConfig {
        TokensConfig { file: file.into(), allow: allow.to_vec() }
    }

    const OLD: &[u8] = b"old-0123456789abcdef";
    const NEW: &[u8] = b"new-0123456789abcdef";

    fn lines(tokens: &[&[u8]]) -> Vec<u8> {
        [b"# for rotation\n\n", tokens.join(&b"\r\n"[..]).as_slice(), b"\n"].concat()
    }

    #[test]
    fn a_token_allows_what_its_files_say() {
        let (one, two) = (config("1", &[Access::Producers]), config("2", &[Access::Lookups]));
        let (first, second) = (lines(&[OLD, NEW]), lines(&[NEW]));
        let set = TokenSet::new(&[(&one, &first), (&two, &second)], None).unwrap();
        let allows = |token: &[u8], access| set.grant(token).is_some_and(|grant| grant.allows(access));
        assert!(allows(OLD, Access::Producers) && !allows(OLD, Access::Lookups));
        assert!(allows(NEW, Access::Producers) && allows(NEW, Access::Lookups) && !allows(NEW, Access::Observers));
        for other in [&b""[..], b"old-0123456789abcde", b"old-0123456789abcdef0", b"OLD-0123456789abcdef"] {
            assert!(set.grant(other).is_none());
        }
    }

    #[test]
    fn a_file_that_is_wrong_is_named_and_no_token_is_shown() {
        let file = config("tokens.txt", &[Access::Lookups]);
        let problems = |bytes: &[u8]| TokenSet::new(&[(&file, bytes)], None).err().unwrap().join("");
        assert_eq!(problems(b"\n# nothing\n"), "tokens.txt: no token in it");
        let said = problems(b"good-0123456789abcdef\nsh0rt\n");
        assert!(said.starts_with("tokens.txt: line 2 is no token") && !said.contains("sh0rt"), "{said}");
        assert!(problems(b"two words 0123456789").contains("line 1"));
    }

    #[tokio::test]
    async fn what_began_with_a_token_ends_with_it_and_not_before() {
        let file = config("1", &[Access::Observers]);
        let set = |tokens: &[&[u8]], before: Option<&TokenSet>| {
            let bytes = lines(tokens);
            let set = TokenSet::new(&[(&file, &bytes)], before).unwrap();
            before.into_iter().for_each(|before| before.end_those_not_in(&set));
            set
        };
        let first = set(&[OLD], None);
        let revoked = first.grant(OLD).unwrap().revoked();
        let second = set(&[OLD, NEW], Some(&first));
        assert!(!revoked.0.is_cancelled());
        let third = set(&[NEW], Some(&second));
        revoked.status().await;
        assert!(third.grant(OLD).is_none() && !third.grant(NEW).unwrap().revoked.0.is_cancelled());
    }
}
