//! The HTTP context: a request's callbacks.

use std::cell::RefCell;
use std::rc::Rc;

use super::proxy_host::ProxyHost;
use super::root::Plugin;
use crate::flow::exchange::{Exchange, Next, Notices, Router};

/// A request. By default that of a filter without configuration.
#[derive(Default)]
pub struct Http {
    plugin: Option<Rc<Plugin>>,
    notices: Rc<RefCell<Notices>>,
    exchange: Exchange,
}

// === impl Http ===

impl Http {
    /// A request of a root context; without a plugin, of one that is not configured.
    pub fn new(plugin: Option<Rc<Plugin>>, notices: Rc<RefCell<Notices>>) -> Http {
        Http { plugin, notices, exchange: Exchange::default() }
    }

    /// The request's headers.
    pub fn on_request_headers(&mut self, end_of_stream: bool) -> Next {
        self.step(|exchange, router| exchange.on_request_headers(&ProxyHost, router, end_of_stream))
    }

    /// The request's body: while it is held, the `size` bytes that came so far.
    pub fn on_request_body(&mut self, size: usize, end_of_stream: bool) -> Next {
        self.step(|exchange, router| exchange.on_request_body(&ProxyHost, router, size, end_of_stream))
    }

    /// The request's trailers.
    pub fn on_request_trailers(&mut self) -> Next {
        self.step(|exchange, router| exchange.on_request_trailers(&ProxyHost, router))
    }

    /// The response's headers.
    pub fn on_response_headers(&mut self, end_of_stream: bool) {
        if let (Some(plugin), Ok(mut notices)) = (&self.plugin, self.notices.try_borrow_mut()) {
            self.exchange.on_response_headers(&ProxyHost, &plugin.config, &mut notices, end_of_stream);
        }
    }

    /// The next `size` bytes of the response's body.
    pub fn on_response_body(&mut self, size: usize, end_of_stream: bool) {
        if self.exchange.reads_response()
            && let Ok(mut notices) = self.notices.try_borrow_mut()
        {
            self.exchange.on_response_body(&ProxyHost, &mut notices, size, end_of_stream);
        }
    }

    /// The response's trailers.
    pub fn on_response_trailers(&mut self) {
        self.end_response(true);
    }

    /// The end. A response that has not ended by now has been broken off.
    pub fn on_done(&mut self) {
        self.end_response(false);
    }

    fn step(&mut self, step: impl FnOnce(&mut Exchange, Option<Router<'_>>) -> Next) -> Next {
        let mut node = self.plugin.as_ref().and_then(|plugin| plugin.node.try_borrow_mut().ok());
        let mut notices = self.notices.try_borrow_mut().ok();
        let parts = self.plugin.as_ref().zip(node.as_mut()).zip(notices.as_mut());
        let router = parts.map(|((plugin, node), notices)| Router { config: &plugin.config, node, notices });
        step(&mut self.exchange, router)
    }

    fn end_response(&mut self, is_whole: bool) {
        if self.exchange.reads_response()
            && let Ok(mut notices) = self.notices.try_borrow_mut()
        {
            self.exchange.end_response(&ProxyHost, &mut notices, is_whole);
        }
    }
}
