//! The HTTP context: a request's callbacks.

use std::cell::RefCell;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use super::proxy_host::ProxyHost;
use super::root::Plugin;
use crate::flow::exchange::{Exchange, Next, Notices, Router};

/// A request.
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

    fn step(&mut self, step: impl FnOnce(&mut Exchange, Option<Router<'_>>) -> Next) -> Action {
        let mut node = self.plugin.as_ref().and_then(|plugin| plugin.node.try_borrow_mut().ok());
        let mut notices = self.notices.try_borrow_mut().ok();
        let parts = self.plugin.as_ref().zip(node.as_mut()).zip(notices.as_mut());
        let router = parts.map(|((plugin, node), notices)| Router { config: &plugin.config, node, notices });
        match step(&mut self.exchange, router) {
            Next::Continue => Action::Continue,
            Next::Hold => Action::Pause,
        }
    }

    fn end_response(&mut self, is_whole: bool) {
        if self.exchange.reads_response()
            && let Ok(mut notices) = self.notices.try_borrow_mut()
        {
            self.exchange.end_response(&ProxyHost, &mut notices, is_whole);
        }
    }
}

impl Context for Http {
    /// A response that has not ended by now has been broken off.
    fn on_done(&mut self) -> bool {
        self.end_response(false);
        true
    }
}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        self.step(|exchange, router| exchange.on_request_headers(&ProxyHost, router, end_of_stream))
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.step(|exchange, router| exchange.on_request_body(&ProxyHost, router, size, end_of_stream))
    }

    fn on_http_request_trailers(&mut self, _count: usize) -> Action {
        self.step(|exchange, router| exchange.on_request_trailers(&ProxyHost, router))
    }

    fn on_http_response_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        if let (Some(plugin), Ok(mut notices)) = (&self.plugin, self.notices.try_borrow_mut()) {
            self.exchange.on_response_headers(&ProxyHost, &plugin.config, &mut notices, end_of_stream);
        }
        Action::Continue
    }

    /// The body goes on in any case, and as it is.
    fn on_http_response_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if self.exchange.reads_response()
            && let Ok(mut notices) = self.notices.try_borrow_mut()
        {
            self.exchange.on_response_body(&ProxyHost, &mut notices, size, end_of_stream);
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        self.end_response(true);
        Action::Continue
    }
}
