//! What the headers alone decide.

use super::hold::{self, Body};
use super::{HeaderInputs, KnownAdapters, LookupRequest, names};
use crate::config::FilterConfig;
use crate::routing::reason::Detail;

/// A request's headers as Envoy gives them: names in lower case, pseudo headers such as `:method` among them.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// Names and values.
    pub headers: &'a [(String, Vec<u8>)],
}

/// What to do once the headers are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadVerdict {
    /// Send the request on: there is nothing to look up.
    Release(Detail),
    /// Hold the headers and the body, then ask [`read_body`](super::read_body). A body that turns out to be longer
    /// than `max_body_bytes` must be released (`body_too_large`), one that does not come (`empty_body`).
    Hold {
        /// The announced length in bytes; `None` if it is not announced.
        content_length: Option<u64>,
    },
    /// The headers have it all: look up, and send the request on without holding its body.
    Ready(LookupRequest),
}

/// Reads a request's headers.
///
/// `tenant_property` is the value of the property that the configuration names as the tenant's source, if it does.
///
/// The order of the checks is the order in which a cause is named:
///
/// 1. `upgrade`: CONNECT, a `:protocol`, an `upgrade` header, or `connection: upgrade`;
/// 2. `not_post`;
/// 3. explicit keys and a model id in the headers: ready, or their fault. On any path and with any body, since the body
///    plays no part;
/// 4. `grpc`, `other_path`, `expect_continue`, `encoded_body`, `not_json`;
/// 5. the announced length: `unknown_length` without one or with a malformed one (unless `hold_chunked` is set and there
///    is none), `empty_body`, `body_too_large`;
/// 6. what the body could not repair: a malformed input header, no tenant, a model in the headers that is neither
///    configured nor an adapter of one that is.
pub fn read_head(
    head: &RequestHead,
    tenant_property: Option<&str>,
    config: &FilterConfig,
    known: &mut dyn KnownAdapters,
) -> (HeaderInputs, HeadVerdict) {
    let mut inputs = HeaderInputs::read(head, tenant_property, config);
    let verdict = verdict(head, &mut inputs, config, known).unwrap_or_else(HeadVerdict::Release);
    (inputs, verdict)
}

fn verdict(
    head: &RequestHead,
    inputs: &mut HeaderInputs,
    config: &FilterConfig,
    known: &mut dyn KnownAdapters,
) -> Result<HeadVerdict, Detail> {
    hold::check_method(head)?;
    if inputs.decide_alone() {
        return inputs.lookup_request(config, known).map(HeadVerdict::Ready);
    }
    let Body { content_length, api } = hold::check_body(head, &config.requests)?;
    inputs.api = api;
    inputs.check(config, known)?;
    Ok(HeadVerdict::Hold { content_length })
}

/// A header that may be given once was given more than once, or is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ambiguous;

// === impl RequestHead ===

impl<'a> RequestHead<'a> {
    /// The first header of this name, without the blanks around it; `None` if there is none or it is not UTF-8.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.all(name).next().and_then(text)
    }

    /// Whether there is a header of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The only header of this name; an empty one is absent.
    pub(super) fn single(&self, name: &str) -> Result<Option<&'a str>, Ambiguous> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => {
                text(value).map(|value| Some(value).filter(|value| !value.is_empty())).ok_or(Ambiguous)
            }
            (Some(_), Some(_)) => Err(Ambiguous),
        }
    }

    /// Whether any header's name begins as the input headers' do.
    pub(super) fn has_inputs(&self) -> bool {
        self.headers.iter().any(|(name, _)| name.starts_with(names::PREFIX))
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.headers.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_slice())
    }
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().map(str::trim)
}
