//! What the root contexts of one VM share: the nodes, and the last good configurations.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use hashbrown::HashMap;

use crate::config::FilterConfig;
use crate::flow::node::Node;

thread_local! {
    static NODES: RefCell<HashMap<String, Weak<RefCell<Node>>>> = RefCell::new(HashMap::new());
    static LAST_GOOD: RefCell<HashMap<Vec<u8>, Rc<FilterConfig>>> = RefCell::new(HashMap::new());
}

/// The node of a domain; it lives as long as a root context uses it.
pub fn node(domain: &str) -> Rc<RefCell<Node>> {
    NODES.with(|nodes| {
        let fresh = || Rc::new(RefCell::new(Node::new(domain)));
        let Ok(mut nodes) = nodes.try_borrow_mut() else { return fresh() };
        nodes.retain(|_, node| node.strong_count() > 0);
        if let Some(node) = nodes.get(domain).and_then(Weak::upgrade) {
            return node;
        }
        let node = fresh();
        nodes.insert(domain.to_owned(), Rc::downgrade(&node));
        node
    })
}

/// Remembers the configuration of a root id as good.
pub fn remember(root_id: Vec<u8>, config: &Rc<FilterConfig>) {
    LAST_GOOD.with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.insert(root_id, Rc::clone(config));
        }
    });
}

/// The last good configuration of a root id in this VM.
pub fn last_good(root_id: &[u8]) -> Option<Rc<FilterConfig>> {
    LAST_GOOD.with(|last| last.try_borrow().ok().and_then(|last| last.get(root_id).cloned()))
}
