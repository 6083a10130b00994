//! The root context: configuration, ticks, and the stream's callbacks.

use std::cell::RefCell;
use std::rc::Rc;

use super::http::Http;
use super::proxy_host::{Buffer, ProxyHost};
use super::vm;
use crate::config::FilterConfig;
use crate::flow::exchange::Notices;
use crate::flow::metrics;
use crate::flow::node::Node;
use crate::host::{Host, HttpHost, Level, StreamToken};
use crate::wire;

/// A root context.
pub struct Root {
    context_id: u32,
    plugin: Option<Rc<Plugin>>,
    notices: Rc<RefCell<Notices>>,
    /// The tick period that the proxy was last asked for.
    tick_period_ms: u64,
}

/// What a valid configuration makes of a root context.
pub struct Plugin {
    /// The configuration.
    pub config: Rc<FilterConfig>,
    /// The VM's node of the configuration's domain.
    pub node: Rc<RefCell<Node>>,
}

// === impl Root ===

impl Root {
    /// A root context that is not configured yet.
    pub fn new(context_id: u32) -> Root {
        Root { context_id, plugin: None, notices: Rc::default(), tick_period_ms: 0 }
    }

    /// A message of `size` bytes on a stream.
    pub fn on_stream_message(&mut self, stream: StreamToken, size: usize) {
        // What is larger than any message may be is not read: no bytes are no valid message, so it is refused.
        let is_allowed = size <= wire::MAX_MESSAGE_BYTES;
        let message = if is_allowed { ProxyHost.buffer(Buffer::GrpcMessage, size) } else { Some(Vec::new()) };
        let Some(message) = message else { return };
        self.with_node(|node, config| node.on_stream_message(&ProxyHost, stream, &message, config));
    }

    /// The end of a stream, or of one that could not be opened.
    pub fn on_stream_closed(&mut self, stream: StreamToken) {
        self.with_node(|node, _| node.on_stream_closed(&ProxyHost, stream));
    }

    /// The root context's end.
    pub fn on_done(&mut self) {
        self.with_node(|node, _| node.on_done(&ProxyHost, self.context_id));
    }

    /// The context of a new request.
    pub fn request(&self) -> Http {
        Http::new(self.plugin.clone(), Rc::clone(&self.notices))
    }

    /// A configuration of `size` bytes. It is always accepted: refusing would fail the VM. Without a valid one the last
    /// good one of this VM serves on, and without that the filter has nothing to say.
    pub fn on_configure(&mut self, size: usize) {
        let root_id = ProxyHost.property(&["plugin_root_id"]).unwrap_or_default();
        let json = ProxyHost.buffer(Buffer::PluginConfiguration, size).unwrap_or_default();
        let config = match FilterConfig::from_json(&json) {
            Ok(config) => Some(Rc::new(config)),
            Err(problems) => {
                ProxyHost.count(metrics::CONFIG_REFUSED, 1);
                for problem in problems {
                    ProxyHost.log(Level::Warn, &format!("the configuration is refused: {problem}"));
                }
                vm::last_good(&root_id)
            }
        };
        if let Some(config) = &config {
            vm::remember(root_id, config);
            self.tick_every(config.limits.tick_ms);
        }
        self.plugin = config.map(|config| {
            let node = vm::node(&config.domain());
            Rc::new(Plugin { config, node })
        });
    }

    /// The time to do what is due.
    pub fn on_tick(&mut self) {
        let mut period_ms = self.tick_period_ms;
        self.with_node(|node, config| {
            node.tick(&ProxyHost, self.context_id, config);
            period_ms = node.tick_period_ms(self.context_id, config);
        });
        self.tick_every(period_ms);
    }

    fn tick_every(&mut self, period_ms: u64) {
        if self.tick_period_ms != period_ms {
            self.tick_period_ms = period_ms;
            ProxyHost.set_tick_period(period_ms);
        }
    }

    fn with_node(&self, act: impl FnOnce(&mut Node, &FilterConfig)) {
        if let Some(plugin) = &self.plugin
            && let Ok(mut node) = plugin.node.try_borrow_mut()
        {
            act(&mut node, &plugin.config);
        }
    }
}
