//! What is wrong with a configuration, collected while its values are read.
//!
//! In: fields as written. Out: the values, and a line with field, value and what is allowed for each that is not.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Uri;

/// The longest id, model, tenant or hash scheme, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Collects what is wrong while values are read.
#[derive(Default)]
pub struct Problems(Vec<String>);

/// Whether `address` is `host:port`, the host a name or an IP address, IPv6 in brackets.
pub fn is_host_and_port(address: &str) -> bool {
    if let Ok(socket) = address.parse::<SocketAddr>() {
        return socket.port() != 0;
    }
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let host_is_name =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    host_is_name && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// The port at the end of an endpoint.
pub fn port(endpoint: &str) -> Option<u16> {
    endpoint.rsplit_once(':').and_then(|(_, port)| port.parse().ok())
}

/// `url`, if it is one of HTTP, over TLS or not.
pub fn http_url(url: &str) -> Option<Uri> {
    let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    url.parse::<Uri>().ok().filter(is_http)
}

// === impl Problems ===

impl Problems {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One line for each thing that is wrong.
    pub fn into_lines(self) -> Vec<String> {
        self.0
    }

    /// Notes a value that is not allowed.
    pub fn add(&mut self, field: &str, value: impl std::fmt::Display, allowed: &str) {
        self.0.push(format!("{field} is `{value}`, allowed is {allowed}"));
    }

    /// Notes what was found wrong elsewhere, in words.
    pub fn add_line(&mut self, line: String) {
        self.0.push(line);
    }

    /// An address to listen on.
    pub fn listener(&mut self, field: &str, value: &str) -> Option<SocketAddr> {
        let address = value.parse().ok();
        if address.is_none() {
            self.add(field, value, "ip:port, IPv6 in brackets");
        }
        address
    }

    /// A number within bounds, or its default.
    pub fn number(&mut self, field: &str, value: Option<u64>, default: u64, least: u64, most: u64) -> u64 {
        let value = value.unwrap_or(default);
        if !(least..=most).contains(&value) {
            self.add(field, value, &format!("{least} to {most}"));
        }
        value
    }

    /// A time in ms within bounds, or its default.
    pub fn millis(&mut self, field: &str, value: Option<u64>, default: u64, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.number(field, value, default, least, most))
    }

    /// Checks a name.
    pub fn name(&mut self, field: &str, value: &str) {
        if value.is_empty() || value.len() > MAX_NAME_BYTES {
            self.add(field, value, &format!("1 to {MAX_NAME_BYTES} bytes"));
        }
    }

    /// Checks a ZeroMQ endpoint, and those of further ranks at the ports after it.
    pub fn endpoint(&mut self, field: &str, value: &str, ranks: u64) {
        if !value.strip_prefix("tcp://").is_some_and(is_host_and_port) {
            self.add(field, value, "tcp://host:port with a port of 1 to 65535");
        } else if port(value).is_some_and(|port| u64::from(port) + ranks - 1 > u64::from(u16::MAX)) {
            self.add(field, value, &format!("a port with {} more ports after it", ranks - 1));
        }
    }
}
