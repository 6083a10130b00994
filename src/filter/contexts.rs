//! The VM's contexts, by the numbers that the proxy gives them. Of a context that is not known nothing is kept: a root
//! context's callback is passed over, a request's is answered as one of a filter without configuration, which removes
//! the routing headers and has nothing else to say.

use std::cell::RefCell;

use hashbrown::HashMap;

use super::http::Http;
use super::root::Root;

thread_local! {
    static ROOTS: RefCell<HashMap<u32, Root>> = RefCell::new(HashMap::new());
    static REQUESTS: RefCell<HashMap<u32, Http>> = RefCell::new(HashMap::new());
}

/// Makes a request's context, or a root context where `root_id` is 0.
pub fn create(id: u32, root_id: u32) {
    if root_id == 0 {
        ROOTS.with(|roots| {
            if let Ok(mut roots) = roots.try_borrow_mut() {
                roots.insert(id, Root::new(id));
            }
        });
        return;
    }
    let request = with_root(root_id, |root| root.request()).unwrap_or_default();
    REQUESTS.with(|requests| {
        if let Ok(mut requests) = requests.try_borrow_mut() {
            requests.insert(id, request);
        }
    });
}

/// Has a root context do something, if there is one of that number.
pub fn with_root<T>(id: u32, act: impl FnOnce(&mut Root) -> T) -> Option<T> {
    ROOTS.with(|roots| roots.try_borrow_mut().ok()?.get_mut(&id).map(act))
}

/// Has a request do something; none while another one does.
pub fn with_request<T>(id: u32, act: impl FnOnce(&mut Http) -> T) -> Option<T> {
    REQUESTS.with(|requests| match requests.try_borrow_mut().ok()?.get_mut(&id) {
        Some(request) => Some(act(request)),
        None => Some(act(&mut Http::default())),
    })
}

/// Tells a context that it ends.
pub fn done(id: u32) {
    if with_root(id, Root::on_done).is_none() {
        with_request(id, Http::on_done);
    }
}

/// Forgets a context.
pub fn delete(id: u32) {
    REQUESTS.with(|requests| {
        if let Ok(mut requests) = requests.try_borrow_mut() {
            requests.remove(&id);
        }
    });
    ROOTS.with(|roots| {
        if let Ok(mut roots) = roots.try_borrow_mut() {
            roots.remove(&id);
        }
    });
}
