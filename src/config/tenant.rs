//! Where a request's tenant comes from: one source, trusted by the operator, and a default. Never guessed.

use serde_json::Value;

use super::defaults;
use super::section::{Problems, Section};
use crate::request::names;

pub use crate::observation::RESERVED_TENANT;

/// Where a request's tenant comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSource {
    /// The source.
    pub from: TenantFrom,
    /// The tenant where the source has none; `None`: such a request gets no hint.
    pub default: Option<String>,
}

/// The place that names the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantFrom {
    /// Nothing: all requests are of the default tenant.
    Nowhere,
    /// A request header, lower case. An earlier filter must set or remove it, or a client can choose.
    Header(String),
    /// The path of an Envoy property, such as dynamic metadata set by JWT authentication.
    Property(Vec<String>),
}

// === impl TenantSource ===

impl TenantSource {
    /// The path of the property to ask Envoy for, if the tenant is in one.
    pub fn property(&self) -> Option<&[String]> {
        match &self.from {
            TenantFrom::Property(path) => Some(path),
            TenantFrom::Nowhere | TenantFrom::Header(_) => None,
        }
    }

    pub(super) fn read(mut section: Section, problems: &mut Problems) -> TenantSource {
        let header = read_header(&mut section, problems);
        let property = read_property(&mut section, problems);
        let from = match (header, property) {
            (None, None) => TenantFrom::Nowhere,
            (Some(header), None) => TenantFrom::Header(header),
            (None, Some(path)) => TenantFrom::Property(path),
            (Some(header), Some(_)) => {
                let value = Value::String(header.clone());
                problems.note(section.path_of("header"), Some(&value), "only one of header and property");
                TenantFrom::Header(header)
            }
        };
        let source = TenantSource { from, default: read_default(&mut section, problems) };
        section.finish(problems);
        source
    }
}

fn read_header(section: &mut Section, problems: &mut Problems) -> Option<String> {
    let value = section.take("header")?;
    let usable = value.as_str().filter(|name| is_header_name(name) && !names::is_routing_header(name));
    if usable.is_none() {
        let allowed = "a header name in lower case that is not one of the filter's own";
        problems.note(section.path_of("header"), Some(value), allowed);
    }
    usable.map(str::to_owned)
}

fn read_property(section: &mut Section, problems: &mut Problems) -> Option<Vec<String>> {
    let path = section.texts("property", problems)?;
    if path.is_empty() {
        let value = Value::Array(Vec::new());
        problems.note(section.path_of("property"), Some(&value), "a list of at least one text");
    }
    Some(path)
}

/// Absent is [`defaults::TENANT`], `null` is none.
fn read_default(section: &mut Section, problems: &mut Problems) -> Option<String> {
    match section.take_nullable("default") {
        None => Some(defaults::TENANT.to_owned()),
        Some(Value::Null) => None,
        Some(Value::String(tenant)) if !tenant.is_empty() && tenant != RESERVED_TENANT => Some(tenant.clone()),
        Some(value) => {
            let allowed = format!("null for none, or a text that is not empty and not {RESERVED_TENANT}");
            problems.note(section.path_of("default"), Some(value), allowed);
            None
        }
    }
}

/// A token as in RFC 9110 without capitals, which is how Envoy spells header names.
fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"!#$%&'*+-.^_`|~".contains(&byte))
}
